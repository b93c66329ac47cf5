//! What the suite measures, and for how long.

use super::super::measure::{Budget, Limit};
use super::super::params::{ATOMIC_SIZE, MAX_UDP_SIZE};
use super::super::test::{Operation, Test};
use std::time::Duration;

const SIZES: [u64; 11] = [2, 8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];

/// A plan.
pub(crate) struct Plan {
    rounds: u32,
    budget: Budget,
}

impl Plan {
    /// Three rounds, together about 0.4 s per cell: under a minute in all.
    pub(crate) fn full() -> Plan {
        Plan::new(3, 15, 120)
    }

    /// One short round: about ten seconds in all.
    pub(crate) fn quick() -> Plan {
        Plan::new(1, 10, 60)
    }

    fn new(rounds: u32, warm_up_ms: u64, measured_ms: u64) -> Plan {
        let limit = Limit::Time(Duration::from_millis(measured_ms));
        Plan { rounds, budget: Budget { warm_up: Duration::from_millis(warm_up_ms), limit } }
    }

    /// Message sizes.
    pub(crate) fn sizes(&self) -> &'static [u64] {
        &SIZES
    }

    /// How often each cell is measured.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Time of one measurement.
    pub(crate) fn budget(&self) -> Budget {
        self.budget
    }

    /// The tests that exist at a size.
    pub(crate) fn tests(&self, size: u64) -> Vec<Test> {
        let exists = |test: &Test| match test.operation() {
            Operation::Atomic => size == ATOMIC_SIZE,
            Operation::Udp => size <= MAX_UDP_SIZE,
            _ => true,
        };
        Test::ALL.into_iter().filter(exists).collect()
    }

    /// Number of measurements.
    pub(crate) fn steps(&self) -> u64 {
        SIZES.iter().map(|size| self.tests(*size).len() as u64 * u64::from(self.rounds)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_run_stays_under_a_minute() {
        for (plan, longest_s) in [(Plan::full(), 60), (Plan::quick(), 10)] {
            let Limit::Time(measured) = plan.budget().limit else { panic!("the suite measures by time") };
            let sum = (plan.budget().warm_up + measured) * plan.steps() as u32;
            assert!(sum < Duration::from_secs(longest_s), "{sum:?}");
        }
    }

    #[test]
    fn every_test_has_a_place() {
        let plan = Plan::full();
        for test in Test::ALL {
            assert!(plan.sizes().iter().any(|size| plan.tests(*size).contains(&test)), "{}", test.name());
        }
    }
}
