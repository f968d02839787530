//! How many streams may be open at once, and when they must end.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use everturn::ErrorKind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::problem::Problem;

/// How many streams may be open unless the server says otherwise.
const MOST: usize = 4096;

/// The room for streams, shared by all of a server's. Put into requests by whoever serves them.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    room: Arc<Semaphore>,
    stopping: CancellationToken,
}

impl Streams {
    /// Room for so many, until the server stops.
    pub(crate) fn new(most: usize, stopping: CancellationToken) -> Self {
        Self { room: Arc::new(Semaphore::new(most)), stopping }
    }

    /// Room for as many as there may be unless somebody says.
    pub(crate) fn until(stopping: CancellationToken) -> Self {
        Self::new(MOST, stopping)
    }

    /// Takes room for one stream.
    pub(super) fn open(&self) -> Result<Open, Problem> {
        let full = || {
            let why = "as many streams are open as the server allows: close one, or try again later";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Unavailable.name(), why)
        };
        let permit = self.room.clone().try_acquire_owned().map_err(|_| full())?;
        Ok(Open { _permit: permit, stopping: self.stopping.clone() })
    }
}

/// Room for one stream, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Open {
    _permit: OwnedSemaphorePermit,
    /// Told when the server stops. A turn's stream ends with its turn; one that has no end of its own must go then.
    pub(super) stopping: CancellationToken,
}

impl<S: Send + Sync> FromRequestParts<S> for Streams {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        static UNSAID: LazyLock<Streams> = LazyLock::new(|| Streams::until(CancellationToken::new()));
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_else(|| UNSAID.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_and_it_is_given_back() {
        let streams = Streams::new(2, CancellationToken::new());
        let (first, _second) = (streams.open().unwrap(), streams.clone().open().unwrap());
        use axum::response::IntoResponse as _;
        let refused = streams.open().unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(axum::http::header::RETRY_AFTER));
        drop(first);
        assert!(streams.open().is_ok());
    }
}
