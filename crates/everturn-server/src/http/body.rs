//! Bodies of requests: JSON, UTF-8, not too large, and in time.

use axum::extract::Request;
use axum::http::{StatusCode, header};

use super::limits;

/// A body that is not taken, and why.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) why: String,
}

impl Refused {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    fn too_large(most: usize) -> Self {
        let why = format!("the body is larger than the limit of {most} bytes: send less");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, why)
    }

    /// A body that did not come in time.
    pub(super) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, limits::TooSlow.to_string())
    }
}

/// Refuses a body of another kind, and one that is said to be too large before it is sent. Tells how large it may be.
pub(super) fn expect(request: &Request, kind: &str) -> Result<usize, Refused> {
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let sent = text(header::CONTENT_TYPE).unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !sent.eq_ignore_ascii_case(kind) {
        let why = format!("send it with the content type {kind}");
        return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    let most = limits::of(request).body;
    let announced = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    match announced.is_some_and(|length| length > most as u64) {
        true => Err(Refused::too_large(most)),
        false => Ok(most),
    }
}

/// The whole body, if it is JSON and not too large.
pub(super) async fn json_text(request: Request) -> Result<String, Refused> {
    let most = expect(&request, "application/json")?;
    let bytes = axum::body::to_bytes(request.into_body(), most).await.map_err(|error| {
        let source = std::error::Error::source(&error);
        if limits::is_too_slow(&error) {
            Refused::too_slow()
        } else if source.is_some_and(|source| source.to_string().contains("length limit")) {
            Refused::too_large(most)
        } else {
            Refused::new(StatusCode::BAD_REQUEST, "the body could not be read to its end")
        }
    })?;
    String::from_utf8(bytes.into())
        .map_err(|_| Refused::new(StatusCode::BAD_REQUEST, "the body is not JSON: it is not UTF-8"))
}
