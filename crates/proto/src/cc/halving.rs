//! A window that halves on loss.

use super::params::params;
use super::{CongestionControl, Feedback};
use crate::time::Time;

params! {
    window: Bytes(1048576.0), 1.0, 4294967295.0, "largest window in bytes";
}

/// Lower bound of the window in bytes. Below it, the peer would idle between packets.
const FLOOR_BYTES: u32 = 128 * 1024;
/// Acknowledged bytes per byte of window growth.
const GROWTH_SHARE: u32 = 16;
/// A packet that is retransmitted alone shrinks the window by this many times its size. With the growth, the window
/// keeps its size at one loss in 64 packets and shrinks above that rate.
const HOLE_COSTS: u32 = 4;

/// A window that halves on each loss and then grows slowly up to the configured maximum.
///
/// A lost packet costs everything sent behind it. A large window hides peer delays on a lossless path. At 1 % loss it
/// would make two of three packets retransmissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalvingWindow {
    ceiling: u32,
    window: u32,
    /// Acknowledged bytes that do not yet add a byte of growth.
    rest: u32,
}

impl HalvingWindow {
    /// A window with this maximum in bytes.
    pub const fn new(ceiling: u32) -> HalvingWindow {
        HalvingWindow { ceiling, window: ceiling, rest: 0 }
    }

    fn shrink(&mut self) {
        self.window = (self.window / 2).max(FLOOR_BYTES).min(self.ceiling);
    }
}

impl CongestionControl for HalvingWindow {
    #[inline]
    fn window(&self) -> u32 {
        self.window
    }
    #[inline]
    fn on_sent(&mut self, _bytes: u32) {}
    #[inline]
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        if self.window < self.ceiling {
            let acked = self.rest.saturating_add(feedback.acked);
            self.rest = acked % GROWTH_SHARE;
            self.window = self.window.saturating_add(acked / GROWTH_SHARE).min(self.ceiling);
        }
    }
    fn on_cnp(&mut self, _now: Time) {
        self.shrink();
    }
    fn on_loss(&mut self, _now: Time) {
        self.shrink();
    }
    fn on_hole(&mut self, _now: Time, bytes: u32) {
        let less = self.window.saturating_sub(bytes.saturating_mul(HOLE_COSTS));
        self.window = less.max(FLOOR_BYTES).min(self.ceiling);
    }
    fn on_timeout(&mut self, _now: Time) {
        self.shrink();
    }

    fn restart(&mut self) {
        *self = HalvingWindow::new(self.ceiling);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_halve_the_window_and_acks_restore_it() {
        let mut cc = HalvingWindow::new(1 << 20);
        assert_eq!(cc.window(), 1 << 20);
        cc.on_loss(Time(0));
        assert_eq!(cc.window(), 1 << 19);
        for _ in 0..10 {
            cc.on_timeout(Time(0));
        }
        assert_eq!(cc.window(), FLOOR_BYTES);
        cc.on_ack(&Feedback::new(Time(0), 1 << 16, None));
        assert_eq!(cc.window(), FLOOR_BYTES + (1 << 12));
        cc.on_ack(&Feedback::new(Time(0), u32::MAX, None));
        assert_eq!(cc.window(), 1 << 20);
    }

    #[test]
    fn it_keeps_its_size_at_1_percent_loss_and_shrinks_at_3_percent() {
        for (packets, expected) in [(100, 1 << 20), (30, FLOOR_BYTES)] {
            let mut cc = HalvingWindow::new(1 << 20);
            for _ in 0..1000 {
                cc.on_hole(Time(0), 4096);
                cc.on_ack(&Feedback::new(Time(0), 4096 * packets, None));
            }
            assert!(cc.window().abs_diff(expected) <= 32 * 1024, "{packets}: {}", cc.window());
        }
    }

    #[test]
    fn a_small_window_stays_as_it_is() {
        let mut cc = HalvingWindow::new(4096);
        cc.on_loss(Time(0));
        assert_eq!(cc.window(), 4096);
    }
}
