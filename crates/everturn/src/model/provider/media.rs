//! Pictures, sounds and documents, as each provider takes them.

use genai::chat::{Binary, ContentPart};
use serde::Deserialize;
use serde_json::json;

use super::name::Wire;
use crate::Part;

#[derive(Deserialize)]
struct Peek {
    media: Media,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Media {
    url: String,
    #[serde(default)]
    content_type: Option<String>,
}

/// Media for a provider: itself, its address as text, or nothing if the provider cannot take it at all.
pub(super) fn content(part: &Part, wire: Wire) -> Option<ContentPart> {
    let Media { url, content_type } = part.json().to::<Peek>().ok()?.media;
    match url.strip_prefix("data:") {
        Some(data) => inline(data, content_type, wire),
        None => Some(by_address(url, content_type, wire)),
    }
}

fn inline(data: &str, content_type: Option<String>, wire: Wire) -> Option<ContentPart> {
    let (head, data) = data.split_once(',')?;
    let named = head.strip_suffix(";base64")?;
    let kind = content_type.or_else(|| (!named.is_empty()).then(|| named.to_owned()))?;
    (wire != Wire::Ollama || kind.starts_with("image/"))
        .then(|| ContentPart::Binary(Binary::from_base64(kind, data, None)))
}

fn by_address(url: String, content_type: Option<String>, wire: Wire) -> ContentPart {
    let kind = content_type.unwrap_or_else(|| guess(&url).to_owned());
    let picture = kind.starts_with("image/");
    match wire {
        // genai takes pictures of Anthropic's only by value.
        Wire::Anthropic if picture => {
            ContentPart::from_custom(json!({"type": "image", "source": {"type": "url", "url": url}}), None)
        }
        Wire::OpenAi | Wire::Other if !picture && !kind.starts_with("video/") => ContentPart::from_text(url),
        Wire::Ollama => ContentPart::from_text(url),
        _ => ContentPart::Binary(Binary::from_url(kind, url, None)),
    }
}

/// The type an address promises. Most that say nothing are pictures.
fn guess(url: &str) -> &'static str {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    match path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        _ => "image/jpeg",
    }
}
