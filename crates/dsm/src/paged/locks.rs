//! Locks: a ticket word at the lock's home, and next to it a log of notices: the pages written under the lock.
//!
//! Acquiring a lock costs one round trip: take a ticket and read the log. The last holder skips the log. A release without waiters
//! is posted and not waited for; the word then lets the next process enter by itself. A waiter writes its rank into the slot of
//! its ticket, polls its own memory, and now and then reads the word. After contention, the releasing process reads the rank of
//! the next waiter and writes the grant there. No code runs at the home.
//!
//! The upper half of the word counts tickets. Only the holder changes the lower half: twice the ticket that is served,
//! plus one if its owner may enter by itself.

use super::Core;
use super::layout::LOCK_NOTICES;
use crate::coherence::{Notice, Notices};
use crate::error::Error;
use crate::futex::{SpinLimit, acquire, release};
use crate::transport::Op;
use parking_lot::Mutex;
use std::cmp;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Offsets of the numbers in a lock's copy.
const EPOCH: usize = 0;
const START: usize = 8;
const NEXT: usize = 16;
const NOTICES: usize = 24;

/// Marks a slot or a grant as filled.
const FILLED: u64 = 1 << 63;

/// The lower half of the word while a ticket is served.
fn serving(ticket: u32, by_itself: bool) -> u32 {
    ticket << 1 | u32::from(by_itself)
}

/// Releases with a direct grant after contention was seen.
const DIRECT_GRANTS: u8 = 16;
/// How long a waiter polls for the grant before it reads the word at the home; doubled each time, up to the maximum.
const GRANT_POLL: Duration = Duration::from_micros(30);
const MAX_GRANT_POLL: Duration = Duration::from_millis(2);

pub(super) struct Locks {
    /// Serialise the threads of this process before they access the home.
    gates: Vec<AtomicU32>,
    seen: Mutex<HashMap<u32, LockState>>,
}

/// What this process has read of a lock's log.
#[derive(Debug, Clone, Copy, Default)]
struct LockState {
    epoch: u64,
    /// Notices from this number on are new.
    next: u64,
    /// Our last ticket, and the lower half of the word while it is served.
    ticket: u32,
    serving: u32,
    /// The lock was acquired before, so `ticket` is valid.
    taken: bool,
    /// This process was the holder the last two times, so its copy of the log is likely to be current.
    ours: bool,
    /// Remaining releases with a direct grant.
    direct_grants: u8,
    /// It was released without waiting for the reply.
    unacknowledged_release: bool,
}

impl Locks {
    pub(super) fn new(count: u32) -> Self {
        Self { gates: (0..count).map(|_| AtomicU32::new(0)).collect(), seen: Mutex::default() }
    }
}

impl Core {
    pub(super) fn lock(&self, id: u32) -> Result<(), Error> {
        let gate = &self.locks.gates[id as usize];
        acquire(gate, SpinLimit::brief());
        // The other threads of this process must not wait at the gate indefinitely: they get the error, too.
        self.lock_inside(id).inspect_err(|_| release(gate))
    }

    /// The caller has entered the gate.
    fn lock_inside(&self, id: u32) -> Result<(), Error> {
        self.take_lock(id)?;
        let epoch = self.barriers.lock().epoch;
        let received = self.read_log(id, epoch);
        let mut state = self.state.lock();
        let steps = state.machine.acquire(id, &received);
        self.executor.count_losses(&steps, 0);
        self.executor.run(&mut state, steps)
    }

