//! The report of a run: slowdown by size, queues by tier, fairness, pauses.

use crate::workload::NEVER;
use crate::world::{Counters, LinkClass, World};
use serde::Serialize;

/// Median and tail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Quantiles {
    /// Of values in rising order, by the nearest rank.
    fn of(sorted: &[f64]) -> Quantiles {
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
        };
        Quantiles { p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

/// Flows of similar size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SizeGroup {
    /// The largest size.
    pub bytes: u64,
    /// Number of flows.
    pub flows: usize,
    /// Their slowdown.
    pub slowdown: Quantiles,
}

/// Flows of one workload.
#[derive(Clone, Debug, Serialize)]
pub struct GroupReport {
    /// Number of the workload in the scenario.
    pub workload: u8,
    /// Flows that are finished.
    pub flows: usize,
    /// From the start of the first to the end of the last of them, in microseconds.
    pub span_us: f64,
    /// Completion time in microseconds.
    pub fct_us: Quantiles,
    /// Mean completion time in microseconds.
    pub mean_fct_us: f64,
    /// Slowdown of all sizes.
    pub slowdown: Quantiles,
    /// Mean slowdown.
    pub mean_slowdown: f64,
    /// Slowdown of flows below 3 kB, below 100 kB, and above 1 MB; none without such flows.
    pub by_class: [Option<SizeGroup>; 3],
    /// Slowdown of 20 groups of equal number, by size.
    pub by_size: Vec<SizeGroup>,
}

/// Links of one tier.
#[derive(Clone, Debug, Serialize)]
pub struct QueueReport {
    /// For example `tor→host`.
    pub links: String,
    /// Number of links.
    pub count: u32,
    /// Queue length in bytes over all links and samples, as powers of two.
    pub bytes: Quantiles,
    /// The longest queue of any sample, in bytes.
    pub longest: u32,
    /// Share of time for which a link was paused.
    pub paused: f64,
}

/// A run in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the run.
    pub name: String,
    /// Congestion control.
    pub control: String,
    /// Simulated time in microseconds.
    pub simulated_us: f64,
    /// Flows that have started.
    pub started: u64,
    /// Flows that are finished.
    pub finished: usize,
    /// Hash of the run: equal on every machine.
    pub hash: String,
    /// Payload bits per second that finished flows received, over the simulated time.
    pub goodput_gbps: f64,
    /// Jain's fairness of the first flows, over the second half of the time in which all of them were active.
    pub jain: Option<f64>,
    /// Mean rate of each of the first flows over that time, in Gb/s.
    pub rates_gbps: Vec<f64>,
    /// The most bytes that a switch held.
    pub most_buffered: u64,
    /// Packets, drops, marks, pauses.
    pub counters: CountersReport,
    /// Flows by workload.
    pub groups: Vec<GroupReport>,
    /// Queues by tier.
    pub queues: Vec<QueueReport>,
}

/// The counters of a report.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CountersReport {
    /// Events that were handled.
    pub events: u64,
    /// Packets times hops.
    pub packet_hops: u64,
    /// Data packets that hosts sent.
    pub data_packets: u64,
    /// Data packets that were retransmissions.
    pub retransmissions: u64,
    /// Retransmission timers that expired.
    pub timeouts: u64,
    /// Packets that switches marked.
    pub marks: u64,
    /// Congestion notification packets.
    pub cnps: u64,
    /// PFC frames that stopped a port.
    pub pauses: u64,
    /// Packets dropped for lack of buffer.
    pub buffer_drops: u64,
    /// Packets dropped although PFC had paused.
    pub headroom_drops: u64,
    /// Packets that links lost.
    pub lost_packets: u64,
}

impl From<&Counters> for CountersReport {
    fn from(counters: &Counters) -> Self {
        CountersReport {
            events: counters.events,
            packet_hops: counters.packet_hops,
            data_packets: counters.data_packets,
            retransmissions: counters.retransmissions,
            timeouts: counters.timeouts,
            marks: counters.marks,
            cnps: counters.cnps,
            pauses: counters.pauses,
            buffer_drops: counters.buffer_drops,
            headroom_drops: counters.headroom_drops,
            lost_packets: counters.lost_packets,
        }
    }
}

