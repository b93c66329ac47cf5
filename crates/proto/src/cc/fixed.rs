//! The simplest controller: a window that never changes.

use super::{CongestionControl, Feedback};
use crate::time::Time;

/// A fixed congestion window, independent of loss and ECN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// The window in bytes.
    pub bytes: u32,
}

impl CongestionControl for FixedWindow {
    #[inline]
    fn window(&self) -> u32 {
        self.bytes
    }
    #[inline]
    fn on_sent(&mut self, _bytes: u32) {}
    #[inline]
    fn on_ack(&mut self, _feedback: &Feedback<'_>) {}
    fn on_loss(&mut self, _now: Time) {}
    fn on_hole(&mut self, _now: Time, _bytes: u32) {}
    fn on_timeout(&mut self, _now: Time) {}
    fn restart(&mut self) {}
}
