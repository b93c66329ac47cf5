//! The comparisons that matter most.

use super::super::test::Test;
use super::results::{Cell, Results};
use crate::sizes::format_size;
use crate::wire::WireChoice;
use serde::Serialize;

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
    /// Whether the goal is reached; `false` if the figures are too noisy.
    pub(crate) reached: bool,
    /// Which way is better.
    pub(crate) better: &'static str,
    /// Why the figures are too noisy, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) noise: Option<String>,
}

/// What the ratio should be.
#[derive(Debug, Clone, Copy)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

/// Size whose latency is compared.
const LATENCY_SIZE: u64 = 8;
/// Size whose bandwidth is compared.
const BANDWIDTH_SIZE: u64 = 1 << 20;

/// An idle connected queue pair should cost no more, in KiB.
const QUEUE_PAIR_KIB: f64 = 8.0;
/// The same for a queue pair of iWARP, which has a TCP connection of its own.
const STREAM_KIB: f64 = 12.0;

/// Whether a test at a size is part of a comparison, and so measured longer.
pub(super) fn compares(test: Test, size: u64) -> bool {
    match test {
        Test::SendLat | Test::UdpLat | Test::TcpLat | Test::TcpSpinLat => size == LATENCY_SIZE,
        Test::WriteBw | Test::TcpBw => size == BANDWIDTH_SIZE,
        _ => false,
    }
}

/// All comparisons with figures.
pub(super) fn of(results: &Results) -> Vec<Headline> {
    let headlines = [
        latency(results, Test::UdpLat, "a bare UDP ping-pong, spinning", Goal::AtMost(1.5)),
        latency(results, Test::TcpSpinLat, "a TCP ping-pong, spinning", Goal::AtMost(1.2)),
        latency(results, Test::TcpLat, "a TCP ping-pong, blocking", Goal::AtMost(1.0)),
        bandwidth(results),
        loss(results),
        memory(results),
        connections(results),
    ];
    headlines.into_iter().flatten().collect()
}

impl Headline {
    fn new(name: String, measured: String, against: String, ratio: f64, goal: Goal) -> Headline {
        let (goal, reached, better) = match goal {
            Goal::AtMost(most) => (format!("at most {most:.2}"), ratio <= most, "lower is better"),
            Goal::AtLeast(least) => (format!("at least {least:.2}"), ratio >= least, "higher is better"),
        };
        Headline { name, measured, against, ratio, goal, reached, better, noise: None }
    }

    /// Adds the first reason why these cells are too noisy. With one, the goal does not count as reached.
    fn with_noise_of(mut self, cells: [Option<&Cell>; 2]) -> Headline {
        self.noise = cells.into_iter().flatten().find_map(Cell::noise);
        self.reached &= self.noise.is_none();
        self
    }

    /// Whether the goal is reached, in words.
    pub(crate) fn verdict(&self) -> &'static str {
        match (&self.noise, self.reached) {
            (Some(_), _) => "too noisy to decide",
            (None, true) => "reached",
            (None, false) => "not reached",
        }
    }
}

fn latency(results: &Results, against: Test, name: &str, goal: Goal) -> Option<Headline> {
    let size = LATENCY_SIZE;
    let median = |test| Some(results.latency(test, size)?.median_ns / 1e3);
    let (measured, other) = (median(Test::SendLat)?, median(against)?);
    let name = format!("RC send latency at {} against {name}", format_size(size));
    let figure = |us: f64| format!("{us:.2} µs");
    let headline = Headline::new(name, figure(measured), figure(other), measured / other, goal);
    Some(headline.with_noise_of([Test::SendLat, against].map(|test| results.cell(test, size))))
}

fn bandwidth(results: &Results) -> Option<Headline> {
    let size = BANDWIDTH_SIZE;
    let rate = |test| Some(results.bandwidth(test, size)?.gigabytes_per_s);
    let (measured, other) = (rate(Test::WriteBw)?, rate(Test::TcpBw)?);
    let name = format!("RC write bandwidth at {} against one TCP stream", format_size(size));
    let goal = match results.mpa_crc {
        None => 1.0,
        Some(false) => 0.95,
        Some(true) => 0.75,
    };
    let goal = Goal::AtLeast(goal);
    let headline = Headline::new(name, gigabytes(measured), gigabytes(other), measured / other, goal);
    Some(headline.with_noise_of([Test::WriteBw, Test::TcpBw].map(|test| results.cell(test, size))))
}

fn loss(results: &Results) -> Option<Headline> {
    let loss = results.loss.as_ref()?;
    let name =
        format!("RC write bandwidth at {} with {} against without", format_size(loss.size), loss.faults);
    let (measured, other) = (loss.with.gigabytes_per_s, loss.without.gigabytes_per_s);
    let goal = Goal::AtLeast(1.0 / 3.0);
    Some(Headline::new(name, gigabytes(measured), gigabytes(other), loss.ratio, goal))
}

fn memory(results: &Results) -> Option<Headline> {
    let found = results.connections.as_ref()?;
    // The maximum over both sides and both ways of counting.
    let measured = found.footprint_bytes.max(found.resident_bytes).max(found.server_resident_bytes);
    let most = if results.wire == WireChoice::Iwarp { STREAM_KIB } else { QUEUE_PAIR_KIB };
    let name = format!("Memory of an idle connected RC queue pair, 16 deep, against {most} KiB");
    let figure = |kib: f64| format!("{kib:.2} KiB");
    let measured = measured / 1024.0;
    Some(Headline::new(name, figure(measured), figure(most), measured / most, Goal::AtMost(1.0)))
}

/// Always there: if the step failed, no queue pair counts as connected.
fn connections(results: &Results) -> Option<Headline> {
    let (name, count) = match &results.connections {
        Some(found) => {
            let times = format!("connected in {:.2} s and used in {:.2} s", found.connect_s, found.traffic_s);
            (format!("RC queue pairs {times}, of those requested"), found.queue_pairs)
        }
        None => ("RC queue pairs connected and used, of those requested".into(), 0),
    };
    let requested = results.requested_queue_pairs;
    let ratio = f64::from(count) / f64::from(requested);
    Some(Headline::new(name, count.to_string(), requested.to_string(), ratio, Goal::AtLeast(1.0)))
}

fn gigabytes(rate: f64) -> String {
    format!("{rate:.2} GB/s")
}
