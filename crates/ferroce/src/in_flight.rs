//! Buffers that the NIC owns: posted and not yet completed.
//!
//! A posted buffer stays here until the completion of its work request is taken off a completion queue. The `wr_id` of the
//! work request is the key. Dropping the [`Pending`](crate::Pending), the queue pair or the waiting task therefore never
//! frees memory that the NIC still uses.

use crate::device::Device;
use crate::error::Error;
use crate::memory::Buffer;
use crate::pending::{Done, Refused};
use ferroce_nic::lock::Mutex;
use ferroce_proto::Qpn;
use ferroce_proto::verbs::Completion;
use slab::Slab;
use std::sync::Arc;

/// Bit of the `wr_id` of work requests that own a buffer. Callers may not set it: a completion with an invented `wr_id`
/// would free a buffer that the NIC still uses.
pub(crate) const OWNED: u64 = 1 << 63;

/// Whether a completion is of a work request that owns a buffer.
pub(crate) fn is_owned(completion: &Completion) -> bool {
    completion.wr_id & OWNED != 0
}

/// The queue that a buffer is posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Qp(Qpn),
    Srq(u32),
}

struct Entry {
    serial: u32,
    queue: Queue,
    buffer: Buffer,
    /// Receives the outcome. `None` for a shared receive, whose outcome goes to any waiter of the completion queue.
    outcome: Option<Arc<OutcomeCell>>,
}

/// All buffers of a device that the NIC owns.
#[derive(Default)]
pub(crate) struct InFlight {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    slots: Slab<Entry>,
    serial: u32,
}

impl InFlight {
    /// Stores a buffer and returns the `wr_id` for its work request.
    fn add(&self, buffer: Buffer, queue: Queue, outcome: Option<Arc<OutcomeCell>>) -> u64 {
        let mut entries = self.entries.lock();
        // Distinguishes successive users of a slot: a late completion of an earlier one must not free the current one.
        entries.serial = entries.serial.wrapping_add(1) & 0x7fff_ffff;
        let serial = entries.serial;
        let slot = entries.slots.insert(Entry { serial, queue, buffer, outcome });
        OWNED | u64::from(serial) << 32 | slot as u64
    }

    fn remove(&self, wr_id: u64) -> Option<Entry> {
        let (slot, serial) = ((wr_id & 0xffff_ffff) as usize, (wr_id >> 32) as u32 & 0x7fff_ffff);
        let mut entries = self.entries.lock();
        entries.slots.get(slot).filter(|e| e.serial == serial)?;
        entries.slots.try_remove(slot)
    }

    /// Returns the buffer of a work request that the NIC refused.
    fn take_back(&self, wr_id: u64, error: Error) -> Result<(), Refused> {
        match self.remove(wr_id) {
            Some(Entry { buffer, .. }) => Err(Refused { error: error.into(), buffer }),
            // Unreachable: the NIC refused the work request, so nothing else has removed the entry.
            None => Ok(()),
        }
    }

    /// Moves a buffer to its waiter, or returns it if it has none.
    pub(crate) fn complete(&self, completion: Completion) -> Option<Done> {
        // No entry: the queue pair was reset, and `discard` closed the outcome.
        let entry = self.remove(completion.wr_id)?;
        let done = Done::new(entry.buffer, completion);
        match entry.outcome {
            Some(outcome) => {
                outcome.set(done);
                None
            }
            None => Some(done),
        }
    }

    /// Drops all buffers of a queue that was destroyed or reset. Dropping a buffer deregisters it, which waits for accesses
    /// of the NIC in progress.
    pub(crate) fn discard(&self, queue: Queue) {
        let mut entries = self.entries.lock();
        let lost: Vec<usize> =
            entries.slots.iter().filter(|(_, e)| e.queue == queue).map(|(i, _)| i).collect();
        let lost: Vec<Entry> = lost.into_iter().filter_map(|i| entries.slots.try_remove(i)).collect();
        drop(entries);
        for outcome in lost.iter().filter_map(|e| e.outcome.as_ref()) {
            outcome.close();
        }
    }
}

impl Device {
    /// Moves a buffer to the NIC and posts its work request under the given `wr_id`. A refused post returns the buffer.
    pub(crate) fn post_owned(
        &self,
        verb: &'static str,
        buffer: Buffer,
        queue: Queue,
        outcome: Option<Arc<OutcomeCell>>,
        post: impl FnOnce(u64) -> Result<(), (usize, ferroce_nic::Error)>,
    ) -> Result<(), Refused> {
        if let Err(error) = self.check_ours(verb) {
            return Err(Refused { error: error.into(), buffer });
        }
        let wr_id = self.in_flight().add(buffer, queue, outcome);
        post(wr_id).or_else(|refused| self.in_flight().take_back(wr_id, Error::in_post(verb)(refused)))
    }
}

/// Passes the outcome of one operation to its waiter.
#[derive(Default)]
pub(crate) struct OutcomeCell(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    Waiting,
    Done(Done),
    /// Taken, or the queue pair is gone.
    Closed,
}

impl OutcomeCell {
    fn set(&self, done: Done) {
        *self.0.lock() = State::Done(done);
    }

    fn close(&self) {
        *self.0.lock() = State::Closed;
    }

    /// The outcome, once.
    pub(crate) fn take(&self) -> Result<Option<Done>, Error> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Waiting => {
                *state = State::Waiting;
                Ok(None)
            }
            State::Done(done) => Ok(Some(done)),
            State::Closed => Err(Error::Gone),
        }
    }
}
