//! Configuration of a world, except topology and flows.

use crate::switch::SwitchConfig;
use crate::topology::{Routes, ShortestPath};
use ferroce_proto::cc::Choice;

/// How lost packets are recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The receiver drops packets behind a gap; the sender goes back to the missing packet. RoCE NICs do so.
    GoBackN,
    /// The receiver keeps packets behind a gap; the sender resends only missing packets. IRN and two ferroce ends do so.
    Selective,
}

/// What runs in the hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostModel {
    /// Light senders and receivers with the controllers of queue pairs.
    #[default]
    Light,
    /// The queue pairs of `ferroce_proto::qp`. They need a path MTU of InfiniBand and carry no telemetry.
    QueuePairs,
}

/// Hosts.
#[derive(Clone, Copy, Debug)]
pub struct HostConfig {
    /// What runs in them.
    pub model: HostModel,
    /// Payload of a full packet in bytes.
    pub mtu: u32,
    /// Bytes that the wire adds to each data packet.
    pub header: u32,
    /// An acknowledgement or CNP on the wire.
    pub ack: u32,
    /// Bytes that telemetry adds to each data packet, if the controller needs it.
    pub telemetry: u32,
    /// How light hosts recover lost packets.
    pub recovery: Recovery,
    /// Packets per acknowledgement, unless the controller needs one for each.
    pub ack_every: u32,
    /// Retransmission time-out.
    pub rto_ps: u64,
    /// The same with fewer than three packets in flight.
    pub rto_low_ps: u64,
    /// Go-back-N: shortest time between two NAKs for the same gap.
    pub nack_interval_ps: u64,
    /// Selective repeat: a packet counts as lost when one that was sent this many packets later has arrived.
    pub reorder: u32,
    /// Priority of acknowledgements and CNPs; 0 is served first and never paused.
    pub ack_priority: u8,
}

/// A world.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Every switch; its `ports` are those of the topology.
    pub switch: SwitchConfig,
    /// Every host.
    pub host: HostConfig,
    /// The congestion control of every flow.
    pub control: Choice,
    /// The base RTT for all controllers; the default is the largest of all pairs of hosts.
    pub base_rtt_ns: Option<u64>,
    /// Probability that a link loses a packet.
    pub loss: f64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Time between two samples of queues and rates.
    pub sample_ps: u64,
    /// Keep the queue of every link at every sample, for a replay.
    pub replay: bool,
}

/// Most packets of a message: sequence numbers have 32 bits.
pub const MAX_PACKETS: u64 = 1 << 31;

impl HostConfig {
    /// Packets of a message. Scenarios refuse messages of more than [`MAX_PACKETS`].
    pub fn packets(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(u64::from(self.mtu))).unwrap_or(u32::MAX)
    }

    /// Payload of the last packet of a message.
    pub fn last_payload(&self, bytes: u64) -> u32 {
        ((bytes - 1) % u64::from(self.mtu)) as u32 + 1
    }

    /// Picoseconds from the first byte to the last acknowledgement at the sender, in an empty network, at line rate,
    /// without telemetry: all but the last packet at the slowest link, then the last packet through all links, and its
    /// acknowledgement back.
    pub fn ideal_ps(&self, path: &ShortestPath, bytes: u64) -> u64 {
        let before = u64::from(self.packets(bytes) - 1) * u64::from(self.mtu + self.header);
        let at_bottleneck = u128::from(before) * 8_000_000_000_000 / u128::from(path.bottleneck());
        let last = path.transit_ps(self.last_payload(bytes) + self.header);
        at_bottleneck as u64 + last + path.transit_ps(self.ack)
    }

    /// Round-trip time of a full packet in an empty network.
    pub fn base_rtt_ns(&self, path: &ShortestPath) -> u64 {
        (path.transit_ps(self.mtu + self.header) + path.transit_ps(self.ack)).div_ceil(1000)
    }
}

/// Fewest hosts whose pairs are searched for the largest base RTT; smaller fabrics are searched completely.
const SEARCHED_HOSTS: u32 = 32;

pub(super) fn largest_base_rtt_ns(host: &HostConfig, routes: &Routes, hosts: u32) -> u64 {
    let step = (hosts / SEARCHED_HOSTS).max(1) as usize;
    let pairs =
        (0..hosts).step_by(step).flat_map(|a| (0..hosts).filter(move |b| *b != a).map(move |b| (a, b)));
    pairs.map(|(a, b)| host.base_rtt_ns(&routes.shortest_path(a, b))).max().unwrap_or(1)
}
