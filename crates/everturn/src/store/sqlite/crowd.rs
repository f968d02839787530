//! How many write at once, and for how many of them a thread waits.
//!
//! A batch is what queued up while the one before it was written. Where many write, most of them have just been answered
//! and are about to ask again; waiting a moment for half of them makes fewer and larger batches, and so fewer waits for the
//! disk. Not for all of them: those who are not waited for make their next records ready meanwhile. Who writes alone, or with a
//! few, is never made to wait.

use std::time::Duration;

use super::inbox::Patience;

/// Fewer than these are not many.
const MANY: usize = 12;

/// How long a batch waits for them.
const LONGEST: Duration = Duration::from_micros(150);

/// How many write at once, judged by those who waited for an answer.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// How many these were lately: up at once, down slowly.
    lately: f32,
}

impl Crowd {
    /// Whether they were many lately.
    pub(super) fn is_many(&self) -> bool {
        self.lately >= MANY as f32
    }

    /// How long to wait for whom before the next batch.
    pub(super) fn patience(&self) -> Patience {
        let wanted = (self.lately as usize / 2).max(1);
        if self.is_many() { Patience { wanted, most: LONGEST } } else { Patience::NONE }
    }

    /// So many wait for an answer. Where there are far fewer than lately, the others have left, and who is left alone must not
    /// wait for them.
    pub(super) fn note(&mut self, waiting: usize) {
        let waiting = waiting as f32;
        self.lately = if waiting * 8.0 < self.lately { waiting } else { waiting.max(self.lately * 0.9) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(crowds: &[usize]) -> Crowd {
        let mut crowd = Crowd::default();
        crowds.iter().for_each(|waiting| crowd.note(*waiting));
        crowd
    }

    #[test]
    fn a_few_writers_never_wait() {
        assert_eq!(after(&[1, 2, MANY - 1]).patience(), Patience::NONE);
    }

    #[test]
    fn a_batch_waits_for_half_of_the_crowd() {
        assert_eq!(after(&[64, 40]).patience().wanted, 57 / 2);
    }

    #[test]
    fn a_crowd_that_left_is_forgotten() {
        assert_eq!(after(&[&[64][..], &[1]].concat()).patience(), Patience::NONE);
    }
}
