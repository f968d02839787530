//! How many write at once, and whether a batch waits for them.
//!
//! A batch is what queued up while the one before it was written. Where many write, most of them have just been answered
//! and are about to ask again; waiting a moment for them makes fewer and larger batches, and each batch is a wait for the
//! disk. Who writes alone, or with a few, is never made to wait: a batch that is as large as batches were lately has nobody
//! left to wait for.

use std::time::Duration;

/// Fewer than these in a batch are not many.
const MANY: usize = 8;

/// How long nobody may come before a batch is written.
const PAUSE: Duration = Duration::from_micros(100);

/// How long a batch waits altogether.
const LONGEST: Duration = Duration::from_millis(1);

/// How many write at once, judged by the batches they made.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// The size of a large batch lately: up at once, down slowly.
    lately: f32,
}

impl Crowd {
    /// How long to wait for the next to join a batch of this size that has waited so long, if it should wait at all.
    pub(super) fn patience(&self, batch: usize, waited: Duration) -> Option<Duration> {
        let more = batch >= MANY && (batch as f32) < self.lately;
        (more && waited < LONGEST).then(|| PAUSE.min(LONGEST - waited))
    }

    /// A batch of this size is written.
    pub(super) fn note(&mut self, batch: usize) {
        self.lately = (batch as f32).max(self.lately * 0.9);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Duration = Duration::ZERO;

    fn after(batches: &[usize]) -> Crowd {
        let mut crowd = Crowd::default();
        batches.iter().for_each(|batch| crowd.note(*batch));
        crowd
    }

    #[test]
    fn a_few_writers_never_wait() {
        let crowd = after(&[1, 2, MANY - 1, 64]);
        assert!((0..MANY).all(|batch| crowd.patience(batch, NONE).is_none()));
    }

    #[test]
    fn a_batch_waits_for_as_many_as_there_were() {
        let crowd = after(&[64]);
        assert_eq!(crowd.patience(30, NONE), Some(PAUSE));
        assert_eq!(crowd.patience(64, NONE), None);
    }

    #[test]
    fn a_batch_does_not_wait_for_ever() {
        let crowd = after(&[64]);
        assert_eq!(crowd.patience(30, LONGEST - Duration::from_micros(1)), Some(Duration::from_micros(1)));
        assert_eq!(crowd.patience(30, LONGEST), None);
    }

    #[test]
    fn a_crowd_that_left_is_forgotten() {
        let crowd = after(&[&[64][..], &[9; 30]].concat());
        assert_eq!(crowd.patience(9, NONE), None);
    }
}
