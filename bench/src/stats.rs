//! What many noisy samples say.

use std::time::{Duration, Instant};

/// Samples that are worth something even where each takes long.
const FEW: usize = 20;
/// How long sampling goes on where it could stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// The middle value; of an even number of samples, the mean of the two in the middle.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The mean of all but the slowest tenth. Where a disk is at times ten times slower, a median of few says only which
/// mood prevailed; a mean without the outliers says what a turn costs.
pub(crate) fn typical(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.truncate(samples.len() - samples.len() / 10);
    sorted.iter().sum::<f64>() / sorted.len() as f64
}

/// Two things timed in turns: noise that comes and goes hits both alike, so their ratio outlives it.
#[derive(Debug)]
pub(crate) struct Interleaved {
    subject: Vec<f64>,
    baseline: Vec<f64>,
    since: Instant,
}

impl Interleaved {
    pub(crate) fn start() -> Self {
        Self { subject: Vec::new(), baseline: Vec::new(), since: Instant::now() }
    }

    /// Whether what is missed by far may be left at that.
    pub(crate) fn suffices(&self) -> bool {
        self.subject.len() >= FEW && self.since.elapsed() > PATIENCE
    }

    pub(crate) fn subject(&mut self, took: Duration) {
        self.subject.push(micros(took));
    }

    pub(crate) fn baseline(&mut self, took: Duration) {
        self.baseline.push(micros(took));
    }

    /// How many times as long as the baseline the subject takes.
    pub(crate) fn ratio(&self) -> f64 {
        median(&self.subject) / median(&self.baseline)
    }

    /// Both medians, for progress lines.
    pub(crate) fn medians(&self) -> String {
        format!("{:.0} µs against {:.0} µs", median(&self.subject), median(&self.baseline))
    }
}

pub(crate) fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

pub(crate) fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_tenth_is_not_typical() {
        assert_eq!(typical(&[1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 4.0, 99.0]), 2.0);
        assert!(typical(&[]).is_nan());
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median(&[9.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 3.0, 4.0]), 3.5);
        assert!(median(&[]).is_nan());
    }
}
