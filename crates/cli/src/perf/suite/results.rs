//! The results of the suite, as they are written to JSON and read by the table and the report.

use super::super::stats::{Bandwidth, Latency};
use super::super::test::{Operation, Test};
use crate::failure::Failure;
use crate::machine::Machine;
use crate::sizes::format_size;
use serde::Serialize;

/// One test at one size.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cell {
    /// Which test.
    pub(crate) test: Test,
    /// Bytes per message.
    pub(crate) size: u64,
    /// Of a latency test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<Latency>,
    /// Of a bandwidth test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth: Option<Bandwidth>,
    /// Why there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// A comparison worth a sentence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Headline {
    /// What is compared.
    pub(crate) name: String,
    /// The RDMA figure, with its unit.
    pub(crate) measured: String,
    /// The figure it is compared with.
    pub(crate) against: String,
    /// The first divided by the second.
    pub(crate) ratio: f64,
    /// What the ratio should be.
    pub(crate) goal: String,
    /// Whether it is.
    pub(crate) reached: bool,
}

/// Everything that one run found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    /// Version of this layout.
    pub(crate) version: u32,
    /// When the run began.
    pub(crate) date: String,
    /// How long it took.
    pub(crate) duration_s: f64,
    /// Whether each cell was measured for a moment only.
    pub(crate) quick: bool,
    /// Faults that were injected.
    pub(crate) faults: Option<String>,
    /// Where it ran.
    pub(crate) machine: Machine,
    /// The comparisons that matter most.
    pub(crate) headlines: Vec<Headline>,
    /// All figures.
    pub(crate) cells: Vec<Cell>,
}

impl Results {
    /// Puts a run's findings together.
    pub(crate) fn new(
        machine: Machine,
        date: String,
        duration_s: f64,
        quick: bool,
        faults: Option<String>,
        cells: Vec<Cell>,
    ) -> Results {
        let mut results =
            Results { version: 1, date, duration_s, quick, faults, machine, headlines: Vec::new(), cells };
        results.headlines = [
            results.latency_headline(Test::UdpLat, "a bare UDP ping-pong, spinning", 8, 1.5),
            results.latency_headline(Test::TcpLat, "a TCP ping-pong, blocking", 8, 1.0),
            results.bandwidth_headline(1 << 20, 1.0),
        ]
        .into_iter()
        .flatten()
        .collect();
        results
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

    /// How many times as fast as TCP a test is. A READ or atomic is compared with a request and its reply, which is
    /// what a program without RDMA would do instead.
    pub(crate) fn speed_up(&self, test: Test, size: u64) -> Option<f64> {
        let peer = match test.operation() {
            Operation::Tcp => return None,
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

    /// The first cell that failed, as a failure of the run.
    pub(crate) fn first_error(&self) -> Option<Failure> {
        let failed: Vec<&Cell> = self.cells.iter().filter(|cell| cell.error.is_some()).collect();
        let first = failed.first()?;
        let what = format!(
            "{} of {} measurements failed, the first of them {} with {}: {}",
            failed.len(),
            self.cells.len(),
            first.test.name(),
            format_size(first.size),
            first.error.as_deref().unwrap_or_default()
        );
        Some(
            Failure::new(what)
                .advise("FERROCE_LOG=debug ferroce perf explains each completion that is no success"),
        )
    }

    fn latency_headline(&self, against: Test, name: &str, size: u64, most: f64) -> Option<Headline> {
        let median = |test| Some(self.latency(test, size)?.median_ns / 1e3);
        let (measured, other) = (median(Test::SendLat)?, median(against)?);
        let ratio = measured / other;
        Some(Headline {
            name: format!("RC send latency at {} against {name}", format_size(size)),
            measured: format!("{measured:.2} µs"),
            against: format!("{other:.2} µs"),
            ratio,
            goal: format!("at most {most:.1}"),
            reached: ratio <= most,
        })
    }

    fn bandwidth_headline(&self, size: u64, least: f64) -> Option<Headline> {
        let rate = |test| Some(self.bandwidth(test, size)?.gigabytes_per_s);
        let (measured, other) = (rate(Test::WriteBw)?, rate(Test::TcpBw)?);
        let ratio = measured / other;
        Some(Headline {
            name: format!("RC write bandwidth at {} against one TCP stream", format_size(size)),
            measured: format!("{measured:.2} GB/s"),
            against: format!("{other:.2} GB/s"),
            ratio,
            goal: format!("at least {least:.1}"),
            reached: ratio >= least,
        })
    }
}

#[cfg(test)]
pub(crate) mod examples {
    use super::super::plan::Plan;
    use super::*;
    use crate::perf::stats::Histogram;

    /// Made-up results that look like real ones.
    pub(crate) fn results() -> Results {
        let plan = Plan::full();
        let mut cells = Vec::new();
        for &size in plan.sizes() {
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
                    error: None,
                });
            }
        }
        Results::new(Machine::describe(), "2026-01-02 03:04:05 UTC".into(), 42.0, false, None, cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_say_who_wins() {
        let results = examples::results();
        assert_eq!(results.sizes().len(), 11);
        assert!(results.speed_up(Test::SendLat, 8).expect("measured") > 1.4);
        assert!(results.speed_up(Test::WriteBw, 8).expect("measured") > 1.4);
        assert!(results.speed_up(Test::AtomicLat, 8).expect("measured") > 1.4);
        assert_eq!(results.speed_up(Test::TcpLat, 8), None);
        assert_eq!(results.speed_up(Test::AtomicLat, 2), None);
        assert_eq!(results.headlines.len(), 3);
        assert!(results.headlines.iter().all(|headline| headline.reached));
        assert_eq!(results.first_error(), None);
    }

    #[test]
    fn a_failed_cell_is_told() {
        let mut results = examples::results();
        results.cells[3].error = Some("the server failed: no route".into());
        let failure = results.first_error().expect("a failure");
        assert!(failure.what().starts_with("1 of "), "{}", failure.what());
        assert!(failure.what().contains("no route"));
    }
}
