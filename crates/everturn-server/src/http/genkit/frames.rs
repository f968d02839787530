//! Frames: `data: `, one line of JSON, two line feeds.
//!
//! Genkit's client decodes each read by itself, so a character whose bytes come in two reads would be lost: frames are
//! ASCII, everything else is escaped.

use everturn::{Chunk, ErrorKind, TurnError};
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Frame<'a, T> {
    Message(&'a Chunk),
    Result(&'a T),
    Error(&'a TurnError),
}

/// JSON in ASCII.
pub(super) fn ascii<T: Serialize>(value: &T) -> everturn::Result<String> {
    let unwritable =
        |error| everturn::Error::new(ErrorKind::Internal, "an answer cannot be written").with_source(error);
    let text = serde_json::to_string(value).map_err(unwritable)?;
    if text.is_ascii() {
        return Ok(text);
    }
    let mut out = String::with_capacity(text.len() + text.len() / 2);
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    Ok(out)
}

/// One frame.
pub(super) fn frame<T: Serialize>(frame: &Frame<'_, T>) -> everturn::Result<String> {
    // Line feeds inside strings are escaped by JSON itself; between tokens there are none, because we printed it.
    Ok(format!("data: {}\n\n", ascii(frame)?.replace(['\n', '\r'], " ")))
}

#[cfg(test)]
mod tests {
    use everturn::Json;

    use super::*;

    #[test]
    fn everything_is_ascii_and_means_the_same() {
        for text in ["plain", "é 漢字 🙂", "\u{2028}\u{7f}", "a\nb\r\n\r\nc", "\"\\\""] {
            let frame = frame(&Frame::Result(&text)).unwrap();
            assert!(frame.is_ascii(), "{frame}");
            let body = frame.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
            assert!(!body.contains(['\n', '\r']));
            let read: serde_json::Value = Json::parse(body).unwrap().to().unwrap();
            assert_eq!(read["result"], text);
        }
    }
}
