//! Limits the requests in flight.
//!
//! An application may connect ten thousand times in a loop. The messages would overflow the peer's socket, and each
//! loss costs a timeout. At most [`super::Config::max_in_flight`] requests are in flight; the others wait in a queue. A
//! request counts until it is answered or first retransmitted, so an unresponsive peer does not block messages to
//! others.

use super::{Cm, CommId, Transmit};
use crate::time::Time;
use crate::wire::cm::CmMessage;

/// State of a connection's request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// There is none, or it does not count.
    #[default]
    Free,
    /// It waits in the queue.
    Waiting,
    /// It is in flight.
    InFlight,
}

impl Cm {
    /// Sends or queues a message of connection `id` that is retransmitted until it is answered.
    pub(super) fn ask(&mut self, id: CommId, attr_mod: u32, message: CmMessage) {
        self.landed(id);
        self.prepare(id, attr_mod, message);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.pace = Pace::Waiting;
        connection.asked = self.clock;
        connection.resend = None;
        self.disarm(id);
        self.waiting.push_back(id);
    }

    /// Sends the next queued messages within the limit.
    pub(super) fn send_waiting(&mut self) -> Option<Transmit> {
        while self.in_flight < self.config.max_in_flight {
            let id = self.waiting.pop_front()?;
            // The connection ended while its message was queued.
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if connection.pace != Pace::Waiting {
                continue;
            }
            connection.pace = Pace::InFlight;
            self.counters.paced += u64::from(self.clock > connection.asked);
            self.in_flight += 1;
            let Some(mad) = connection.last.clone() else { continue };
            let route = connection.path.route();
            self.expect_answer(id, self.clock);
            return Some(Transmit { route, mad, is_repeat: false });
        }
        None
    }

    /// Stops counting the message of `id`: it is answered, overdue, or obsolete.
    pub(super) fn landed(&mut self, id: CommId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let was = core::mem::take(&mut connection.pace);
            self.in_flight -= usize::from(was == Pace::InFlight);
        }
    }

    /// Disables the limit: the NIC shuts down and must send everything immediately.
    pub fn stop_pacing(&mut self) {
        self.config.max_in_flight = usize::MAX;
    }

    /// Time of the last call that passed it.
    pub(super) fn at(&mut self, now: Time) {
        self.clock = self.clock.max(now);
    }
}