    /// Returns when this process holds the lock and has a copy of its log.
    fn take_lock(&self, id: u32) -> Result<(), Error> {
        let home = self.layout.lock_home(id);
        let before = self.locks.seen.lock().get(&id).copied().unwrap_or_default();
        let take_ticket =
            Op::FetchAdd { remote: self.layout.lock_word(id), add: 1 << 32, old: self.layout.ticket(id) };
        if before.ours {
            self.peers.execute(&[(home, take_ticket)])?;
        } else {
            self.peers.execute(&[(home, take_ticket), (home, self.copy_log(id))])?;
        }
        let word = self.mapping.long(self.layout.ticket(id)).load(Ordering::Acquire);
        let (ticket, mut lower) = ((word >> 32) as u32, word as u32);
        let ours = before.taken && ticket == before.ticket.wrapping_add(1);
        let waits = lower >> 1 != serving(ticket, false) >> 1;
        if waits {
            lower = self.wait_for_grant(id, home, ticket)?;
        } else if before.ours && !ours {
            self.peers.execute(&[(home, self.copy_log(id))])?;
        }
        let mut seen = self.locks.seen.lock();
        let seen = seen.entry(id).or_default();
        // The reply to the release arrived before the reply to the ticket.
        let answer = self.mapping.long(self.layout.released(id)).load(Ordering::Acquire);
        let missed = before.unacknowledged_release && (answer >> 32) as u32 != before.ticket.wrapping_add(1);
        let direct_grants = if waits || missed { DIRECT_GRANTS } else { before.direct_grants };
        *seen = LockState {
            ticket,
            serving: lower,
            taken: true,
            ours,
            direct_grants,
            unacknowledged_release: false,
            ..before
        };
        Ok(())
    }

    fn copy_log(&self, id: u32) -> Op {
        let (remote, local) = (self.layout.lock_log(id), self.layout.lock_copy(id));
        Op::Read { remote, local, len: self.layout.lock_copy_len() }
    }

    /// Returns the lower half of the word.
    fn wait_for_grant(&self, id: u32, home: u32, ticket: u32) -> Result<u32, Error> {
        let waiter = FILLED | u64::from(ticket) << 16 | u64::from(self.rank);
        let slot = self.layout.lock_slot(id, ticket);
        self.peers.execute(&[(home, Op::WriteWord { remote: slot, value: waiter })])?;
        let grant = self.mapping.long(self.layout.lock_grant(id));
        let mine = FILLED | u64::from(ticket);
        let mut poll_for = GRANT_POLL;
        // The log arrives before the grant.
        while !self
            .poll_times
            .wait_timeout(&self.peers, poll_for, || grant.load(Ordering::Acquire) == mine)?
        {
            let old = self.layout.ticket(id);
            let read_word = Op::FetchAdd { remote: self.layout.lock_word(id), add: 0, old };
            self.peers.execute(&[(home, read_word)])?;
            let lower = self.mapping.long(old).load(Ordering::Acquire) as u32;
            if lower == serving(ticket, true) {
                self.peers.execute(&[(home, self.copy_log(id))])?;
                return Ok(lower);
            }
            poll_for = (poll_for * 2).min(MAX_GRANT_POLL);
        }
        Ok(serving(ticket, false))
    }

    fn number(&self, id: u32, what: usize) -> u64 {
        self.mapping.long(self.layout.lock_copy(id) + what).load(Ordering::Acquire)
    }

    fn set_number(&self, id: u32, what: usize, value: u64) {
        self.mapping.long(self.layout.lock_copy(id) + what).store(value, Ordering::Release);
    }

    /// Returns the new notices of the copied log. All processes have those of earlier epochs: a barrier lies between.
    fn read_log(&self, id: u32, epoch: u64) -> Notices {
        let (written, start, next) = (self.number(id, EPOCH), self.number(id, START), self.number(id, NEXT));
        let mut seen = self.locks.seen.lock();
        let seen = seen.entry(id).or_default();
        let from = match written.cmp(&epoch) {
            cmp::Ordering::Less => next,
            cmp::Ordering::Equal if seen.epoch == epoch => seen.next,
            // Another thread of ours may still be in the barrier that the writer has passed.
            _ => start,
        };
        (seen.epoch, seen.next) = (epoch, next);
        if next - from > LOCK_NOTICES as u64 {
            return Notices::Overflow;
        }
        let notice = |number: u64| Notice::unpack(self.number(id, notice_at(number)));
        Notices::Pages((from..next).map(notice).collect())
    }

    pub(super) fn unlock(&self, id: u32) -> Result<(), Error> {
        let unlocked = self.unlock_inside(id);
        // Also after an error, as in `lock`.
        release(&self.locks.gates[id as usize]);
        unlocked
    }

