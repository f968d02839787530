//! Being told that the server stops.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tokio_util::sync::CancellationToken;

/// Fires when the server stops. A turn's stream ends with its turn; one that has no end of its own must go then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopping(CancellationToken);

impl Stopping {
    /// Waits for it.
    pub(super) async fn asked(&self) {
        self.0.cancelled().await;
    }
}

impl From<CancellationToken> for Stopping {
    fn from(token: CancellationToken) -> Self {
        Self(token)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Stopping {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}
