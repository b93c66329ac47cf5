//! The congestion controller of a queue pair.

use super::{CongestionControl, Feedback, FixedWindow, HalvingWindow, Needs, SharedWindow};
use crate::time::Time;
use alloc::boxed::Box;
use core::fmt;

/// A controller without an indirect call in the common cases.
pub enum Controller {
    /// A fixed window.
    Fixed(FixedWindow),
    /// A window that halves on loss.
    Halving(HalvingWindow),
    /// The same, limited by the budget that all queue pairs of a NIC share.
    Shared(SharedWindow),
    /// Any other controller.
    Boxed(Box<dyn CongestionControl + Send>),
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Controller::Fixed(c) => c.fmt(f),
            Controller::Halving(c) => c.fmt(f),
            Controller::Shared(c) => c.fmt(f),
            Controller::Boxed(c) => write!(f, "Boxed {{ window: {} }}", c.window()),
        }
    }
}

impl From<FixedWindow> for Controller {
    fn from(fixed: FixedWindow) -> Self {
        Controller::Fixed(fixed)
    }
}

impl From<HalvingWindow> for Controller {
    fn from(halving: HalvingWindow) -> Self {
        Controller::Halving(halving)
    }
}

impl From<SharedWindow> for Controller {
    fn from(shared: SharedWindow) -> Self {
        Controller::Shared(shared)
    }
}

/// Dispatches a method to the active controller.
macro_rules! forward {
    ($self:expr, $c:ident => $call:expr) => {
        match $self {
            Controller::Fixed($c) => $call,
            Controller::Halving($c) => $call,
            Controller::Shared($c) => $call,
            Controller::Boxed($c) => $call,
        }
    };
}

impl CongestionControl for Controller {
    #[inline]
    fn window(&self) -> u32 {
        forward!(self, c => c.window())
    }
    #[inline]
    fn on_sent(&mut self, bytes: u32) {
        forward!(self, c => c.on_sent(bytes));
    }
    #[inline]
    fn rate(&self) -> Option<u64> {
        forward!(self, c => c.rate())
    }
    #[inline]
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        forward!(self, c => c.on_ack(feedback));
    }
    fn on_cnp(&mut self, now: Time) {
        forward!(self, c => c.on_cnp(now));
    }
    #[inline]
    fn deadline(&self) -> Option<Time> {
        forward!(self, c => c.deadline())
    }
    fn on_deadline(&mut self, now: Time) {
        forward!(self, c => c.on_deadline(now));
    }
    fn needs(&self) -> Needs {
        forward!(self, c => c.needs())
    }
    fn on_loss(&mut self, now: Time) {
        forward!(self, c => c.on_loss(now));
    }
    fn on_hole(&mut self, now: Time, bytes: u32) {
        forward!(self, c => c.on_hole(now, bytes));
    }
    fn on_timeout(&mut self, now: Time) {
        forward!(self, c => c.on_timeout(now));
    }
    #[inline]
    fn on_drained(&mut self) {
        forward!(self, c => c.on_drained());
    }

    fn restart(&mut self) {
        forward!(self, c => c.restart());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Halving {
        window: u32,
    }
    impl CongestionControl for Halving {
        fn window(&self) -> u32 {
            self.window
        }
        fn on_sent(&mut self, _bytes: u32) {}
        fn on_ack(&mut self, feedback: &Feedback<'_>) {
            self.window += feedback.acked;
        }
        fn on_loss(&mut self, _now: Time) {
            self.window /= 2;
        }
        fn on_hole(&mut self, _now: Time, bytes: u32) {
            self.window -= bytes;
        }
        fn on_timeout(&mut self, _now: Time) {
            self.window = 1;
        }
        fn restart(&mut self) {
            self.window = 100;
        }
    }

    #[test]
    fn a_fixed_window_ignores_losses() {
        let mut fixed = Controller::from(FixedWindow { bytes: 4096 });
        fixed.on_sent(4096);
        fixed.on_ack(&Feedback { marked: true, ..Feedback::new(Time(1), 4096, Some(1)) });
        fixed.on_loss(Time(2));
        fixed.on_hole(Time(2), 4096);
        fixed.on_timeout(Time(3));
        assert_eq!(fixed.window(), 4096);
    }

    #[test]
    fn a_boxed_controller_receives_every_event() {
        let mut boxed = Controller::Boxed(Box::new(Halving { window: 100 }));
        boxed.on_ack(&Feedback::new(Time(0), 100, None));
        assert_eq!(boxed.window(), 200);
        boxed.on_loss(Time(1));
        assert_eq!(boxed.window(), 100);
        boxed.on_hole(Time(2), 10);
        assert_eq!(boxed.window(), 90);
        boxed.on_timeout(Time(2));
        assert_eq!(boxed.window(), 1);
        boxed.restart();
        assert_eq!(boxed.window(), 100);
    }
}