    /// The caller leaves the gate afterwards.
    fn unlock_inside(&self, id: u32) -> Result<(), Error> {
        let home = self.layout.lock_home(id);
        // Held until the changes are begun: the pages must not change or go before, and other threads announce them only then.
        let mut state = self.state.lock();
        let steps = state.machine.release(id);
        let mut ops = self.executor.start(&mut state, steps, None)?;
        let words = Notice::pack(&state.machine.released(id));
        // All changes must be at home before the lock is free. Those at the lock's own home are: operations of one
        // process on one mapping keep their order.
        if !self.peers.began_only_at(home) {
            self.peers.finish()?;
        }
        if ops.iter().any(|(to, _)| *to != home) {
            self.peers.execute(&std::mem::take(&mut ops))?;
        }
        let changed = !ops.is_empty();
        let seen = self.append_log(id, &words);
        let next = seen.ticket.wrapping_add(1);
        let grants_directly = seen.direct_grants > 0;
        if !words.is_empty() {
            ops.push((home, self.copy_to_home(id)));
        }
        // Only the holder changes the lower half, so an addition sets it.
        let add = u64::from(serving(next, !grants_directly)).wrapping_sub(u64::from(seen.serving));
        let old = self.layout.released(id);
        ops.push((home, Op::FetchAdd { remote: self.layout.lock_word(id), add, old }));
        if grants_directly {
            ops.push((home, self.read_waiter(id, next)));
            self.peers.execute(&ops)?;
            drop(state);
            let word = self.mapping.long(old).load(Ordering::Acquire);
            let is_contended = (word >> 32) as u32 != next;
            if is_contended {
                self.hand_over(id, home, next)?;
            }
            let direct_grants = if is_contended { DIRECT_GRANTS } else { seen.direct_grants - 1 };
            self.locks.seen.lock().entry(id).or_default().direct_grants = direct_grants;
        } else {
            // Changes must be at home before any other notice of them: at a barrier, or by another lock. These wait for them.
            if changed {
                self.peers.begin(&ops)?
            } else {
                self.peers.post(&ops)?
            }
            drop(state);
            self.locks.seen.lock().entry(id).or_default().unacknowledged_release = true;
        }
        Ok(())
    }

    fn copy_to_home(&self, id: u32) -> Op {
        let (remote, local) = (self.layout.lock_log(id), self.layout.lock_copy(id));
        Op::Write { remote, local, len: self.layout.lock_copy_len() }
    }

    fn read_waiter(&self, id: u32, ticket: u32) -> Op {
        Op::Read { remote: self.layout.lock_slot(id, ticket), local: self.layout.next_waiter(id), len: 8 }
    }

    /// Appends notices to the copy of the log, and returns the state of the lock.
    fn append_log(&self, id: u32, words: &[u64]) -> LockState {
        let mut seen = self.locks.seen.lock();
        let seen = seen.entry(id).or_default();
        if !words.is_empty() {
            if self.number(id, EPOCH) < seen.epoch {
                self.set_number(id, EPOCH, seen.epoch);
                self.set_number(id, START, seen.next);
            }
            for (number, word) in (seen.next..).zip(words) {
                self.set_number(id, notice_at(number), *word);
            }
            seen.next += words.len() as u64;
            self.set_number(id, NEXT, seen.next);
        }
        *seen
    }

    /// Finds the process with the next ticket, and writes the log and the grant to it. It may not have written its rank yet.
    fn hand_over(&self, id: u32, home: u32, ticket: u32) -> Result<(), Error> {
        loop {
            let waiter = self.mapping.long(self.layout.next_waiter(id)).load(Ordering::Acquire);
            if waiter & FILLED != 0 && (waiter >> 16) as u32 == ticket {
                let to = u32::from(waiter as u16);
                let copy = self.layout.lock_copy(id);
                let log = Op::Write { remote: copy, local: copy, len: self.layout.lock_copy_len() };
                let grant = Op::WriteAndWake {
                    remote: self.layout.lock_grant(id),
                    value: FILLED | u64::from(ticket),
                };
                return self.peers.execute(&[(to, log), (to, grant)]);
            }
            std::thread::yield_now();
            self.peers.execute(&[(home, self.read_waiter(id, ticket))])?;
        }
    }
}

fn notice_at(number: u64) -> usize {
    NOTICES + (number % LOCK_NOTICES as u64) as usize * 8
}
