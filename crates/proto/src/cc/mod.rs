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

/// Decides how many bytes one queue pair may have in flight. The requester tells it what happened; it answers with
/// [`window`](CongestionControl::window) and nothing else, so it can neither send nor stop anything itself.
///
/// A byte is in flight from `on_sent` until `on_ack`, or until `on_loss` or `on_timeout` says that the requester goes
/// back and sends from there again (which it reports with `on_sent` once more).
pub trait CongestionControl {
    /// Bytes that may be in flight. The requester always sends at least one packet when nothing is.
    fn window(&self) -> u32;
    /// Payload bytes were handed to the link, for the first time or again.
    fn on_sent(&mut self, now: Time, bytes: u32);
    /// Bytes were acknowledged. `rtt_ns` is there when the acknowledged packet was sent exactly once; `ecn` when the
    /// network marked it.
    fn on_ack(&mut self, now: Time, bytes: u32, rtt_ns: Option<u64>, ecn: bool);
    /// The peer reported a gap.
    fn on_loss(&mut self, now: Time);
    /// The peer reported a single packet of `bytes` missing among others that it has: only that one is sent again. Counts
    /// as any loss, unless the controller knows better.
    fn on_hole(&mut self, now: Time, bytes: u32) {
        let _ = bytes;
        self.on_loss(now);
    }
    /// The transport timer expired.
    fn on_timeout(&mut self, now: Time);
    /// Nothing is in flight any more.
    fn on_drained(&mut self) {}
    /// The queue pair was reset: what was learned about its path no longer counts.
    fn restart(&mut self);
}
