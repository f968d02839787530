//! Artifacts: what agents made, in all its versions, and to take away.

use axum::Json as JsonBody;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use everturn::store::{ArtifactQuery, StoredArtifact};
use everturn::{ArtifactVersion, Json, Part, SessionId};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::caller::Own;
use super::extract::{Asked, In, PageQuery, limit};
use super::problem::Problem;
use super::sessions::{SessionPath, encoded};

/// An artifact.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct ArtifactPath {
    /// The agent's name.
    #[allow(dead_code, reason = "read through `Own`; here it is described")]
    agent: String,
    /// The session's id.
    #[param(value_type = String)]
    session: SessionId,
    /// The artifact's name.
    artifact: String,
}

/// A version without its content.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    version: ArtifactVersion,
    parts: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Json>,
}

impl From<StoredArtifact> for Listed {
    fn from(stored: StoredArtifact) -> Self {
        let StoredArtifact { version, artifact } = stored;
        Self { version, parts: artifact.parts.len(), metadata: artifact.metadata }
    }
}

/// Versions, without their contents.
#[derive(Serialize)]
pub(super) struct Listing {
    items: Vec<Listed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Where a page of versions goes on: behind this one.
type Behind = (String, u64);

fn cursor_of(behind: &Behind) -> Result<String, Problem> {
    Ok(URL_SAFE_NO_PAD.encode(Json::from_value(behind)?.as_str()))
}

fn read_cursor(text: &str) -> Result<Behind, Problem> {
    let read = || Json::parse(String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?).ok()?.to().ok();
    read().ok_or_else(|| Problem::invalid("that is no cursor of this listing: start again without one"))
}

/// A page of versions.
async fn page(
    own: &Own,
    session: &SessionId,
    query: PageQuery,
    which: impl Fn(ArtifactQuery) -> ArtifactQuery,
) -> Result<Listing, Problem> {
    let sessions = own.raw_sessions()?;
    let limit = limit(query.limit)?;
    let behind = query.cursor.as_deref().map(read_cursor).transpose()?;
    let mut found = sessions.artifacts(session, |query| which(query).page(behind, limit + 1)).await?;
    let all = found.len() <= limit;
    found.truncate(limit);
    let last = found.last().map(|last| (last.version.name.clone(), last.version.version));
    let items: Vec<_> = found.into_iter().map(Listed::from).collect();
    // Contents are read with them, so there may be fewer than were asked for and more behind them.
    let more = match (all, &last) {
        (false, _) => true,
        (true, None) => false,
        (true, last) => !sessions.artifacts(session, |query| which(query).page(last.clone(), 1)).await?.is_empty(),
    };
    let next = last.as_ref().filter(|_| more).map(cursor_of).transpose()?;
    Ok(Listing { items, next })
}

/// Lists the newest version of each of a session's named artifacts. Rewinds do not hide them.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/artifacts", tag = "artifacts", params(SessionPath, PageQuery),
    responses(
        (status = OK, body = ref("#/components/schemas/ArtifactPage")),
        (status = BAD_REQUEST, body = Problem), (status = FORBIDDEN, body = Problem),
        (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn list(
    own: Own,
    In(path): In<SessionPath>,
    Asked(query): Asked<PageQuery>,
) -> Result<JsonBody<Listing>, Problem> {
    page(&own, &path.session, query, ArtifactQuery::newest).await.map(JsonBody)
}

/// Lists the versions of an artifact.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/artifacts/{artifact}", tag = "artifacts",
    params(ArtifactPath, PageQuery),
    responses(
        (status = OK, body = ref("#/components/schemas/ArtifactPage")),
        (status = BAD_REQUEST, body = Problem), (status = FORBIDDEN, body = Problem),
        (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn versions(
    own: Own,
    In(path): In<ArtifactPath>,
    Asked(query): Asked<PageQuery>,
) -> Result<JsonBody<Listing>, Problem> {
    let going_on = query.cursor.is_some();
    let found = page(&own, &path.session, query, |versions| versions.name(&path.artifact)).await?;
    match found.items.is_empty() && !going_on {
        true => Err(unknown(&path.artifact)),
        false => Ok(JsonBody(found)),
    }
}

fn unknown(name: &str) -> Problem {
    Problem::not_found(format!("the session has no artifact '{name}' in that version: list its artifacts"))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DownloadQuery {
    /// The version, from 0; the newest when left out.
    version: Option<u64>,
    /// Which of its parts, from 0; the first when left out.
    part: Option<usize>,
}

/// Downloads a part of an artifact: texts as text, media as what it is, anything else as JSON.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/artifacts/{artifact}/download", tag = "artifacts",
    params(ArtifactPath, DownloadQuery),
    responses(
        (status = OK, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = BAD_REQUEST, body = Problem), (status = FORBIDDEN, body = Problem),
        (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn download(
    own: Own,
    In(path): In<ArtifactPath>,
    Asked(query): Asked<DownloadQuery>,
) -> Result<Response, Problem> {
    let sessions = own.raw_sessions()?;
    let found = sessions.artifacts(&path.session, |mut asked| {
        asked.version = query.version;
        asked.name(&path.artifact).newest()
    });
    let found = found.await?.into_iter().max_by_key(|stored| stored.version.version);
    let stored = found.ok_or_else(|| unknown(&path.artifact))?;
    let part = query.part.unwrap_or(0);
    let count = stored.artifact.parts.len();
    let part = stored.artifact.parts.get(part).ok_or_else(|| {
        Problem::not_found(format!("the artifact '{}' has {count} parts, counted from 0", path.artifact))
    })?;
    let (kind, bytes) = content(part)?;
    let mut response = bytes.into_response();
    let headers = response.headers_mut();
    let unsaid = || HeaderValue::from_static("application/octet-stream");
    headers.insert(CONTENT_TYPE, HeaderValue::from_str(&kind).unwrap_or_else(|_| unsaid()));
    // Whatever an agent made, a browser must not run it as a page of ours.
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.insert(CONTENT_DISPOSITION, disposition(&path.artifact));
    Ok(response)
}

/// What a part holds, and its type.
fn content(part: &Part) -> Result<(String, Vec<u8>), Problem> {
    #[derive(Deserialize)]
    struct Held {
        media: Option<Media>,
        data: Option<Json>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Media {
        url: String,
        content_type: Option<String>,
    }
    if let Some(text) = part.as_text() {
        return Ok(("text/plain; charset=utf-8".to_owned(), text.into_bytes()));
    }
    let json = |json: &Json| ("application/json".to_owned(), json.as_str().as_bytes().to_vec());
    match part.json().to::<Held>() {
        Ok(Held { media: Some(media), .. }) => {
            let Some(url) = media.url.strip_prefix("data:") else {
                return Err(Problem::invalid("this part is kept elsewhere: read its URL from the session's state"));
            };
            let (said, bytes) = data_url(url).ok_or_else(|| Problem::invalid("this part's data URL cannot be read"))?;
            Ok((media.content_type.unwrap_or(said), bytes))
        }
        Ok(Held { data: Some(data), .. }) => Ok(json(&data)),
        _ => Ok(json(part.json())),
    }
}

/// The type and the bytes of a data URL, without its `data:`.
fn data_url(rest: &str) -> Option<(String, Vec<u8>)> {
    let (head, body) = rest.split_once(',')?;
    let (kind, bytes) = match head.strip_suffix(";base64") {
        Some(kind) => (kind, base64::engine::general_purpose::STANDARD.decode(body).ok()?),
        None => (head, percent_decoded(body)?),
    };
    Some((if kind.is_empty() { "text/plain;charset=US-ASCII" } else { kind }.to_owned(), bytes))
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (high, low) = (char::from(bytes.next()?).to_digit(16)?, char::from(bytes.next()?).to_digit(16)?);
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    Some(out)
}

/// A file to save under a name that no path, quote or line feed can hide in.
pub(super) fn disposition(name: &str) -> HeaderValue {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let last = if last.trim_matches('.').is_empty() { "artifact" } else { last };
    let plain: String =
        last.chars().map(|c| if c.is_ascii_alphanumeric() || "-_. ".contains(c) { c } else { '_' }).collect();
    let text = format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{}", encoded(last));
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_their_header() {
        for (name, plain) in [
            ("report.md", "report.md"),
            ("../../etc/passwd", "passwd"),
            ("a\\b\\c.txt", "c.txt"),
            ("..", "artifact"),
            ("x\"; filename=\"y", "x__ filename__y"),
            ("line\r\nSet-Cookie: a=b", "line__Set-Cookie_ a_b"),
            ("naïve 漢.md", "na_ve _.md"),
        ] {
            let header = disposition(name);
            let text = header.to_str().unwrap();
            assert!(text.starts_with(&format!("attachment; filename=\"{plain}\"; filename*=UTF-8''")), "{text}");
        }
    }

    #[test]
    fn parts_are_what_they_say() {
        let json = |text: &str| Part::from_json(Json::parse(text).unwrap()).unwrap();
        for (part, kind, bytes) in [
            (Part::text("hé"), "text/plain; charset=utf-8", "hé"),
            (Part::media("data:image/png;base64,aGk=", None), "image/png", "hi"),
            (Part::media("data:,a%20b", None), "text/plain;charset=US-ASCII", "a b"),
            (Part::media("data:text/x;base64,aGk=", Some("text/html")), "text/html", "hi"),
            (json(r#"{"data":{"a":1}}"#), "application/json", r#"{"a":1}"#),
            (json(r#"{"other":1}"#), "application/json", r#"{"other":1}"#),
        ] {
            assert_eq!(content(&part).unwrap(), (kind.to_owned(), bytes.as_bytes().to_vec()), "{part:?}");
        }
        for bad in ["https://example.org/x", "data:x", "data:;base64,%%%", "data:,%zz", "data:,%4"] {
            assert!(content(&Part::media(bad, None)).is_err(), "{bad}");
        }
    }
}
