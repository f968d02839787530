//! Frames of a stream that wait for the network: so many of them, and so many bytes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Frames that may wait.
const FRAMES: usize = 64;

/// What they may have together; one that has more waits alone.
const BYTES: u32 = 256 << 10;

/// Where frames go.
#[derive(Clone)]
pub(super) struct Frames {
    queue: mpsc::Sender<(String, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

/// Where they come from.
pub(super) struct Queue(mpsc::Receiver<(String, OwnedSemaphorePermit)>);

pub(super) fn frames() -> (Frames, Queue) {
    let (sender, receiver) = mpsc::channel(FRAMES);
    (Frames { queue: sender, room: Arc::new(Semaphore::new(BYTES as usize)) }, Queue(receiver))
}

impl Frames {
    /// Sends a frame when there is room; whether the stream is still read.
    pub(super) async fn send(&self, frame: String) -> bool {
        let bytes = u32::try_from(frame.len()).unwrap_or(BYTES).min(BYTES);
        let Ok(room) = self.room.clone().acquire_many_owned(bytes).await else { return false };
        self.queue.send((frame, room)).await.is_ok()
    }

    /// Waits until the stream is no longer read.
    pub(super) async fn closed(&self) {
        self.queue.closed().await;
    }
}

impl Queue {
    pub(super) async fn next(&mut self) -> Option<String> {
        self.0.recv().await.map(|(frame, _)| frame)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::task::unconstrained;

    use super::*;

    #[tokio::test]
    async fn few_large_frames_wait_and_many_small_ones() {
        let (sender, mut queue) = frames();
        let send = |bytes: usize| unconstrained(sender.send("x".repeat(bytes))).now_or_never();
        assert_eq!((send(1 << 20), send(1)), (Some(true), None), "a large one waits alone");
        assert_eq!(queue.next().await.map(|frame| frame.len()), Some(1 << 20));
        let small = (0..1000).take_while(|_| send(100) == Some(true)).count();
        assert_eq!(small, FRAMES);
        drop(queue);
        assert_eq!(send(100), Some(false), "nobody takes them");
    }
}
