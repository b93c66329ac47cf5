//! How all processes meet. Everybody writes to everybody that it has come, and what it wrote; nobody is in the middle.

use super::Core;
use super::window::{LONG_NOTICES, SHORT_NOTICES};
use crate::coherence::{Notice, Told};
use crate::error::Error;
use crate::transport::Op;
use std::sync::atomic::Ordering;

/// Bits of an arrival that count notices.
const COUNT_BITS: u32 = 24;
/// As a count: more than can be told.
const ANYTHING: usize = (1 << COUNT_BITS) - 1;

/// How many barriers this process has passed.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// With coherence.
    epoch: u64,
    /// Without.
    waits: u64,
}

impl Passed {
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Core {
    pub(super) fn barrier(&self) -> Result<(), Error> {
        let words = {
            let mut state = self.state.lock();
            let steps = state.machine.arrive();
            self.executor.run(&self.wires, &mut state, steps)?;
            Notice::pack(&state.machine.arrived())
        };
        let epoch = self.barriers.lock().epoch + 1;
        self.tell_everybody(epoch, &words)?;
        let told = self.hear_everybody(epoch, &words)?;
        let mut state = self.state.lock();
        let before = state.machine.migrations();
        let steps = state.machine.depart(&told);
        self.executor.count_losses(&steps, state.machine.migrations() - before);
        self.executor.run(&self.wires, &mut state, steps)?;
        drop(state);
        self.barriers.lock().epoch = epoch;
        Ok(())
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        let own = self.rank;
        (0..self.size).filter(move |rank| *rank != own)
    }

    /// Buffers of one parity are free again: everybody has passed the barrier before, and so has read the one before that.
    fn tell_everybody(&self, epoch: u64, words: &[u64]) -> Result<(), Error> {
        let parity = (epoch & 1) as usize;
        let all = self.layout.long_notices(parity);
        let count = if words.len() <= LONG_NOTICES { words.len() } else { ANYTHING };
        if count != ANYTHING {
            for (at, word) in words.iter().enumerate() {
                self.window.long(all + at * 8).store(*word, Ordering::Release);
            }
        }
        let arrival = Op::Tell {
            remote: self.layout.arrival(parity, self.rank),
            value: epoch << COUNT_BITS | count as u64,
        };
        let mut ops = Vec::with_capacity(2 * self.size as usize);
        for peer in self.others() {
            if (1..=SHORT_NOTICES).contains(&count) {
                let remote = self.layout.short_notices(parity, self.rank);
                ops.push((peer, Op::Write { remote, local: all, len: count * 8 }));
            }
            ops.push((peer, arrival));
        }
        self.wires.post(&ops)
    }

    fn hear_everybody(&self, epoch: u64, own: &[u64]) -> Result<Vec<Told>, Error> {
        let parity = (epoch & 1) as usize;
        let mut told = Vec::with_capacity(self.size as usize);
        for rank in 0..self.size {
            if rank == self.rank {
                let fits = own.len() <= LONG_NOTICES;
                told.push(if fits { pages(own.iter().copied()) } else { Told::Anything });
                continue;
            }
            let arrival = self.window.long(self.layout.arrival(parity, rank));
            self.wait_until(|| arrival.load(Ordering::Acquire) >> COUNT_BITS == epoch)?;
            let count = arrival.load(Ordering::Acquire) as usize & ANYTHING;
            told.push(self.read_notices(parity, rank, count)?);
        }
        Ok(told)
    }

    fn read_notices(&self, parity: usize, rank: u32, count: usize) -> Result<Told, Error> {
        if count == ANYTHING {
            return Ok(Told::Anything);
        }
        let mut at = self.layout.short_notices(parity, rank);
        if count > SHORT_NOTICES {
            at = self.layout.notices_copy();
            let remote = self.layout.long_notices(parity);
            self.wires.execute(&[(rank, Op::Read { remote, local: at, len: count * 8 })])?;
        }
        Ok(pages((0..count).map(|number| self.window.long(at + number * 8).load(Ordering::Acquire))))
    }

    pub(super) fn wait_all(&self) -> Result<(), Error> {
        let count = {
            let mut passed = self.barriers.lock();
            passed.waits += 1;
            passed.waits
        };
        let arrival = Op::Tell { remote: self.layout.wait_count(self.rank), value: count };
        let ops: Vec<(u32, Op)> = self.others().map(|peer| (peer, arrival)).collect();
        self.wires.post(&ops)?;
        for rank in self.others() {
            let arrived = self.window.long(self.layout.wait_count(rank));
            self.wait_until(|| arrived.load(Ordering::Acquire) >= count)?;
        }
        Ok(())
    }

    /// Returns when everything that was started is done.
    pub(super) fn drain(&self) -> Result<(), Error> {
        let nothing = Op::WriteWord { remote: self.layout.nothing(), value: 0 };
        let ops: Vec<(u32, Op)> = self.others().map(|peer| (peer, nothing)).collect();
        self.wires.execute(&ops)
    }
}

fn pages(words: impl Iterator<Item = u64>) -> Told {
    Told::Pages(words.map(Notice::unpack).collect())
}
