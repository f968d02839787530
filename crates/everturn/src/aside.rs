//! Work on large values, away from the threads that answer everybody.
//!
//! Reading, comparing and packing a megabyte of JSON takes as long as a thousand small requests. On one of the runtime's few
//! threads all of those would wait for it.

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::{Error, Result};

/// From so many bytes on it is worth another thread. Less takes about as long as waking one up.
const LARGE: usize = 64 << 10;

/// Whether working on so many bytes takes long.
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= LARGE
}

/// Does something that takes long on a thread for that.
pub(crate) async fn away<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| Error::internal("work on a large value broke down").with_source(e))?
}

/// Does something with so many bytes in code of a turn that cannot wait. If it takes long, what else this thread would do is
/// left to another.
pub(crate) fn beside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let others_wait =
        || Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_large(bytes) && others_wait() { tokio::task::block_in_place(work) } else { work() }
}
