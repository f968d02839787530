//! What went wrong, what the caller can do, and whether to try again.

use std::error::Error as StdError;
use std::time::Duration;

use genai::Error as GenaiError;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::{Error, ErrorKind};

/// A failed try.
pub(super) struct Failure {
    pub(super) kind: ErrorKind,
    /// What happened; the name of the model and the fix go around it.
    pub(super) what: String,
    pub(super) fix: Fix,
    pub(super) again: Again,
}

/// Whether another try may do better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    No,
    Yes,
    /// After the pause that the provider asks for.
    After(Duration),
}

/// What the caller can do.
pub(super) enum Fix {
    None,
    Key,
    Say(&'static str),
}

impl Failure {
    fn new(kind: ErrorKind, what: impl Into<String>, fix: Fix, again: Again) -> Self {
        Self { kind, what: what.into(), fix, again }
    }

    /// The provider stopped in the middle.
    pub(super) fn cut() -> Self {
        Self::new(ErrorKind::Unavailable, "the answer broke off before its end", Fix::Say("ask again"), Again::Yes)
    }

    /// The provider said so in the middle of its answer.
    pub(super) fn said(message: &str) -> Self {
        Self::new(ErrorKind::Unavailable, format!("the provider failed: {}", line(message)), Fix::None, Again::Yes)
    }

    /// Nothing came for too long. Waiting as long again is no help to whoever waits.
    pub(super) fn stalled(idle: Duration) -> Self {
        let what = format!("nothing came for {idle:?}");
        Self::new(ErrorKind::Unavailable, what, Fix::Say("ask again, or raise Provider::idle_timeout"), Again::No)
    }

    pub(super) fn too_long(limit: usize) -> Self {
        let what = format!("the answer is over {limit} bytes");
        Self::new(ErrorKind::TooLarge, what, Fix::Say("ask for less, or raise Provider::max_answer_bytes"), Again::No)
    }

    pub(super) fn from_genai(error: GenaiError, host: &str) -> Self {
        match error {
            GenaiError::HttpError { status, body, headers, .. } => Self::from_status(status, &body, &headers),
            GenaiError::WebStream { error, cause, .. } => match error.downcast::<GenaiError>() {
                Ok(inner) => Self::from_genai(*inner, host),
                Err(error) => match error.downcast::<reqwest::Error>() {
                    Ok(error) => Self::from_transport(&error, host),
                    Err(_) => Self::garbage(&cause),
                },
            },
            GenaiError::ChatResponse { body, .. } => Self::from_event(&body),
            GenaiError::StreamParse { serde_error, .. } => Self::garbage(&serde_error.to_string()),
            GenaiError::SerdeJson(error) => Self::garbage(&error.to_string()),
            GenaiError::JsonValueExt(error) => Self::garbage(&error.to_string()),
            other => Self::new(ErrorKind::Invalid, line(&other.to_string()), Fix::None, Again::No),
        }
    }

    fn garbage(cause: &str) -> Self {
        let what = format!("{} in what came", line(cause));
        Self::new(
            ErrorKind::Unavailable,
            what,
            Fix::Say("check that the endpoint speaks this provider's language"),
            Again::No,
        )
    }

    fn from_transport(error: &reqwest::Error, host: &str) -> Self {
        let mut root: &dyn StdError = error;
        while let Some(source) = root.source() {
            root = source;
        }
        if error.is_builder() {
            return Self::new(ErrorKind::Invalid, format!("cannot ask {host}: {root}"), Fix::Key, Again::No);
        }
        if error.is_connect() {
            let what = format!("cannot reach {host}: {root}");
            return Self::new(
                ErrorKind::Unavailable,
                what,
                Fix::Say("check that it runs, and the endpoint"),
                Again::Yes,
            );
        }
        let what = format!("the connection to {host} broke off: {root}");
        Self::new(ErrorKind::Unavailable, what, Fix::Say("ask again"), Again::Yes)
    }

    fn from_status(status: StatusCode, body: &str, headers: &HeaderMap) -> Self {
        let code = status.as_u16();
        let reason = match code {
            529 => "overloaded".into(),
            _ => status.canonical_reason().unwrap_or("unknown status").to_ascii_lowercase(),
        };
        let what = match message(body) {
            Some(message) => format!("{code} {reason}: {message}"),
            None => format!("{code} {reason}"),
        };
        let pause = retry_after(headers);
        let again = pause.map_or(Again::Yes, Again::After);
        match code {
            401 | 403 => Self::new(ErrorKind::Invalid, what, Fix::Key, Again::No),
            404 => Self::new(ErrorKind::NotFound, what, Fix::Say("check the model's name and the endpoint"), Again::No),
            413 => Self::new(ErrorKind::TooLarge, what, Fix::Say("send less"), Again::No),
            // An empty purse fills no sooner for being asked again.
            429 if body.contains("insufficient_quota") => Self::new(ErrorKind::Unavailable, what, Fix::None, Again::No),
            408 | 429 | 500.. => Self::new(ErrorKind::Unavailable, what, Fix::None, again),
            300..=399 => {
                Self::new(ErrorKind::Invalid, what, Fix::Say("set the endpoint to where it points"), Again::No)
            }
            _ => Self::new(ErrorKind::Invalid, what, Fix::None, Again::No),
        }
    }

