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

    /// A body that did not come in time.
    pub(super) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, limits::TooSlow.to_string())
    }
}

/// The whole body, if it is JSON and not too large.
pub(super) async fn json_text(request: Request) -> Result<String, Refused> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        let why = "send JSON, with the content type application/json";
        return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    let most = limits::of(&request).body;
    let too_large = || {
        let why = format!("the body is larger than the limit of {most} bytes: send less");
        Refused::new(StatusCode::PAYLOAD_TOO_LARGE, why)
    };
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    // Said before it is sent, it is refused before it is read.
    if announced.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    let bytes = axum::body::to_bytes(request.into_body(), most).await.map_err(|error| {
        let source = std::error::Error::source(&error);
        if limits::is_too_slow(&error) {
            Refused::too_slow()
        } else if source.is_some_and(|source| source.to_string().contains("length limit")) {
            too_large()
        } else {
            Refused::new(StatusCode::BAD_REQUEST, "the body could not be read to its end")
        }
    })?;
    String::from_utf8(bytes.into())
        .map_err(|_| Refused::new(StatusCode::BAD_REQUEST, "the body is not JSON: it is not UTF-8"))
}