/// Jain's fairness index: 1 if all rates are equal, 1/n if only one of n is not zero.
pub fn jain(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

/// Groups of a figure: 5 % of the flows each.
const SIZE_GROUPS: usize = 20;

/// Condenses a run.
pub fn report(name: &str, control: &str, world: &World) -> Report {
    let (jain, rates_gbps) = fairness(world);
    let bytes: u64 = world.finished().iter().map(|done| world.flows()[done.flow as usize].bytes).sum();
    let workloads = world.flows().iter().map(|flow| flow.group).max().unwrap_or(0);
    let now = world.now_ps().max(1);
    Report {
        name: name.to_owned(),
        control: control.to_owned(),
        simulated_us: now as f64 / 1e6,
        started: world.counters().started,
        finished: world.finished().len(),
        hash: format!("{:016x}", world.hash()),
        goodput_gbps: bytes as f64 * 8000.0 / now as f64,
        jain,
        rates_gbps,
        most_buffered: world.most_buffered_bytes(),
        counters: world.counters().into(),
        groups: (0..=workloads).filter_map(|workload| group(world, workload)).collect(),
        queues: world.samples().classes.iter().map(|class| queue(class, world)).collect(),
    }
}

fn group(world: &World, workload: u8) -> Option<GroupReport> {
    let flow = |done: &crate::world::Finish| world.flows()[done.flow as usize];
    let mut done: Vec<_> = world.finished().iter().filter(|done| flow(done).group == workload).collect();
    if done.is_empty() {
        return None;
    }
    done.sort_by_key(|done| (flow(done).bytes, done.flow));
    let size_group = |part: &[&crate::world::Finish]| {
        let mut slowdowns: Vec<f64> = part.iter().map(|done| done.slowdown()).collect();
        slowdowns.sort_by(f64::total_cmp);
        let bytes = part.last().map_or(0, |done| flow(done).bytes);
        SizeGroup { bytes, flows: part.len(), slowdown: Quantiles::of(&slowdowns) }
    };
    let all = size_group(&done);
    let below = |bytes: u64| done.partition_point(|done| flow(done).bytes < bytes);
    let classes = [&done[..below(3000)], &done[..below(100_000)], &done[below(1_000_001)..]];
    let mut times: Vec<f64> = done.iter().map(|done| done.fct_ps as f64 / 1e6).collect();
    times.sort_by(f64::total_cmp);
    let starts = done.iter().map(|done| flow(done).start_ps).filter(|start| *start != NEVER);
    let ends = done.iter().map(|done| flow(done).start_ps + done.fct_ps);
    let span = ends.max().unwrap_or(0) - starts.min().unwrap_or(0);
    let size = done.len().div_ceil(SIZE_GROUPS);
    Some(GroupReport {
        workload,
        flows: done.len(),
        span_us: span as f64 / 1e6,
        fct_us: Quantiles::of(&times),
        mean_fct_us: times.iter().sum::<f64>() / times.len() as f64,
        slowdown: all.slowdown,
        mean_slowdown: done.iter().map(|done| done.slowdown()).sum::<f64>() / done.len() as f64,
        by_class: classes.map(|part| (!part.is_empty()).then(|| size_group(part))),
        by_size: done.chunks(size).map(size_group).collect(),
    })
}

fn queue(class: &LinkClass, world: &World) -> QueueReport {
    let total: u64 = class.histogram.iter().sum();
    let at = |share: f64| {
        let mut left = (share * total as f64).ceil() as u64;
        let bucket = class.histogram.iter().position(|count| {
            let here = left <= *count;
            left = left.saturating_sub(*count);
            here
        });
        bucket.filter(|bits| *bits > 0).map_or(0.0, |bits| (1u64 << bits) as f64)
    };
    let time = world.samples().times.last().copied().unwrap_or(1) as f64 * f64::from(class.links);
    QueueReport {
        links: class.name.clone(),
        count: class.links,
        bytes: Quantiles { p50: at(0.5), p95: at(0.95), p99: at(0.99) },
        longest: class.longest.iter().copied().max().unwrap_or(0),
        paused: class.paused_ps as f64 / time,
    }
}

/// Jain's index and the mean rates over the second half of the samples in which all tracked flows were active.
fn fairness(world: &World) -> (Option<f64>, Vec<f64>) {
    let samples = world.samples();
    let count = samples.times.len();
    if samples.rates.len() < 2 || samples.rates.len() != world.flows().len() {
        return (None, Vec::new());
    }
    let active = |at: &usize| {
        let at_ps = samples.times[*at];
        let starts =
            |flow: &crate::workload::Flow| flow.start_ps.saturating_add(samples.interval_ps()) <= at_ps;
        let ended = |done: &crate::world::Finish| {
            world.flows()[done.flow as usize].start_ps.saturating_add(done.fct_ps) < at_ps
        };
        world.flows().iter().all(starts) && !world.finished().iter().any(ended)
    };
    let common: Vec<usize> = (0..count).filter(active).collect();
    let half = &common[common.len() / 2..];
    if half.is_empty() {
        return (None, Vec::new());
    }
    let seconds = half.len() as f64 * samples.interval_ps() as f64 / 1e12;
    let rate = |rates: &Vec<u64>| half.iter().map(|at| rates[*at]).sum::<u64>() as f64 * 8.0 / seconds / 1e9;
    let rates: Vec<f64> = samples.rates.iter().map(rate).collect();
    (jain(&rates), rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks_and_jain_is_jains() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(Quantiles::of(&values), Quantiles { p50: 50.0, p95: 95.0, p99: 99.0 });
        assert_eq!(Quantiles::of(&[7.0]), Quantiles { p50: 7.0, p95: 7.0, p99: 7.0 });
        assert_eq!(jain(&[2.0, 2.0]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[0.0]), None);
    }
}
