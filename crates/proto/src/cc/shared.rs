//! A window that shrinks while many queue pairs send concurrently.
//!
//! The packets of all queue pairs of a NIC to one peer share one buffer there. The budget is divided among the queue
//! pairs with data in flight.

use super::{CongestionControl, Feedback, HalvingWindow, Needs};
use crate::time::Time;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Lower bound of a queue pair's share: one full GSO run.
const MIN_BYTES: u32 = 64 * 1024;
/// A queue pair with at most this many bytes in flight is not counted. In a ping-pong of small messages, counting would
/// cost two atomic operations per message.
const LITTLE_BYTES: u32 = 4 * 1024;

/// The in-flight budget shared by the queue pairs of a NIC.
#[derive(Debug)]
pub struct Share {
    most: u32,
    busy: AtomicU32,
}

impl Share {
    /// Creates a budget of `most` bytes.
    pub fn new(most: u32) -> Arc<Share> {
        Arc::new(Share { most, busy: AtomicU32::new(0) })
    }

    /// Number of queue pairs that are counted.
    pub fn busy(&self) -> u32 {
        self.busy.load(Relaxed)
    }

    #[inline]
    fn of_one(&self) -> u32 {
        match self.busy() {
            0 | 1 => self.most,
            many => self.most / many,
        }
        .max(MIN_BYTES)
    }
}

/// The window of one queue pair: the smaller of its own and its share, at most `most`.
#[derive(Debug)]
pub struct SharedWindow<C = HalvingWindow> {
    own: C,
    most: u32,
    share: Arc<Share>,
    is_busy: bool,
    /// Bytes sent since the queue pair was last idle.
    sent_bytes: u32,
}

impl<C: CongestionControl> SharedWindow<C> {
    /// A queue pair with nothing in flight.
    pub fn new(own: C, most: u32, share: Arc<Share>) -> SharedWindow<C> {
        SharedWindow { own, most, share, is_busy: false, sent_bytes: 0 }
    }

    #[inline]
    fn leave_share(&mut self) {
        self.sent_bytes = 0;
        if self.is_busy {
            self.is_busy = false;
            self.share.busy.fetch_sub(1, Relaxed);
        }
    }
}

impl<C: CongestionControl> CongestionControl for SharedWindow<C> {
    #[inline]
    fn window(&self) -> u32 {
        self.own.window().min(self.most).min(self.share.of_one())
    }
    #[inline]
    fn rate(&self) -> Option<u64> {
        self.own.rate()
    }
    #[inline]
    fn deadline(&self) -> Option<Time> {
        self.own.deadline()
    }
    fn on_deadline(&mut self, now: Time) {
        self.own.on_deadline(now);
    }
    fn needs(&self) -> Needs {
        self.own.needs()
    }
    #[inline]
    fn on_sent(&mut self, bytes: u32) {
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
        if !self.is_busy && self.sent_bytes > LITTLE_BYTES {
            self.is_busy = true;
            self.share.busy.fetch_add(1, Relaxed);
        }
        self.own.on_sent(bytes);
    }
    #[inline]
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        self.own.on_ack(feedback);
    }
    fn on_cnp(&mut self, now: Time) {
        self.own.on_cnp(now);
    }
    fn on_loss(&mut self, now: Time) {
        self.own.on_loss(now);
    }
    fn on_hole(&mut self, now: Time, bytes: u32) {
        self.own.on_hole(now, bytes);
    }
    fn on_timeout(&mut self, now: Time) {
        self.own.on_timeout(now);
    }
    #[inline]
    fn on_drained(&mut self) {
        self.leave_share();
        self.own.on_drained();
    }

    fn restart(&mut self) {
        self.leave_share();
        self.own.restart();
    }
}

impl<C> Drop for SharedWindow<C> {
    fn drop(&mut self) {
        if self.is_busy {
            self.share.busy.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_with_data_in_flight_are_counted() {
        let share = Share::new(1 << 20);
        let mut windows: alloc::vec::Vec<_> = (0..8)
            .map(|_| SharedWindow::new(HalvingWindow::new(512 * 1024), 1 << 20, share.clone()))
            .collect();
        assert_eq!(windows[0].window(), 512 * 1024, "nobody sends");
        for window in &mut windows {
            window.on_sent(4096);
        }
        assert_eq!(share.busy(), 0, "little is nothing");
        for window in &mut windows {
            window.on_sent(4096);
        }
        assert_eq!((share.busy(), windows[0].window()), (8, 128 * 1024));
        windows[0].on_drained();
        windows[0].on_drained();
        windows.truncate(2);
        assert_eq!((share.busy(), windows[0].window()), (1, 512 * 1024));
        let many: alloc::vec::Vec<_> = (0..1000)
            .map(|_| SharedWindow::new(HalvingWindow::new(512 * 1024), 1 << 20, share.clone()))
            .map(|mut window| {
                window.on_sent(LITTLE_BYTES + 1);
                window
            })
            .collect();
        assert_eq!(many[0].window(), MIN_BYTES);
    }
}
