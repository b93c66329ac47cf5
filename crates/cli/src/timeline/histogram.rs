//! Percentiles of many durations in little memory: counts per bucket, each 1/16 of a power of two wide.

use crate::buckets::{bounds, bucket};
use serde::Serialize;
use std::collections::BTreeMap;

/// Bits below the highest one that select the bucket of a value.
const PRECISION: u32 = 4;

/// Counted durations.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    buckets: BTreeMap<usize, u64>,
    samples: u64,
    max_ns: u64,
}

/// What is reported of a [`Histogram`]; percentiles are at most 6 % too high.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Percentiles {
    pub(super) samples: u64,
    pub(super) p50_ns: u64,
    pub(super) p90_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) max_ns: u64,
}

impl Histogram {
    /// Counts a duration.
    pub(super) fn add(&mut self, ns: u64) {
        *self.buckets.entry(bucket(ns, PRECISION)).or_default() += 1;
        self.samples += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// The summary; none without samples.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let at = |share: f64| {
            let rank = (share * self.samples as f64).ceil().max(1.0) as u64;
            let mut before = 0;
            let reaches = |(_, count): &(&usize, &u64)| {
                before += **count;
                before >= rank
            };
            let end = self.buckets.iter().find(reaches).map_or(0, |(bucket, _)| bounds(*bucket, PRECISION).1);
            end.min(self.max_ns)
        };
        (self.samples > 0).then(|| Percentiles {
            samples: self.samples,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            max_ns: self.max_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_thousand() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentiles(), None);
        (1..=1000).for_each(|n| histogram.add(n * 1000));
        let found = histogram.percentiles().expect("samples");
        for (found, exact) in [(found.p50_ns, 500_000), (found.p90_ns, 900_000), (found.p99_ns, 990_000)] {
            assert!(found >= exact && found <= exact * 107 / 100, "{found} {exact}");
        }
        assert_eq!((found.samples, found.max_ns), (1000, 1_000_000));
    }
}
