//! Latency samples in constant memory, and their summary.

use crate::buckets::{bounds, bucket};
use serde::{Deserialize, Serialize};

/// Log-linear histogram of nanoseconds: 1024 steps per power of two, so any figure is right to 0.1 %, and a run of
/// any length costs the same memory and the same few cycles per sample.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    samples: u64,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

const STEP_BITS: u32 = 10;
/// Longer samples (about five hours) are counted as this long.
const MAX_NS: u64 = (1 << 44) - 1;

impl Histogram {
    /// No samples yet.
    pub(crate) fn new() -> Histogram {
        Histogram {
            counts: vec![0; bucket(MAX_NS, STEP_BITS) + 1],
            samples: 0,
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }

    /// Adds a sample.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        let ns = ns.min(MAX_NS);
        self.counts[bucket(ns, STEP_BITS)] += 1;
        self.samples += 1;
        self.sum_ns += u128::from(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all samples of another round.
    pub(crate) fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.samples += other.samples;
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of samples.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Nearest-rank quantile, `0.0 ..= 1.0`.
    pub(crate) fn quantile_ns(&self, q: f64) -> f64 {
        let rank = ((q * self.samples as f64).ceil() as u64).clamp(1, self.samples.max(1));
        let mut seen = 0;
        for (at, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle_ns(at).clamp(self.min_ns as f64, self.max_ns as f64);
            }
        }
        0.0
    }

    /// Mean without this share at both ends: without preemptions and page faults.
    pub(crate) fn trimmed_mean_ns(&self, share: f64) -> f64 {
        let cut = (share * self.samples as f64) as u64;
        let keep = cut..self.samples - cut;
        let (mut seen, mut sum, mut kept) = (0, 0.0, 0);
        for (at, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let inside = (seen + count).min(keep.end).saturating_sub(seen.max(keep.start));
            sum += inside as f64 * middle_ns(at);
            kept += inside;
            seen += count;
        }
        if kept == 0 { 0.0 } else { sum / kept as f64 }
    }

    /// The figures, each divided by `per`: 2 makes half round trips of round trips.
    pub(crate) fn summary(&self, per: f64) -> Option<Latency> {
        if self.samples == 0 {
            return None;
        }
        // A quantile needs at least one sample beyond it; otherwise it would equal the maximum.
        let tail = |q: f64, needed: u64| (self.samples >= needed).then(|| self.quantile_ns(q) / per);
        Some(Latency {
            samples: self.samples,
            min_ns: self.min_ns as f64 / per,
            median_ns: self.quantile_ns(0.5) / per,
            mean_ns: self.sum_ns as f64 / self.samples as f64 / per,
            trimmed_mean_ns: self.trimmed_mean_ns(0.01) / per,
            p99_ns: tail(0.99, 100),
            p999_ns: tail(0.999, 1000),
            max_ns: self.max_ns as f64 / per,
        })
    }
}

fn middle_ns(bucket: usize) -> f64 {
    let (first, last) = bounds(bucket, STEP_BITS);
    first as f64 + (last - first) as f64 / 2.0
}

/// The latency of one test at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// How many operations were timed.
    pub(crate) samples: u64,
    /// Fastest.
    pub(crate) min_ns: f64,
    /// Half of the operations were at least this fast.
    pub(crate) median_ns: f64,
    /// Arithmetic mean.
    pub(crate) mean_ns: f64,
    /// Mean without the fastest and slowest 1 %.
    pub(crate) trimmed_mean_ns: f64,
    /// 99 of 100 were at least this fast; needs 100 samples.
    pub(crate) p99_ns: Option<f64>,
    /// 999 of 1000 were at least this fast; needs 1000 samples.
    pub(crate) p999_ns: Option<f64>,
    /// Slowest.
    pub(crate) max_ns: f64,
}

/// Amount and time of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bandwidth {
    /// Messages that arrived.
    pub(crate) messages: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// From the first post or write until the arrival of the last was confirmed.
    pub(crate) elapsed_ns: u64,
    /// 10^9 bytes per second.
    pub(crate) gigabytes_per_s: f64,
    /// 10^6 messages per second.
    pub(crate) million_messages_per_s: f64,
    /// Messages that did not arrive, for transports without retransmission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<u64>,
}

impl Bandwidth {
    /// Rates from amounts.
    pub(crate) fn new(messages: u64, bytes: u64, elapsed_ns: u64) -> Bandwidth {
        let ns = elapsed_ns.max(1) as f64;
        Bandwidth {
            messages,
            bytes,
            elapsed_ns,
            gigabytes_per_s: bytes as f64 / ns,
            million_messages_per_s: messages as f64 * 1e3 / ns,
            lost: None,
        }
    }

