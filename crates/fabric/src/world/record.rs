//! What a run records: completions, counters, queues and rates over time. Its memory does not grow with the traffic.

use super::WorldConfig;
use super::wire::Port;
use crate::switch::Switch;
use crate::topology::{Routes, Topology};

/// A finished flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// The flow.
    pub flow: u32,
    /// From its start to the last acknowledgement at the sender.
    pub fct_ps: u64,
    /// The same in an empty network.
    pub ideal_ps: u64,
}

impl Finish {
    /// Completion time divided by that in an empty network, at least 1.
    pub fn slowdown(&self) -> f64 {
        (self.fct_ps as f64 / self.ideal_ps as f64).max(1.0)
    }
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events that were handled.
    pub events: u64,
    /// Packets that arrived at a node, hop by hop.
    pub packet_hops: u64,
    /// Flows that started.
    pub started: u64,
    /// Data packets that hosts sent.
    pub data_packets: u64,
    /// Data packets that were retransmissions.
    pub retransmissions: u64,
    /// Retransmission timers that expired.
    pub timeouts: u64,
    /// Reports of gaps.
    pub nacks: u64,
    /// Packets that switches marked.
    pub marks: u64,
    /// Congestion notification packets.
    pub cnps: u64,
    /// PFC frames that stopped a port.
    pub pauses: u64,
    /// Packets dropped for lack of buffer.
    pub buffer_drops: u64,
    /// Packets dropped although PFC had paused: the headroom was too small.
    pub headroom_drops: u64,
    /// Packets that links lost.
    pub lost_packets: u64,
    /// Bytes that hosts sent.
    pub sent_bytes: u64,
    /// Bytes that arrived at hosts.
    pub delivered_bytes: u64,
    /// Bytes that were dropped or lost.
    pub dropped_bytes: u64,
    /// Bytes on wires.
    pub wire_bytes: u64,
}

/// Links between the same two tiers, in one direction.
#[derive(Clone, Debug)]
pub struct LinkClass {
    /// For example `tor→host`.
    pub name: String,
    /// Number of links.
    pub links: u32,
    /// The longest queue of the class at each sample, in bytes.
    pub longest: Vec<u32>,
    /// The mean queue at each sample.
    pub mean: Vec<f32>,
    /// Samples by queue length: bucket n counts lengths of n bits, so below 2^n bytes.
    pub histogram: [u64; 33],
    /// Picoseconds for which links of the class were paused.
    pub paused_ps: u64,
}

/// The state of all links at one time.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Time in picoseconds.
    pub time_ps: u64,
    /// By link of the topology and direction: queue length as 4 · log2(bytes) (0: empty), with the highest bit set
    /// while paused.
    pub links: Vec<u8>,
}

/// Queues and rates over time.
#[derive(Clone, Debug)]
pub struct Samples {
    interval_ps: u64,
    /// Times of the samples, in picoseconds.
    pub times: Vec<u64>,
    /// Links by tier.
    pub classes: Vec<LinkClass>,
    /// Class of each port.
    class_of: Vec<u8>,
    /// Switch and number of each port of a switch.
    place: Vec<Option<(u32, u32)>>,
    /// Bytes per sample of the first flows.
    pub rates: Vec<Vec<u64>>,
    last_acked: Vec<u64>,
    /// The port of each link and direction, for the replay.
    link_ports: Vec<u32>,
    /// The replay.
    pub frames: Vec<Frame>,
    replay: bool,
}

/// Flows whose rate is recorded.
const TRACKED_FLOWS: usize = 64;
/// Most samples; later ones are left out.
const MAX_SAMPLES: usize = 20_000;
/// Most bytes of the replay.
const MAX_REPLAY_BYTES: usize = 4 << 20;

const TIERS: [&str; 4] = ["host", "tor", "agg", "core"];

