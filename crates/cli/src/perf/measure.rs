//! The loop that all latency tests share, and how long it runs.

use super::stats::{Bandwidth, Histogram};
use crate::failure::Failure;
use std::time::{Duration, Instant};

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Warm-up, which is not measured.
    pub(crate) warm_up: Duration,
    /// When to stop.
    pub(crate) limit: Limit,
}

/// When to stop measuring.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    /// After that many messages (round trips, for latency).
    Messages(u64),
    /// After that time, but not before [`MIN_MESSAGES`] messages.
    Time(Duration),
}

/// Minimum for a meaningful median.
pub(crate) const MIN_MESSAGES: u64 = 5;

impl Limit {
    /// Whether enough was measured.
    #[inline]
    pub(crate) fn is_reached(self, messages: u64, elapsed: Duration) -> bool {
        match self {
            Limit::Messages(most) => messages >= most,
            Limit::Time(longest) => messages >= MIN_MESSAGES && elapsed >= longest,
        }
    }
}

/// The result of one round of a test.
pub(crate) enum Measurement {
    /// Round trips.
    Latency(Histogram),
    /// Amounts and time.
    Bandwidth(Bandwidth),
}

/// Repeats `once` and times each call. The end of one is the start of the next, so that the clock is read once per
/// round trip.
pub(crate) fn time_round_trips(
    budget: Budget,
    mut once: impl FnMut() -> Result<(), Failure>,
) -> Result<Histogram, Failure> {
    let warm_up_end = Instant::now() + budget.warm_up;
    loop {
        once()?;
        if Instant::now() >= warm_up_end {
            break;
        }
    }
    let mut histogram = Histogram::new();
    let start = Instant::now();
    let mut before = start;
    while !budget.limit.is_reached(histogram.samples(), before - start) {
        once()?;
        let now = Instant::now();
        histogram.record((now - before).as_nanos() as u64);
        before = now;
    }
    Ok(histogram)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_kept_exactly() {
        let budget = Budget { warm_up: Duration::ZERO, limit: Limit::Messages(100) };
        let mut calls = 0;
        let histogram = time_round_trips(budget, || {
            calls += 1;
            Ok(())
        });
        assert_eq!(histogram.expect("no failure").samples(), 100);
        assert_eq!(calls, 101);
    }

    #[test]
    fn a_failure_ends_the_loop() {
        let budget = Budget { warm_up: Duration::ZERO, limit: Limit::Time(Duration::from_secs(3600)) };
        let mut left = 10;
        let outcome = time_round_trips(budget, || {
            left -= 1;
            if left == 0 { Err(Failure::new("over")) } else { Ok(()) }
        });
        assert_eq!(outcome.err().map(|failure| failure.what().to_owned()), Some("over".into()));
    }
}
