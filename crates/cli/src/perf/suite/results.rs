//! The results of the suite, as they are written to JSON and read by the table and the report.

use super::super::rdma::Connections;
use super::super::stats::{Bandwidth, Latency};
use super::super::test::{Operation, Test};
use super::headlines::Headline;
use super::loss::Loss;
use super::plan::Plan;
use crate::failure::Failure;
use crate::machine::{Machine, utc_now};
use crate::sizes::format_size;
use crate::wire::WireChoice;
use ferroce::Config;
use serde::Serialize;

/// One test at one size.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cell {
    /// The test.
    pub(crate) test: Test,
    /// Bytes per message.
    pub(crate) size: u64,
    /// The latency; only of a latency test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<Latency>,
    /// The bandwidth; only of a bandwidth test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth: Option<Bandwidth>,
    /// How far its rounds are apart: the range of their figures, divided by the middle one. `None` for a single round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spread: Option<f64>,
    /// Why there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// A cell with a larger spread is too noisy.
const NOISY_SPREAD: f64 = 0.5;
/// A cell whose p99 exceeds the median by this factor is too noisy: another program had the processor.
const NOISY_TAIL: f64 = 100.0;

impl Cell {
    /// Why its figures are too noisy to be believed, if they are. No other function has this rule.
    pub(crate) fn noise(&self) -> Option<String> {
        let what = format!("{} at {}", self.test.name(), format_size(self.size));
        if let Some(spread) = self.spread.filter(|spread| *spread > NOISY_SPREAD) {
            return Some(format!(
                "The rounds of {what} differ by {:.0} % of their median: the machine was busy; measure again when it is quiet.",
                100.0 * spread
            ));
        }
        let latency = self.latency.as_ref()?;
        let p99_ns = latency.p99_ns.filter(|p99| *p99 > NOISY_TAIL * latency.median_ns)?;
        Some(format!(
            "The p99 of {what} is {:.1} ms, {:.0} times the median: the machine was busy; measure again when it is quiet.",
            p99_ns / 1e6,
            p99_ns / latency.median_ns
        ))
    }
}

/// Share of stolen time from which on the figures are doubtful.
const MIN_REPORTED_STEAL: f64 = 0.01;

/// Everything that one run found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    /// Version of this layout.
    pub(crate) version: u32,
    /// When the run began.
    pub(crate) date: String,
    /// How long it took.
    pub(crate) duration_s: f64,
    /// The share of the processors' time that the hypervisor gave to other machines meanwhile.
    pub(crate) stolen: Option<f64>,
    /// Whether each cell was measured only briefly.
    pub(crate) quick: bool,
    /// The wire of the devices.
    pub(crate) wire: WireChoice,
    /// Whether FPDUs had a CRC; only of iWARP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mpa_crc: Option<bool>,
    /// What was not measured, and why.
    pub(crate) omitted: Vec<String>,
    /// Faults that were injected.
    pub(crate) faults: Option<String>,
    /// Where it ran.
    pub(crate) machine: Machine,
    /// The comparisons that matter most.
    pub(crate) headlines: Vec<Headline>,
    /// The number of queue pairs that the step with very many connects.
    #[serde(skip)]
    pub(crate) requested_queue_pairs: u32,
    /// Very many queue pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<Connections>,
    /// Bandwidth with and without loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) loss: Option<Loss>,
    /// Steps other than the cells that failed.
    pub(crate) failures: Vec<String>,
    /// All figures.
    pub(crate) cells: Vec<Cell>,
}

impl Results {
    /// The empty results of a run that begins now, on this machine.
    pub(crate) fn new(plan: &Plan, quick: bool, faults: Option<String>) -> Results {
        let mpa_crc = || Config::from_env().is_ok_and(|config| config.mpa_crc);
        Results {
            wire: plan.wire,
            mpa_crc: (plan.wire == WireChoice::Iwarp).then(mpa_crc),
            omitted: plan.omitted.clone(),
            version: 2,
            date: utc_now(),
            duration_s: 0.0,
            stolen: None,
            quick,
            faults,
            machine: Machine::describe(),
            headlines: Vec::new(),
            requested_queue_pairs: plan.queue_pairs,
            connections: None,
            loss: None,
            failures: Vec::new(),
            cells: Vec::new(),
        }
    }

