//! Events that a program has received and not acknowledged. Destroying their object waits for the acknowledgement, as the
//! manual requires: another thread may still use the pointer in the event.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// How long a program may take to acknowledge before `--explain` reports it.
const MAX_WAIT: Duration = Duration::from_secs(1);

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

    /// Counts acknowledged events. Too many are an error of the program, but harmless.
    pub(crate) fn acknowledge(&self, count: u64) {
        let mut outstanding = self.outstanding.lock();
        *outstanding = outstanding.saturating_sub(count);
        if *outstanding == 0 {
            self.settled.notify_all();
        }
    }

    /// Waits until all events are acknowledged. `verb` destroys the object, `ack` acknowledges.
    pub(crate) fn wait_settled(&self, verb: &str, ack: &str) {
        let mut outstanding = self.outstanding.lock();
        while *outstanding > 0 {
            if !ferroce_nic::log_explains() {
                self.settled.wait(&mut outstanding);
            } else if self.settled.wait_for(&mut outstanding, MAX_WAIT).timed_out() {
                ferroce_nic::log_stall(format_args!(
                    "{verb} waits: {outstanding} events of the object are not acknowledged; call {ack} for each event that was read"
                ));
            }
        }
    }
}
