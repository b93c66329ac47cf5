//! A window that is smaller while many queue pairs send at once.
//!
//! All that the queue pairs of a NIC have in flight to one peer waits in one buffer there. What they may have together is
//! divided among those that have something in flight; the others cost nothing.

use super::{CongestionControl, HalvingWindow};
use crate::time::Time;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Not less than this for one queue pair, however many there are: a full load of the link.
const LEAST_BYTES: u32 = 64 * 1024;
/// A queue pair with no more than this in flight takes nobody's room. In a ping-pong of small messages, to count it would cost two
/// atomic operations per message.
const LITTLE_BYTES: u32 = 4 * 1024;

/// What the queue pairs of a NIC may have in flight together.
#[derive(Debug)]
pub struct Share {
    most: u32,
    busy: AtomicU32,
}

impl Share {
    /// So many bytes for all.
    pub fn new(most: u32) -> Arc<Share> {
        Arc::new(Share { most, busy: AtomicU32::new(0) })
    }

    /// Queue pairs that have more than a little in flight.
    pub fn busy(&self) -> u32 {
        self.busy.load(Relaxed)
    }

    #[inline]
    fn of_one(&self) -> u32 {
        match self.busy() {
            0 | 1 => self.most,
            many => self.most / many,
        }
        .max(LEAST_BYTES)
    }
}

/// The window of one queue pair: its own, or its part of what all may have, whichever is smaller.
#[derive(Debug)]
pub struct SharedWindow {
    own: HalvingWindow,
    share: Arc<Share>,
    is_busy: bool,
    /// Bytes sent since nothing was in flight.
    sent_bytes: u32,
}

impl SharedWindow {
    /// A queue pair that has nothing in flight.
    pub fn new(own: HalvingWindow, share: Arc<Share>) -> SharedWindow {
        SharedWindow { own, share, is_busy: false, sent_bytes: 0 }
    }
}

impl CongestionControl for SharedWindow {
    #[inline]
    fn window(&self) -> u32 {
        self.own.window().min(self.share.of_one())
    }
    #[inline]
    fn on_sent(&mut self, now: Time, bytes: u32) {
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
        if !self.is_busy && self.sent_bytes > LITTLE_BYTES {
            self.is_busy = true;
            self.share.busy.fetch_add(1, Relaxed);
        }
        self.own.on_sent(now, bytes);
    }
    #[inline]
    fn on_ack(&mut self, now: Time, bytes: u32, rtt_ns: Option<u64>, ecn: bool) {
        self.own.on_ack(now, bytes, rtt_ns, ecn);
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
        self.sent_bytes = 0;
        if self.is_busy {
            self.is_busy = false;
            self.share.busy.fetch_sub(1, Relaxed);
        }
    }

    fn restart(&mut self) {
        self.on_drained();
        self.own.restart();
    }
}

impl Drop for SharedWindow {
    fn drop(&mut self) {
        self.on_drained();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_something_in_flight_counts() {
        let share = Share::new(1 << 20);
        let mut windows: alloc::vec::Vec<_> =
            (0..8).map(|_| SharedWindow::new(HalvingWindow::new(512 * 1024), share.clone())).collect();
        assert_eq!(windows[0].window(), 512 * 1024, "nobody sends");
        for window in &mut windows {
            window.on_sent(Time(0), 4096);
        }
        assert_eq!(share.busy(), 0, "little is nothing");
        for window in &mut windows {
            window.on_sent(Time(0), 4096);
        }
        assert_eq!((share.busy(), windows[0].window()), (8, 128 * 1024));
        windows[0].on_drained();
        windows[0].on_drained();
        windows.truncate(2);
        assert_eq!((share.busy(), windows[0].window()), (1, 512 * 1024));
        let many: alloc::vec::Vec<_> = (0..1000)
            .map(|_| SharedWindow::new(HalvingWindow::new(512 * 1024), share.clone()))
            .map(|mut window| {
                window.on_sent(Time(0), LITTLE_BYTES + 1);
                window
            })
            .collect();
        assert_eq!(many[0].window(), LEAST_BYTES);
    }
}
