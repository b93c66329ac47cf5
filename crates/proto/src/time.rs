//! Protocol time: nanoseconds since an origin that the caller chooses.

use core::ops::Add;

/// A point in time, in nanoseconds. Only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Nanoseconds from `earlier` to `self`, zero if `earlier` is later.
    pub fn since_ns(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Time {
    type Output = Time;
    fn add(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }
}
