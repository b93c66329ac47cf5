//! Congestion control behind one trait. Its input is feedback and time; its output is window, pacing rate and deadline.
//!
//! One file per algorithm. [`Choice`] selects one by the name of a preset and sets its parameters; [`PRESETS`] lists
//! all presets with the publication each one follows. Controllers use integers and the four basic operations of `f64`,
//! which IEEE 754 defines bit by bit, so a run has the same result on every machine.

mod arithmetic;
mod choice;
mod controller;
mod cubic;
mod dcqcn;
mod dctcp;
mod fixed;
mod halving;
mod hpcc;
mod irn;
mod params;
mod powertcp;
mod presets;
mod round;
mod shared;
mod swift;
mod theta;
mod timely;
mod units;
mod vegas;

pub use arithmetic::{cbrt, ln, sqrt};
pub use choice::{BadChoice, Choice};
pub use controller::Controller;
pub use fixed::FixedWindow;
pub use halving::HalvingWindow;
pub use hpcc::MAX_HOPS;
pub use params::{Param, Preset, Value};
pub use presets::PRESETS;
pub use shared::{Share, SharedWindow};
pub use units::{BadNumber, parse_bytes, parse_number, parse_rate, parse_time};

use crate::time::Time;

/// Decides how many bytes one queue pair may have in flight and how fast they leave. The requester reports events; the
/// controller returns [`window`](CongestionControl::window), [`rate`](CongestionControl::rate) and
/// [`deadline`](CongestionControl::deadline).
///
/// A byte is in flight from `on_sent` until `on_ack`, or until `on_loss` or `on_timeout`: the requester then goes back,
/// and reports each retransmission with `on_sent` again. No method allocates.
pub trait CongestionControl {
    /// The congestion window in bytes. With nothing in flight, the requester always sends at least one packet.
    fn window(&self) -> u32;
    /// The pacing rate in bytes per second. `None`: packets leave as fast as the link takes them.
    fn rate(&self) -> Option<u64> {
        None
    }
    /// Payload bytes were sent, including retransmissions.
    fn on_sent(&mut self, bytes: u32);
    /// Bytes were acknowledged.
    fn on_ack(&mut self, feedback: &Feedback<'_>);
    /// A congestion notification packet (CNP) of the peer arrived.
    fn on_cnp(&mut self, now: Time) {
        let _ = now;
    }
    /// The peer reported a gap.
    fn on_loss(&mut self, now: Time);
    /// The peer reported a single missing packet of `bytes` bytes; only that one is retransmitted. Counts as a loss by
    /// default.
    fn on_hole(&mut self, now: Time, bytes: u32) {
        let _ = bytes;
        self.on_loss(now);
    }
    /// The transport timer expired.
    fn on_timeout(&mut self, now: Time);
    /// Nothing is in flight.
    fn on_drained(&mut self) {}
    /// The queue pair was reset: the path state is invalid.
    fn restart(&mut self);
    /// Time at which [`on_deadline`](CongestionControl::on_deadline) is due.
    fn deadline(&self) -> Option<Time> {
        None
    }
    /// The time of [`deadline`](CongestionControl::deadline) has come. Calls before that time change nothing. After a call, the next
    /// deadline is later than `now`: of several that were missed, one counts.
    fn on_deadline(&mut self, now: Time) {
        let _ = now;
    }
    /// What the two ends must provide.
    fn needs(&self) -> Needs {
        Needs::default()
    }
}

/// What an acknowledgement reports.
#[derive(Clone, Copy, Debug)]
pub struct Feedback<'a> {
    /// Time of arrival.
    pub now: Time,
    /// Bytes that this ACK acknowledges for the first time.
    pub acked: u32,
    /// Bytes still in flight after this ACK.
    pub in_flight: u32,
    /// Round-trip time of the acknowledged packet; set if the packet was sent exactly once.
    pub rtt_ns: Option<u64>,
    /// The network marked the acknowledged packet with CE.
    pub marked: bool,
    /// Telemetry of the switches on the way, in the order of the path. Empty where no switch stamps packets.
    pub telemetry: &'a [Hop],
}

impl Feedback<'_> {
    /// An ACK without marks and telemetry.
    pub fn new(now: Time, acked: u32, rtt_ns: Option<u64>) -> Feedback<'static> {
        Feedback { now, acked, in_flight: 0, rtt_ns, marked: false, telemetry: &[] }
    }
}

/// In-band telemetry of one egress port, stamped when the packet left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// Identifies the port. A change means that the packet took another path.
    pub port: u32,
    /// Bytes in the queue behind the packet.
    pub queue: u32,
    /// Rate of the link in bytes per second.
    pub rate: u64,
    /// Bytes that the port has sent so far.
    pub tx_bytes: u64,
    /// Clock of the switch in nanoseconds.
    pub time_ns: u64,
}

/// What a controller needs from the two ends and the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Packets must be ECN-capable, and ACKs must echo the mark.
    pub ecn_echo: bool,
    /// The receiver must acknowledge every packet.
    pub ack_every_packet: bool,
    /// The RTT must be that of the network, without the time that an ACK waits at this host.
    pub rtt: bool,
    /// Switches must stamp telemetry.
    pub telemetry: bool,
    /// Packets must be ECN-capable, and the receiver sends at most one CNP per queue pair in this time.
    pub cnp_interval_ns: Option<u64>,
}

/// Properties of the path that a controller needs before the first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Rate of the sender's link in bytes per second.
    pub line_rate: u64,
    /// Round-trip time without queues.
    pub base_rtt_ns: u64,
    /// Payload of a full packet in bytes.
    pub mtu: u32,
    /// Links from the sender to the receiver.
    pub hops: u32,
}

impl Path {
    /// Bandwidth-delay product in bytes, at least one packet.
    pub fn bdp(&self) -> f64 {
        (self.line_rate as f64 * self.base_rtt_ns as f64 / 1e9).max(f64::from(self.mtu))
    }
}

/// Bytes as a window: rounded down, at most `u32::MAX`.
fn window_of(bytes: f64) -> u32 {
    bytes as u32 // saturates
}
