//! Events that a program took but did not acknowledge yet. Destroying their object waits for it, as the manual says:
//! another thread may be about to use the pointer that came with the event.

use parking_lot::{Condvar, Mutex};

/// Events of one object.
#[derive(Default)]
pub(crate) struct Acks {
    outstanding: Mutex<u64>,
    settled: Condvar,
}

impl Acks {
    /// One more was handed out.
    pub(crate) fn reported(&self) {
        *self.outstanding.lock() += 1;
    }

    /// So many were acknowledged. More than were handed out is the program's mistake, and harmless.
    pub(crate) fn acknowledge(&self, count: u64) {
        let mut outstanding = self.outstanding.lock();
        *outstanding = outstanding.saturating_sub(count);
        if *outstanding == 0 {
            self.settled.notify_all();
        }
    }

    /// Waits until all are.
    pub(crate) fn wait_settled(&self) {
        let mut outstanding = self.outstanding.lock();
        while *outstanding > 0 {
            self.settled.wait(&mut outstanding);
        }
    }
}