    /// Adds the transfer in the other direction, measured there over a time of its own.
    pub(crate) fn with_reverse(self, messages: u64, elapsed_ns: u64) -> Bandwidth {
        let share = self.elapsed_ns as f64 / elapsed_ns.max(1) as f64;
        let back = (messages as f64 * share).round() as u64;
        let size = self.bytes.checked_div(self.messages).unwrap_or(0);
        let both = Bandwidth::new(self.messages + back, self.bytes + back * size, self.elapsed_ns);
        Bandwidth { lost: self.lost, ..both }
    }

    /// The sum of what several threads transferred at the same time.
    pub(crate) fn sum(threads: impl IntoIterator<Item = Bandwidth>) -> Option<Bandwidth> {
        threads.into_iter().reduce(|a, b| Bandwidth {
            messages: a.messages + b.messages,
            bytes: a.bytes + b.bytes,
            elapsed_ns: a.elapsed_ns.max(b.elapsed_ns),
            gigabytes_per_s: a.gigabytes_per_s + b.gigabytes_per_s,
            million_messages_per_s: a.million_messages_per_s + b.million_messages_per_s,
            lost: a.lost.zip(b.lost).map(|(a, b)| a + b),
        })
    }

    /// The round with the median rate, which one disturbed round does not change.
    pub(crate) fn median(mut rounds: Vec<Bandwidth>) -> Option<Bandwidth> {
        rounds.sort_by(|a, b| a.million_messages_per_s.total_cmp(&b.million_messages_per_s));
        rounds.get(rounds.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::new();
        samples.into_iter().for_each(|ns| histogram.record(ns));
        histogram
    }

    #[test]
    fn quantiles_are_nearest_rank() {
        let histogram = of(1..=1000);
        assert_eq!(histogram.quantile_ns(0.0), 1.0);
        assert_eq!(histogram.quantile_ns(0.5), 500.0);
        assert_eq!(histogram.quantile_ns(0.99), 990.0);
        assert_eq!(histogram.quantile_ns(0.999), 999.0);
        assert_eq!(histogram.quantile_ns(1.0), 1000.0);
        assert_eq!(of([7]).quantile_ns(0.5), 7.0);
        assert_eq!(Histogram::new().quantile_ns(0.5), 0.0);
    }

    #[test]
    fn trimming_drops_both_ends() {
        let histogram = of((0..98).map(|_| 100).chain([1, 1_000_000]));
        assert_eq!(histogram.trimmed_mean_ns(0.01), 100.0);
        assert_eq!(of([10, 20]).trimmed_mean_ns(0.01), 15.0);
        assert_eq!(Histogram::new().trimmed_mean_ns(0.01), 0.0);
    }

    #[test]
    fn a_tail_needs_samples() {
        assert_eq!(Histogram::new().summary(1.0), None);
        let few = of(1..=99).summary(1.0).expect("samples");
        assert_eq!((few.p99_ns, few.p999_ns), (None, None));
        let many = of(1..=1000).summary(2.0).expect("samples");
        assert_eq!((many.median_ns, many.p99_ns, many.p999_ns), (250.0, Some(495.0), Some(499.5)));
        assert_eq!((many.min_ns, many.max_ns, many.samples), (0.5, 500.0, 1000));
    }

    #[test]
    fn rounds_merge() {
        let mut first = of([10, 20]);
        first.merge(&of([30, u64::MAX]));
        assert_eq!(first.samples(), 4);
        assert_eq!(first.max_ns, MAX_NS);
        assert_eq!(first.quantile_ns(0.75), 30.0);
    }

    #[test]
    fn bandwidth_rates() {
        let bandwidth = Bandwidth::new(1000, 1_000_000, 1_000_000);
        assert_eq!((bandwidth.gigabytes_per_s, bandwidth.million_messages_per_s), (1.0, 1.0));
        assert!(Bandwidth::new(1, 1, 0).gigabytes_per_s.is_finite());
        let both = bandwidth.with_reverse(4000, 2_000_000);
        assert_eq!((both.messages, both.bytes, both.million_messages_per_s), (3000, 3_000_000, 3.0));
        assert_eq!(Bandwidth::new(0, 0, 0).with_reverse(0, 0).messages, 0);
        let rounds = [3, 1, 2].map(|n| Bandwidth::new(n, n, 1)).to_vec();
        assert_eq!(Bandwidth::median(rounds).map(|round| round.messages), Some(2));
        assert_eq!(Bandwidth::median(Vec::new()), None);
    }
}