impl Samples {
    pub(super) fn new(config: &WorldConfig, topology: &Topology, routes: &Routes, flows: usize) -> Samples {
        let adjacent = routes.adjacent();
        let mut classes: Vec<LinkClass> = Vec::new();
        let (mut class_of, mut place, mut first) = (Vec::new(), Vec::new(), Vec::new());
        for (node, ports) in adjacent.iter().enumerate() {
            first.push(class_of.len() as u32);
            for (at, port) in ports.iter().enumerate() {
                let (from, to) = (topology.tier(node as u32), topology.tier(port.node));
                let name = format!("{}→{}", TIERS[usize::from(from)], TIERS[usize::from(to)]);
                let class = classes.iter().position(|class| class.name == name).unwrap_or_else(|| {
                    classes.push(LinkClass {
                        name,
                        links: 0,
                        longest: Vec::new(),
                        mean: Vec::new(),
                        histogram: [0; 33],
                        paused_ps: 0,
                    });
                    classes.len() - 1
                });
                classes[class].links += 1;
                class_of.push(class as u8);
                place.push((node as u32).checked_sub(topology.hosts).map(|switch| (switch, at as u32)));
            }
        }
        let mut seen = vec![0u32; adjacent.len()];
        let mut port_of = |node: u32| {
            let port = first[node as usize] + seen[node as usize];
            seen[node as usize] += 1;
            port
        };
        let link_ports = topology.links.iter().flat_map(|link| [port_of(link.a), port_of(link.b)]).collect();
        Samples {
            interval_ps: config.sample_ps.max(1000),
            times: Vec::new(),
            classes,
            class_of,
            place,
            rates: vec![Vec::new(); flows.min(TRACKED_FLOWS)],
            last_acked: vec![0; flows.min(TRACKED_FLOWS)],
            link_ports,
            frames: Vec::new(),
            replay: config.replay,
        }
    }

    /// Time between two samples.
    pub fn interval_ps(&self) -> u64 {
        self.interval_ps
    }

    /// Whether the limit of samples is reached. Later samples are not recorded.
    pub fn is_full(&self) -> bool {
        self.times.len() >= MAX_SAMPLES
    }

    /// Takes a sample of all queues. Returns `false` if the limit of samples is reached; the caller then skips the rates too.
    pub(super) fn take(&mut self, now: u64, switches: &[Switch], ports: &[Port]) -> bool {
        if self.is_full() {
            return false;
        }
        self.times.push(now);
        let mut sums = vec![(0u32, 0u64); self.classes.len()];
        for class in &mut self.classes {
            class.paused_ps = 0;
        }
        let queue = |place: &Option<(u32, u32)>| {
            place.map_or(0, |(switch, port)| switches[switch as usize].queue_bytes(port))
        };
        for ((place, class), port) in self.place.iter().zip(&self.class_of).zip(ports) {
            let bytes = queue(place);
            let (longest, sum) = &mut sums[usize::from(*class)];
            *longest = (*longest).max(bytes);
            *sum += u64::from(bytes);
            let class = &mut self.classes[usize::from(*class)];
            class.histogram[(32 - bytes.leading_zeros()) as usize] += 1;
            class.paused_ps += port.paused_ps(now);
        }
        for (class, (longest, sum)) in self.classes.iter_mut().zip(sums) {
            class.longest.push(longest);
            class.mean.push(sum as f32 / class.links.max(1) as f32);
        }
        if self.replay && (self.frames.len() + 1) * self.link_ports.len() <= MAX_REPLAY_BYTES {
            let links = self.link_ports.iter().map(|port| {
                let paused = u8::from(ports[*port as usize].is_paused()) << 7;
                octaves(queue(&self.place[*port as usize])) | paused
            });
            self.frames.push(Frame { time_ps: now, links: links.collect() });
        }
        true
    }

    pub(super) fn take_rates(&mut self, acked: impl Fn(u32) -> Option<u64>) {
        for (flow, (rates, last)) in self.rates.iter_mut().zip(&mut self.last_acked).enumerate() {
            let total = acked(flow as u32).unwrap_or(*last);
            rates.push(total.saturating_sub(*last));
            *last = total.max(*last);
        }
    }

    /// Adds the remaining bytes of a tracked flow to the last sample.
    pub(super) fn on_finished(&mut self, flow: u32, bytes: u64) {
        if let (Some(rates), Some(last)) =
            (self.rates.get_mut(flow as usize), self.last_acked.get_mut(flow as usize))
        {
            if let Some(rate) = rates.last_mut() {
                *rate += bytes.saturating_sub(*last);
            }
            *last = bytes;
        }
    }
}

/// A length as 4 · log2(bytes), rounded down; 0 for an empty queue. At most 127.
fn octaves(bytes: u32) -> u8 {
    if bytes == 0 {
        return 0;
    }
    let log = 31 - bytes.leading_zeros();
    let quarter = ((u64::from(bytes) << 2 >> log) & 3) as u8;
    (log as u8 * 4 + quarter).clamp(1, 127)
}
