//! Who owns which buffer while the NIC has it.
//!
//! A posted buffer lives here, under the number that its work request carries, until the completion with that number
//! was taken off a completion queue. So it does not matter who drops what meanwhile: the ticket, the queue pair, the
//! task that waited.

use crate::error::Error;
use crate::memory::Buffer;
use crate::pending::{Done, Refused};
use ferroce_nic::lock::Mutex;
use ferroce_proto::Qpn;
use ferroce_proto::verbs::Completion;
use slab::Slab;
use std::sync::Arc;

/// Set in the numbers of work requests whose buffer is in the ledger. Callers may not use it: a completion with a
/// number that somebody made up would give a buffer back that the NIC still uses.
pub(crate) const OWNED: u64 = 1 << 63;

/// Who took the work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    Qp(Qpn),
    Srq(u32),
}

struct Entry {
    serial: u32,
    taker: Taker,
    buffer: Buffer,
    /// Where the buffer goes; `None`: to whoever waits on the completion queue.
    ticket: Option<Arc<Ticket>>,
}

/// All buffers of a device that the NIC has.
#[derive(Default)]
pub(crate) struct Ledger {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    slots: Slab<Entry>,
    serial: u32,
}

impl Ledger {
    /// Takes a buffer over and returns the number for its work request.
    pub(crate) fn enter(&self, buffer: Buffer, taker: Taker, ticket: Option<Arc<Ticket>>) -> u64 {
        let mut entries = self.entries.lock();
        // Tells the users of one slot apart: a late completion of an earlier one must not free the present one.
        entries.serial = entries.serial.wrapping_add(1) & 0x7fff_ffff;
        let serial = entries.serial;
        let slot = entries.slots.insert(Entry { serial, taker, buffer, ticket });
        OWNED | u64::from(serial) << 32 | slot as u64
    }

    fn take(&self, wr_id: u64) -> Option<Entry> {
        let (slot, serial) = ((wr_id & 0xffff_ffff) as usize, (wr_id >> 32) as u32 & 0x7fff_ffff);
        let mut entries = self.entries.lock();
        entries.slots.get(slot).filter(|e| e.serial == serial)?;
        entries.slots.try_remove(slot)
    }

    /// The work request was not posted after all: the buffer goes back to the caller.
    pub(crate) fn refuse(&self, wr_id: u64, error: Error) -> Result<(), Refused> {
        match self.take(wr_id) {
            Some(Entry { buffer, .. }) => Err(Refused { error: error.into(), buffer }),
            // Impossible: nobody else knows the number, and the NIC did not take it.
            None => Ok(()),
        }
    }

    /// Gives a buffer to its ticket, or back to the caller if it has none.
    pub(crate) fn settle(&self, completion: Completion) -> Option<Done> {
        // Unknown: the queue pair was reset, and its waiter has been told.
        let entry = self.take(completion.wr_id)?;
        let done = Done::new(entry.buffer, completion);
        match entry.ticket {
            Some(ticket) => {
                ticket.fill(done);
                None
            }
            None => Some(done),
        }
    }

    /// Drops everything that this taker will never complete. The buffers do not come back: dropping them is what
    /// makes sure that the NIC is done with them.
    pub(crate) fn forget(&self, taker: Taker) {
        let mut entries = self.entries.lock();
        let lost: Vec<usize> =
            entries.slots.iter().filter(|(_, e)| e.taker == taker).map(|(i, _)| i).collect();
        let lost: Vec<Entry> = lost.into_iter().filter_map(|i| entries.slots.try_remove(i)).collect();
        drop(entries);
        for ticket in lost.iter().filter_map(|e| e.ticket.as_ref()) {
            ticket.give_up();
        }
    }
}

/// Where a buffer is handed over to the one who waits for it.
#[derive(Default)]
pub(crate) struct Ticket(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    Waiting,
    Done(Done),
    /// Taken already, or never to come.
    Gone,
}

impl Ticket {
    fn fill(&self, done: Done) {
        *self.0.lock() = State::Done(done);
    }

    fn give_up(&self) {
        *self.0.lock() = State::Gone;
    }

    /// What came of it, once.
    pub(crate) fn redeem(&self) -> Result<Option<Done>, Error> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Waiting => {
                *state = State::Waiting;
                Ok(None)
            }
            State::Done(done) => Ok(Some(done)),
            State::Gone => Err(Error::Gone),
        }
    }
}
