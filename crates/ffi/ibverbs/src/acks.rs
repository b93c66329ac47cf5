//! Events that a program received but did not acknowledge yet. Destroying their object waits for the acknowledgement,
//! as the manual requires: another thread may be about to use the pointer in the event.

use parking_lot::{Condvar, Mutex};

/// Events of one object.
#[derive(Default)]
pub(crate) struct Acks {
    outstanding: Mutex<u64>,
    settled: Condvar,
}

impl Acks {
    /// Counts a delivered event.
    pub(crate) fn reported(&self) {
        *self.outstanding.lock() += 1;
    }

    /// Counts acknowledged events. A surplus is an error of the program, and harmless.
    pub(crate) fn acknowledge(&self, count: u64) {
        let mut outstanding = self.outstanding.lock();
        *outstanding = outstanding.saturating_sub(count);
        if *outstanding == 0 {
            self.settled.notify_all();
        }
    }

    /// Waits until all events are acknowledged.
    pub(crate) fn wait_settled(&self) {
        let mut outstanding = self.outstanding.lock();
        while *outstanding > 0 {
            self.settled.wait(&mut outstanding);
        }
    }
}
