//! Percentiles of many durations in little memory: counts per bucket, each 1/16 of a power of two wide.

use serde::Serialize;
use std::collections::BTreeMap;

/// Bits of a value that a bucket tells apart below the highest.
const PRECISION: u32 = 4;

/// Counted durations.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    buckets: BTreeMap<u16, u64>,
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
        *self.buckets.entry(bucket(ns)).or_default() += 1;
        self.samples += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// The summary; none without samples.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let at = |share: f64| {
            let rank = (share * self.samples as f64).ceil().max(1.0) as u64;
            let mut before = 0;
            let reaches = |(_, count): &(&u16, &u64)| {
                before += **count;
                before >= rank
            };
            let end = self.buckets.iter().find(reaches).map_or(0, |(bucket, _)| last_of(*bucket));
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

/// The bucket of a value: the place of its highest bit, then the bits behind it.
fn bucket(value: u64) -> u16 {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(PRECISION + 1);
    (shift << PRECISION) as u16 + (value >> shift) as u16
}

/// The largest value of a bucket.
fn last_of(bucket: u16) -> u64 {
    let steps = 1 << PRECISION;
    if bucket < 2 * steps {
        return bucket.into();
    }
    let shift = bucket / steps - 1;
    let value = u64::from(bucket - shift * steps);
    ((value + 1) << (shift - 1) << 1).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_rise_and_hold_their_values() {
        let mut last = 0;
        for value in (0..5000).chain((13..64).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1]))
        {
            let bucket = bucket(value);
            assert!(bucket >= last, "{value}");
            last = bucket;
            let end = last_of(bucket);
            assert!(end >= value && end - value <= value / 16, "{value}: {end}");
        }
        assert_eq!(last_of(bucket(u64::MAX)), u64::MAX);
    }

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
