//! Large bodies, read and written away from the threads that answer everybody.

use axum::http::StatusCode;

use super::body::Refused;

/// From so many bytes on it is worth another thread. Less takes about as long as waking one up.
pub(super) const LARGE: usize = 64 << 10;

/// Does something with so many bytes. If they are many, on a thread for work that takes long.
pub(super) async fn away<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refused> {
    if bytes < LARGE {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "work on a large body broke down");
        Refused {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            why: "internal error: the server's log has more".to_owned(),
        }
    })
}