    /// The result of a step; or `None`, and its failure is recorded.
    pub(crate) fn keep<T>(&mut self, step: &str, outcome: Result<T, Failure>) -> Option<T> {
        outcome.map_err(|failure| self.failures.push(format!("{step}: {}", failure.what()))).ok()
    }

    /// A warning about the machine, if its figures are doubtful.
    pub(crate) fn caution(&self) -> Option<String> {
        let stolen = self.stolen.filter(|share| *share >= MIN_REPORTED_STEAL)?;
        Some(format!(
            "Other machines on the same hardware took {:.0} % of this machine's processor time during the run, which makes rows less comparable.",
            100.0 * stolen
        ))
    }

    /// The wire, for people.
    pub(crate) fn wire_name(&self) -> &'static str {
        match self.mpa_crc {
            None => "RoCEv2 over UDP",
            Some(false) => "iWARP over TCP, without CRC",
            Some(true) => "iWARP over TCP, with CRC",
        }
    }

    /// Message sizes, in order.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.cells.iter().map(|cell| cell.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The cell of a test at a size.
    pub(crate) fn cell(&self, test: Test, size: u64) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.test == test && cell.size == size)
    }

    /// The latency of a test at a size.
    pub(crate) fn latency(&self, test: Test, size: u64) -> Option<&Latency> {
        self.cell(test, size)?.latency.as_ref()
    }

    /// The bandwidth of a test at a size.
    pub(crate) fn bandwidth(&self, test: Test, size: u64) -> Option<&Bandwidth> {
        self.cell(test, size)?.bandwidth.as_ref()
    }

    /// How many times as fast as TCP a test is. A READ or atomic is compared with a TCP request and its reply, which
    /// replace it without RDMA.
    pub(crate) fn speed_up(&self, test: Test, size: u64) -> Option<f64> {
        let peer = match test.operation() {
            Operation::Tcp if test != Test::TcpSpinLat => return None,
            _ if test.is_bandwidth() => Test::TcpBw,
            Operation::Read | Operation::Atomic => Test::TcpRr,
            _ => Test::TcpLat,
        };
        if test.is_bandwidth() {
            let rate = |test| Some(self.bandwidth(test, size)?.million_messages_per_s);
            return Some(rate(test)? / rate(peer)?);
        }
        let median = |test| Some(self.latency(test, size)?.median_ns);
        Some(median(peer)? / median(test)?)
    }

    /// The failures, as one failure of the run.
    pub(crate) fn first_error(&self) -> Option<Failure> {
        let cell = |cell: &Cell| {
            let error = cell.error.as_ref()?;
            Some(format!("{} with {}: {error}", cell.test.name(), format_size(cell.size)))
        };
        let failed: Vec<String> =
            self.cells.iter().filter_map(cell).chain(self.failures.iter().cloned()).collect();
        let what = format!("{} measurements failed, the first of them {}", failed.len(), failed.first()?);
        Some(Failure::new(what).advise("FERROCE_LOG=1 ferroce perf explains each failed completion"))
    }
}

#[cfg(test)]
pub(crate) mod examples {
    use super::super::headlines;
    use super::super::plan::SIZES;
    use super::*;
    use crate::perf::stats::Histogram;

    /// Made-up results that look like real ones.
    pub(crate) fn results() -> Results {
        results_over(WireChoice::Roce)
    }

