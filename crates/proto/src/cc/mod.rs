//! Congestion control behind one small trait.

mod controller;
mod fixed;
mod halving;
mod shared;

pub use controller::Controller;
pub use fixed::FixedWindow;
pub use halving::HalvingWindow;
pub use shared::{Share, SharedWindow};

use crate::time::Time;

/// Decides how many bytes one queue pair may have in flight, and at which rate they leave. The requester reports events;
/// the controller only returns [`window`](CongestionControl::window) and [`rate`](CongestionControl::rate). It has no timers:
/// state that changes with time is brought up to date when the rate is read.
///
/// A byte is in flight from `on_sent` until `on_ack`, or until `on_loss` or `on_timeout`: the requester then goes back,
/// and reports each retransmission with `on_sent` again.
pub trait CongestionControl {
    /// The congestion window in bytes. With nothing in flight, the requester always sends at least one packet.
    fn window(&self) -> u32;
    /// The rate at which packets leave, in bytes per second, brought up to date to `now`. `None`: as fast as the window
    /// allows. A controller returns either always a rate or never.
    #[inline]
    fn rate(&mut self, now: Time) -> Option<u64> {
        let _ = now;
        None
    }
    /// Payload bytes were sent, including retransmissions.
    fn on_sent(&mut self, bytes: u32);
    /// Bytes were acknowledged. `rtt_ns` is set if the packet was sent exactly once; `ecn` is set if the network marked
    /// it.
    fn on_ack(&mut self, now: Time, bytes: u32, rtt_ns: Option<u64>, ecn: bool);
    /// Shortest time between two CNPs that the responder of this queue pair sends: 50 us, as in the paper on DCQCN
    /// (SIGCOMM 2015).
    fn cnp_interval_ns(&self) -> u64 {
        50_000
    }
    /// The peer reported that a switch marked packets (CNP).
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
    /// Nothing is in flight any more.
    fn on_drained(&mut self) {}
    /// The queue pair was reset: the path state is invalid.
    fn restart(&mut self);
}
