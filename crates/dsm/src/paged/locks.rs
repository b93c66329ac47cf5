//! Locks: tickets from a word at the lock's home, and a board beside it of what was written under the lock.
//!
//! Taking a ticket and reading the board is one trip. Who has to wait writes its name at its ticket's place and then
//! looks at its own memory; who gives the lock back looks up the next name and writes there. Nothing runs at the home.

use super::Core;
use super::window::LOCK_NOTICES;
use crate::coherence::{Notice, Told};
use crate::error::Error;
use crate::futex::{Patience, acquire, release};
use crate::transport::Op;
use parking_lot::Mutex;
use std::cmp;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where in a lock's copy its numbers are.
const EPOCH: usize = 0;
const START: usize = 8;
const NEXT: usize = 16;
const NOTICES: usize = 24;

/// In a place or a turn: it is filled.
const FILLED: u64 = 1 << 63;

pub(super) struct Locks {
    /// Threads of this process take turns before they ask the home.
    gates: Vec<AtomicU32>,
    seen: Mutex<HashMap<u32, Seen>>,
}

/// What this process knows of a lock's board.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    epoch: u64,
    /// Notices from this number on are new.
    next: u64,
    /// While it is held: our ticket.
    ticket: u32,
    /// Somebody waited when it was last given back.
    wanted: bool,
}

impl Locks {
    pub(super) fn new(count: u32) -> Self {
        Self { gates: (0..count).map(|_| AtomicU32::new(0)).collect(), seen: Mutex::default() }
    }
}

impl Core {
    pub(super) fn lock(&self, id: u32) -> Result<(), Error> {
        acquire(&self.locks.gates[id as usize], Patience::brief());
        let ticket = self.take_ticket(id)?;
        let epoch = self.barriers.lock().epoch();
        let told = self.read_board(id, epoch, ticket);
        let mut state = self.state.lock();
        let steps = state.machine.acquire(id, &told);
        self.executor.count_losses(&steps, 0);
        self.executor.run(&self.wires, &mut state, steps)
    }

    /// Returns when the lock is ours and its board is copied.
    fn take_ticket(&self, id: u32) -> Result<u32, Error> {
        let home = self.layout.lock_home(id);
        let copy_board = Op::Read {
            remote: self.layout.lock_board(id),
            local: self.layout.lock_copy(id),
            len: self.layout.lock_copy_len(),
        };
        let draw =
            Op::FetchAdd { remote: self.layout.lock_word(id), add: 1 << 32, old: self.layout.ticket(id) };
        self.wires.execute(&[(home, draw), (home, copy_board)])?;
        let word = self.window.long(self.layout.ticket(id)).load(Ordering::Acquire);
        let (ticket, serving) = ((word >> 32) as u32, word as u32);
        if ticket != serving {
            let name = FILLED | u64::from(ticket) << 16 | u64::from(self.rank);
            let place = self.layout.lock_place(id, ticket);
            self.wires.execute(&[(home, Op::WriteWord { remote: place, value: name })])?;
            let turn = self.window.long(self.layout.turn(id));
            // The board comes with the turn.
            self.wait_until(|| turn.load(Ordering::Acquire) == FILLED | u64::from(ticket))?;
        }
        Ok(ticket)
    }

    fn number(&self, id: u32, what: usize) -> u64 {
        self.window.long(self.layout.lock_copy(id) + what).load(Ordering::Acquire)
    }

    fn set_number(&self, id: u32, what: usize, value: u64) {
        self.window.long(self.layout.lock_copy(id) + what).store(value, Ordering::Release);
    }