    /// The same over this wire.
    pub(crate) fn results_over(wire: WireChoice) -> Results {
        let plan = Plan::full(wire);
        let mut cells = Vec::new();
        for size in SIZES {
            for test in plan.tests(size) {
                let overhead_ns = match test.operation() {
                    Operation::Tcp => 15_000,
                    Operation::Udp => 4000,
                    _ => 5500,
                };
                let ns = overhead_ns + if test.is_baseline() { size / 2 } else { size / 3 };
                let mut histogram = Histogram::new();
                (0..2000).for_each(|n| histogram.record(ns + n * n / 1000));
                let bandwidth = Bandwidth::new(1000, 1000 * size, 1000 * (ns / 12));
                cells.push(Cell {
                    test,
                    size,
                    latency: histogram
                        .summary(test.messages_per_round_trip())
                        .filter(|_| !test.is_bandwidth()),
                    bandwidth: test.is_bandwidth().then_some(bandwidth),
                    spread: Some(0.1),
                    error: None,
                });
            }
        }
        let transfer = |gigabytes: u64| Bandwidth::new(1000, 1000 << 20, (1000 << 20) / gigabytes);
        let connections = Connections {
            queue_pairs: 10_000,
            connect_s: 1.5,
            traffic_s: 0.2,
            footprint_bytes: 3000.0,
            resident_bytes: 4000.0,
            server_resident_bytes: 4000.0,
        };
        let mut results = Results {
            date: "2026-01-02 03:04:05 UTC".into(),
            duration_s: 42.0,
            stolen: Some(0.12),
            connections: Some(connections),
            loss: (wire == WireChoice::Roce)
                .then(|| Loss::new("loss=1%".into(), 1 << 20, transfer(6), transfer(3))),
            cells,
            ..Results::new(&plan, false, None)
        };
        results.headlines = headlines::of(&results);
        results
    }
}

#[cfg(test)]
mod tests {
    use super::super::headlines;
    use super::*;

    #[test]
    fn ratios_show_which_is_faster() {
        let results = examples::results();
        assert_eq!(results.sizes().len(), 11);
        assert!(results.speed_up(Test::SendLat, 8).expect("measured") > 1.4);
        assert!(results.speed_up(Test::WriteBw, 8).expect("measured") > 1.4);
        assert!(results.speed_up(Test::AtomicLat, 8).expect("measured") > 1.4);
        assert_eq!(results.speed_up(Test::TcpLat, 8), None);
        assert_eq!(results.speed_up(Test::AtomicLat, 2), None);
        assert_eq!(results.headlines.len(), 6);
        assert!(results.headlines.iter().all(|headline| headline.reached));
        assert_eq!(results.first_error(), None);
    }

    #[test]
    fn queue_pairs_are_compared_with_the_requested_number() {
        let last = |results: &Results| headlines::of(results).pop().expect("a headline");
        let mut results = examples::results();
        results.requested_queue_pairs = 20_000;
        let half = last(&results);
        assert_eq!((half.measured.as_str(), half.against.as_str(), half.reached), ("10000", "20000", false));
        results.connections = None;
        let failed = last(&results);
        assert!(failed.name.starts_with("RC queue pairs") && !failed.reached, "{failed:?}");
    }

    #[test]
    fn iwarp_is_compared_with_tcp() {
        let results = examples::results_over(WireChoice::Iwarp);
        let names: Vec<&str> = results.headlines.iter().map(|headline| headline.name.as_str()).collect();
        assert_eq!(names.len(), 5, "{names:?}");
        assert!(names[0].contains("a TCP ping-pong, spinning"), "{names:?}");
        assert!(results.speed_up(Test::TcpSpinLat, 8).is_some() && results.cell(Test::UdpLat, 8).is_none());
        let crc = Results { mpa_crc: Some(true), ..results.clone() };
        let goals = |results: &Results| {
            headlines::of(results).into_iter().map(|headline| headline.goal).collect::<Vec<_>>()
        };
        assert_eq!(goals(&results)[..3], ["at most 1.20", "at most 1.00", "at least 0.95"]);
        assert_eq!(goals(&crc)[2], "at least 0.75");
    }

    #[test]
    fn stolen_time_is_reported_if_it_matters() {
        let with = |stolen| Results { stolen, ..examples::results() }.caution();
        assert!(with(Some(0.12)).is_some_and(|caution| caution.contains("took 12 %")));
        assert_eq!(with(Some(0.002)), None);
        assert_eq!(with(None), None);
    }

    #[test]
    fn a_failed_cell_is_reported() {
        let mut results = examples::results();
        results.cells[3].error = Some("the server failed: no route".into());
        let failure = results.first_error().expect("a failure");
        assert!(failure.what().starts_with("1 measurements"), "{}", failure.what());
        assert!(failure.what().contains("no route"));
        results.failures.push("qps: no memory".into());
        assert!(results.first_error().expect("a failure").what().starts_with("2 measurements"));
    }
}
