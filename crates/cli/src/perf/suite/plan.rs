//! What the suite measures, and for how long.

use super::super::measure::{Budget, Limit};
use super::super::params::{ATOMIC_SIZE, MAX_UDP_SIZE, UDP_STREAM_UNIT};
use super::super::rdma::most_connections;
use super::super::test::{Operation, Test};
use super::headlines;
use crate::wire::WireChoice;
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
    /// The wire of the devices.
    pub(super) wire: WireChoice,
    /// Rounds of the comparison with and without loss, and least rounds of any other test.
    pub(super) rounds: u32,
    /// Time of one measurement.
    pub(super) budget: Budget,
    /// Number of queue pairs to connect in the test of very many.
    pub(super) queue_pairs: u32,
    /// What is not measured, and why: one sentence each.
    pub(super) omitted: Vec<String>,
}

impl Plan {
    /// Three rounds, together about 0.4 s per cell: under a minute in all.
    pub(crate) fn full(wire: WireChoice) -> Plan {
        Plan::new(wire, 3, 15, 120, 10_000)
    }

    /// One short round: about ten seconds in all.
    pub(crate) fn quick(wire: WireChoice) -> Plan {
        Plan::new(wire, 1, 10, 60, 1000)
    }

    fn new(wire: WireChoice, rounds: u32, warm_up_ms: u64, measured_ms: u64, wanted: u32) -> Plan {
        let limit = Limit::Time(Duration::from_millis(measured_ms));
        let budget = Budget { warm_up: Duration::from_millis(warm_up_ms), limit };
        let (queue_pairs, omitted) = match wire {
            WireChoice::Roce => (wanted, Vec::new()),
            WireChoice::Iwarp => over_tcp(wanted, most_connections()),
        };
        Plan { wire, rounds, budget, queue_pairs, omitted }
    }

    /// How often a test is measured at a size.
    pub(crate) fn rounds(&self, test: Test, size: u64) -> u32 {
        self.rounds * if headlines::compares(test, size) { HEADLINE_ROUNDS } else { 1 }
    }

    /// The tests that exist at a size.
    pub(crate) fn tests(&self, size: u64) -> Vec<Test> {
        let exists = |test: &Test| match test.operation() {
            // Each wire is compared with the sockets that it uses.
            Operation::Udp if self.wire == WireChoice::Iwarp => false,
            _ if *test == Test::TcpSpinLat => self.wire == WireChoice::Iwarp,
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

/// The number of queue pairs over iWARP, and what is not measured there. The pair is that of [`most_connections`]: the largest number of
/// connections, and the hard limit of descriptors that causes it.
fn over_tcp(wanted: u32, (most, descriptors): (u64, u64)) -> (u32, Vec<String>) {
    let mut omitted = vec![
        "Not measured over iWARP: UDP sockets, since iWARP uses TCP; it is compared with a spinning TCP ping-pong instead.".to_owned(),
        "Not measured over iWARP: loss, since TCP repairs it before iWARP sees it.".to_owned(),
    ];
    let queue_pairs = u32::try_from(most).unwrap_or(u32::MAX).min(wanted);
    if queue_pairs < wanted {
        omitted.push(format!(
            "Connected are {queue_pairs} queue pairs instead of {wanted}: each takes three descriptors, and a process may have \
             {descriptors} (`ulimit -Hn`)."
        ));
    }
    (queue_pairs, omitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_run_stays_under_a_minute() {
        use WireChoice::{Iwarp, Roce};
        for (plan, longest_s) in [
            (Plan::full(Roce), 60),
            (Plan::quick(Roce), 10),
            (Plan::full(Iwarp), 60),
            (Plan::quick(Iwarp), 10),
        ] {
            let Limit::Time(measured) = plan.budget.limit else { panic!("the suite measures by time") };
            let sum = (plan.budget.warm_up + measured) * plan.measurements() as u32
                + 2 * (plan.budget.warm_up + LOSS_TIME) * plan.rounds;
            assert!(sum < Duration::from_secs(longest_s), "{sum:?}");
        }
    }

    #[test]
    fn what_is_compared_is_measured_more_often() {
        let plan = Plan::full(WireChoice::Roce);
        assert_eq!((plan.rounds(Test::WriteBw, 1 << 20), plan.rounds(Test::WriteBw, 1 << 10)), (9, 3));
        assert_eq!((plan.rounds(Test::TcpBw, 1 << 20), plan.rounds(Test::ReadBw, 1 << 20)), (9, 3));
        assert_eq!((plan.rounds(Test::SendLat, 8), plan.rounds(Test::SendLat, 64)), (9, 3));
    }

    #[test]
    fn every_test_has_a_row() {
        let (roce, iwarp) = (Plan::full(WireChoice::Roce), Plan::full(WireChoice::Iwarp));
        let has = |plan: &Plan, test| SIZES.iter().any(|size| plan.tests(*size).contains(&test));
        for test in Test::all() {
            assert_eq!(has(&roce, test), test != Test::TcpSpinLat, "{}", test.name());
            assert_eq!(has(&iwarp, test), test.operation() != Operation::Udp, "{}", test.name());
        }
    }

    #[test]
    fn fewer_connections_are_explained() {
        let (all, omitted) = over_tcp(10_000, (10_000, 30_256));
        assert_eq!((all, omitted.len()), (10_000, 2));
        let (some, omitted) = over_tcp(10_000, (6581, 20_000));
        assert_eq!(some, 6581);
        assert!(
            omitted[2].contains("6581 queue pairs instead of 10000") && omitted[2].contains("20000"),
            "{omitted:?}"
        );
    }
}
