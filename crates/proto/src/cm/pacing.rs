//! How many messages that ask for an answer are on their way at a time.
//!
//! A program may offer ten thousand connections in a loop. Their messages would overrun the peer's socket, and each lost
//! one costs a time-out; so only so many are under way ([`super::Config::max_in_flight`]) and the others wait their turn.
//! A message counts until it is answered, but no longer than to its first repeat: a peer that does not answer must not
//! keep messages to others waiting.

use super::{Cm, CommId, Transmit};
use crate::time::Time;
use crate::wire::cm::CmMessage;

/// Where the message of a connection that asks for an answer stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// There is none, or it does not count any more.
    #[default]
    Free,
    /// It waits its turn.
    Waiting,
    /// It counts.
    InFlight,
}

impl Cm {
    /// Sends a message of connection `id` that is repeated until it is answered, as soon as it is its turn.
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

    /// Sends what is next, if it may go.
    pub(super) fn send_waiting(&mut self) -> Option<Transmit> {
        while self.in_flight < self.config.max_in_flight {
            let id = self.waiting.pop_front()?;
            // Ended before its turn came.
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

    /// The message of `id` does not count any more: answered, overdue, or pointless.
    pub(super) fn landed(&mut self, id: CommId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let was = core::mem::take(&mut connection.pace);
            self.in_flight -= usize::from(was == Pace::InFlight);
        }
    }

    /// From now on nothing waits its turn: the NIC is about to go, and what is not sent now never will be.
    pub fn stop_pacing(&mut self) {
        self.config.max_in_flight = usize::MAX;
    }

    /// Time as of the last call that knew it.
    pub(super) fn at(&mut self, now: Time) {
        self.clock = self.clock.max(now);
    }
}