    /// What the copied board tells that we do not know. Notices of earlier epochs are known to all: a barrier lies between.
    fn read_board(&self, id: u32, epoch: u64, ticket: u32) -> Told {
        let (written, start, next) = (self.number(id, EPOCH), self.number(id, START), self.number(id, NEXT));
        let mut seen = self.locks.seen.lock();
        let seen = seen.entry(id).or_default();
        seen.ticket = ticket;
        let from = match written.cmp(&epoch) {
            cmp::Ordering::Less => next,
            cmp::Ordering::Equal if seen.epoch == epoch => seen.next,
            // Another thread of ours may still be in the barrier that the writer has passed.
            _ => start,
        };
        (seen.epoch, seen.next) = (epoch, next);
        if next - from > LOCK_NOTICES as u64 {
            return Told::Anything;
        }
        let notice = |number: u64| Notice::unpack(self.number(id, notice_at(number)));
        Told::Pages((from..next).map(notice).collect())
    }

    pub(super) fn unlock(&self, id: u32) -> Result<(), Error> {
        let home = self.layout.lock_home(id);
        let (mut ops, words) = {
            let mut state = self.state.lock();
            let steps = state.machine.release(id);
            let ops = self.executor.start(&self.wires, &mut state, steps)?;
            (ops, Notice::pack(&state.machine.released(id)))
        };
        // What was written must be at home before the lock is free. At the lock's own home it is: operations of one
        // process on one window keep their order.
        if ops.iter().any(|(to, _)| *to != home) {
            self.wires.execute(&std::mem::take(&mut ops))?;
        }
        let seen = self.write_board(id, &words);
        if !words.is_empty() {
            ops.push((home, self.copy_to_home(id)));
        }
        // The lower half counts who is served; its overflow must not reach the upper one.
        let add = if seen.ticket == u32::MAX { 1u64.wrapping_sub(1 << 32) } else { 1 };
        ops.push((
            home,
            Op::FetchAdd { remote: self.layout.lock_word(id), add, old: self.layout.ticket(id) },
        ));
        let next = seen.ticket.wrapping_add(1);
        if seen.wanted {
            ops.push((home, self.read_name(id, next)));
        }
        self.wires.execute(&ops)?;
        let word = self.window.long(self.layout.ticket(id)).load(Ordering::Acquire);
        let wanted = (word >> 32) as u32 != next;
        if wanted {
            self.hand_over(id, home, next, seen.wanted)?;
        }
        self.locks.seen.lock().entry(id).or_default().wanted = wanted;
        release(&self.locks.gates[id as usize]);
        Ok(())
    }

    fn copy_to_home(&self, id: u32) -> Op {
        let (remote, local) = (self.layout.lock_board(id), self.layout.lock_copy(id));
        Op::Write { remote, local, len: self.layout.lock_copy_len() }
    }

    fn read_name(&self, id: u32, ticket: u32) -> Op {
        Op::Read { remote: self.layout.lock_place(id, ticket), local: self.layout.next_name(id), len: 8 }
    }

    /// Adds notices to the copy of the board, and returns what we know of the lock.
    fn write_board(&self, id: u32, words: &[u64]) -> Seen {
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

    /// Finds who has the next ticket, who may not have written its name yet, and gives it the board and the turn.
    fn hand_over(&self, id: u32, home: u32, ticket: u32, mut read: bool) -> Result<(), Error> {
        loop {
            if !read {
                self.wires.execute(&[(home, self.read_name(id, ticket))])?;
            }
            read = false;
            let name = self.window.long(self.layout.next_name(id)).load(Ordering::Acquire);
            if name & FILLED != 0 && (name >> 16) as u32 == ticket {
                let to = u32::from(name as u16);
                let copy = self.layout.lock_copy(id);
                let board = Op::Write { remote: copy, local: copy, len: self.layout.lock_copy_len() };
                let turn = Op::Tell { remote: self.layout.turn(id), value: FILLED | u64::from(ticket) };
                return self.wires.execute(&[(to, board), (to, turn)]);
            }
            std::thread::yield_now();
        }
    }
}

fn notice_at(number: u64) -> usize {
    NOTICES + (number % LOCK_NOTICES as u64) as usize * 8
}
