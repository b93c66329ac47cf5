//! What the suite measures, and for how long.

use super::super::measure::{Budget, Limit};
use super::super::params::{ATOMIC_SIZE, MAX_UDP_SIZE, UDP_STREAM_UNIT};
use super::super::test::{Operation, Test};
use super::headlines;
use std::time::Duration;

/// Message sizes.
pub(super) const SIZES: [u64; 11] =
    [2, 8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];

/// Factor of the rounds for the headlines. The speed of a shared machine changes from second to second by more than
/// the compared figures differ.
const HEADLINE_ROUNDS: u32 = 3;

/// Losses are rare, so a comparison needs time.
const LOSS_TIME: Duration = Duration::from_millis(300);

/// A plan.
pub(crate) struct Plan {
    /// How often bandwidth is compared with and without loss, and least rounds of any other test.
    pub(super) rounds: u32,
    /// Time of one measurement.
    pub(super) budget: Budget,
    /// Queue pairs to connect at once.
    pub(super) queue_pairs: u32,
}

impl Plan {
    /// Three rounds, together about 0.4 s per cell: under a minute in all.
    pub(crate) fn full() -> Plan {
        Plan::new(3, 15, 120, 10_000)
    }

    /// One short round: about ten seconds in all.
    pub(crate) fn quick() -> Plan {
        Plan::new(1, 10, 60, 1000)
    }

    fn new(rounds: u32, warm_up_ms: u64, measured_ms: u64, queue_pairs: u32) -> Plan {
        let limit = Limit::Time(Duration::from_millis(measured_ms));
        let budget = Budget { warm_up: Duration::from_millis(warm_up_ms), limit };
        Plan { rounds, budget, queue_pairs }
    }

    /// How often a test is measured at a size.
    pub(crate) fn rounds(&self, test: Test, size: u64) -> u32 {
        self.rounds * if headlines::compares(test, size) { HEADLINE_ROUNDS } else { 1 }
    }

    /// The tests that exist at a size.
    pub(crate) fn tests(&self, size: u64) -> Vec<Test> {
        let exists = |test: &Test| match test.operation() {
            Operation::Atomic => size == ATOMIC_SIZE,
            Operation::Udp if *test == Test::UdpBw => size.is_multiple_of(UDP_STREAM_UNIT),
            Operation::Udp => size <= MAX_UDP_SIZE,
            _ => true,
        };
        Test::all().filter(exists).collect()
    }

    /// Time of one half of a comparison with and without loss.
    pub(crate) fn loss_budget(&self) -> Budget {
        Budget { warm_up: self.budget.warm_up, limit: Limit::Time(LOSS_TIME) }
    }

    /// Number of measurements of all tests at all sizes.
    pub(crate) fn measurements(&self) -> u64 {
        let of_size =
            |&size: &u64| self.tests(size).into_iter().map(move |test| u64::from(self.rounds(test, size)));
        SIZES.iter().flat_map(of_size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_run_stays_under_a_minute() {
        for (plan, longest_s) in [(Plan::full(), 60), (Plan::quick(), 10)] {
            let Limit::Time(measured) = plan.budget.limit else { panic!("the suite measures by time") };
            let sum = (plan.budget.warm_up + measured) * plan.measurements() as u32
                + 2 * (plan.budget.warm_up + LOSS_TIME) * plan.rounds;
            assert!(sum < Duration::from_secs(longest_s), "{sum:?}");
        }
    }

    #[test]
    fn what_is_compared_is_measured_more_often() {
        let plan = Plan::full();
        assert_eq!((plan.rounds(Test::WriteBw, 1 << 20), plan.rounds(Test::WriteBw, 1 << 10)), (9, 3));
        assert_eq!((plan.rounds(Test::TcpBw, 1 << 20), plan.rounds(Test::ReadBw, 1 << 20)), (9, 3));
        assert_eq!((plan.rounds(Test::SendLat, 8), plan.rounds(Test::SendLat, 64)), (9, 3));
    }

    #[test]
    fn every_test_has_a_place() {
        let plan = Plan::full();
        for test in Test::all() {
            assert!(SIZES.iter().any(|size| plan.tests(*size).contains(&test)), "{}", test.name());
        }
    }
}