    /// An error that came as an event of a stream that had begun well.
    fn from_event(body: &Value) -> Self {
        let error = body.get("error").unwrap_or(body);
        let code = error["code"].as_u64().and_then(|code| u16::try_from(code).ok());
        if let Some(status) =
            code.and_then(|code| StatusCode::from_u16(code).ok()).filter(|status| status.as_u16() >= 400)
        {
            return Self::from_status(status, &body.to_string(), &HeaderMap::new());
        }
        let text = message(&body.to_string()).unwrap_or_else(|| line(&body.to_string()));
        match error["type"].as_str() {
            Some("invalid_request_error") => Self::new(ErrorKind::Invalid, text, Fix::None, Again::No),
            _ => Self::said(&text),
        }
    }

    /// The error to hand on.
    pub(super) fn into_error(self, name: &str, key_advice: impl FnOnce() -> String) -> Error {
        let Self { kind, what, fix, again } = self;
        let pause = match again {
            Again::After(pause) => format!("; retry after {}", seconds(pause)),
            _ => String::new(),
        };
        let fix = match fix {
            Fix::None => String::new(),
            Fix::Key => format!("; {}", key_advice()),
            Fix::Say(fix) => format!("; {fix}"),
        };
        Error::new(kind, format!("{name}: {what}{fix}{pause}"))
    }
}

fn seconds(pause: Duration) -> String {
    match pause.subsec_nanos() {
        0 => format!("{} s", pause.as_secs()),
        _ => format!("{:.1} s", pause.as_secs_f64()),
    }
}

/// The pause a provider asks for: in milliseconds where it says so, else in seconds. Dates are not read: no provider
/// here sends one.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// What an error's body says, however its provider wraps it.
fn message(body: &str) -> Option<String> {
    let Ok(value) = serde_json::from_str::<Value>(body) else {
        return Some(line(body)).filter(|text| !text.is_empty());
    };
    let value = value.get(0).unwrap_or(&value);
    let error = value.get("error").unwrap_or(value);
    let found = [error.get("message"), Some(error), value.get("message"), value.get("detail")];
    let text = found.into_iter().flatten().find_map(Value::as_str).map_or_else(|| value.to_string(), Into::into);
    Some(line(&text)).filter(|text| !text.is_empty() && text != "{}" && text != "null")
}

/// A text on one line, cut where nobody reads on.
fn line(text: &str) -> String {
    const LONGEST: usize = 400;
    let mut line = String::new();
    for word in text.split_whitespace() {
        if line.chars().count() + word.chars().count() > LONGEST {
            line.extend(word.chars().take(LONGEST.saturating_sub(line.chars().count())));
            line.push('…');
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_they_are_wrapped() {
        for (body, text) in [
            (r#"{"error":{"message":"no such model"}}"#, Some("no such model")),
            (r#"[{"error":{"code":400,"message":"bad key"}}]"#, Some("bad key")),
            (r#"{"error":"model not found"}"#, Some("model not found")),
            (r#"{"message":"slow  down\n please"}"#, Some("slow down please")),
            (r#"{"detail":"nope"}"#, Some("nope")),
            ("<html>gone</html>", Some("<html>gone</html>")),
            ("", None),
            ("{}", None),
        ] {
            assert_eq!(message(body).as_deref(), text, "{body}");
        }
        assert!(message(&"x".repeat(9000)).unwrap().chars().count() <= 402);
    }

    #[test]
    fn a_pause_is_read_in_seconds_and_milliseconds() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(reqwest::header::HeaderName::from_static(name), value.parse().unwrap())])
        };
        assert_eq!(retry_after(&headers("retry-after", "7")), Some(Duration::from_secs(7)));
        assert_eq!(retry_after(&headers("retry-after-ms", "250")), Some(Duration::from_millis(250)));
        for nonsense in ["-1", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "inf", "1e300"] {
            assert_eq!(retry_after(&headers("retry-after", nonsense)), None, "{nonsense}");
        }
    }
}
