//! How all processes meet. Everybody writes to everybody that it has come, and what it wrote; nobody is in the middle, unless
//! the program asks for a tree.

use super::Core;
use super::layout::{LONG_NOTICES, SHORT_NOTICES};
use super::packed::Parcels;
use crate::coherence::{Notice, Told};
use crate::error::Error;
use crate::transport::Op;
use std::sync::atomic::Ordering;

/// Bits of an arrival below the number of the barrier: whether there are parcels, and how many notices.
const BITS: u32 = 24;
const PARCELS: u64 = 1 << 23;
/// As a count: more than can be told.
const ANYTHING: usize = PARCELS as usize - 1;

/// What a process said when it came.
pub(super) struct Said {
    epoch: u64,
    pub(super) count: usize,
    parcels: bool,
}

impl Said {
    fn word(&self) -> u64 {
        self.epoch << BITS | if self.parcels { PARCELS } else { 0 } | self.count as u64
    }
}

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
        let epoch = self.barriers.lock().epoch + 1;
        let mut parcels = Parcels::default();
        let words = {
            let mut state = self.state.lock();
            let steps = state.machine.arrive();
            let packing = self.packs.load(Ordering::Relaxed).then_some(&mut parcels);
            let mut ops = self.executor.start_packing(&self.peers, &mut state, steps, packing)?;
            self.send_parcels(epoch, &parcels, &mut ops);
            self.peers.execute(&ops)?;
            Notice::pack(&state.machine.arrived())
        };
        let count = if words.len() <= LONG_NOTICES { words.len() } else { ANYTHING };
        let said = Said { epoch, count, parcels: !parcels.is_empty() };
        let told = self.meet(&said, &words)?;
        let mut state = self.state.lock();
        let before = state.machine.migrations();
        let steps = state.machine.depart(&told);
        self.executor.count_losses(&steps, state.machine.migrations() - before);
        self.executor.run(&self.peers, &mut state, steps)?;
        let again = state.machine.must_meet_again();
        drop(state);
        if again {
            self.wait_all()?;
        }
        self.barriers.lock().epoch = epoch;
        Ok(())
    }

    /// Says what we wrote, and returns what everybody said, when all that was written is at home.
    fn meet(&self, said: &Said, words: &[u64]) -> Result<Vec<Told>, Error> {
        let tree = self.tree.load(Ordering::Relaxed);
        self.note_notices(said, words, tree);
        if tree {
            self.meet_over_tree(said.epoch)?
        } else {
            self.tell_everybody(said)?
        }
        let (told, parcels) = self.hear_everybody(said, words)?;
        if parcels {
            self.open_parcels(said.epoch)?;
            // Nobody may fetch a page whose home has not done so yet.
            self.wait_all()?;
        }
        Ok(told)
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        let own = self.rank;
        (0..self.size).filter(move |rank| *rank != own)
    }

    /// Puts our notices where others fetch them from. Buffers of one parity are free again: everybody has passed the barrier before,
    /// and so has read the one before that.
    fn note_notices(&self, said: &Said, words: &[u64], tree: bool) {
        let parity = (said.epoch & 1) as usize;
        self.mapping.long(self.layout.arrival(parity, self.rank)).store(said.word(), Ordering::Release);
        if said.count == ANYTHING {
            return;
        }
        let mut places = vec![self.layout.long_notices(parity)];
        if tree && said.count <= SHORT_NOTICES {
            places.push(self.layout.short_notices(parity, self.rank));
        }
        for place in places {
            for (at, word) in words.iter().enumerate() {
                self.mapping.long(place + at * 8).store(*word, Ordering::Release);
            }
        }
    }

    fn tell_everybody(&self, said: &Said) -> Result<(), Error> {
        let parity = (said.epoch & 1) as usize;
        let arrival = Op::WriteAndWake { remote: self.layout.arrival(parity, self.rank), value: said.word() };
        let mut ops = Vec::with_capacity(2 * self.size as usize);
        for peer in self.others() {
            if (1..=SHORT_NOTICES).contains(&said.count) {
                let (remote, local) =
                    (self.layout.short_notices(parity, self.rank), self.layout.long_notices(parity));
                ops.push((peer, Op::Write { remote, local, len: said.count * 8 }));
            }
            ops.push((peer, arrival));
        }
        self.peers.post(&ops)
    }

    /// What a process said at its last barrier of this parity.
    pub(super) fn said(&self, parity: usize, rank: u32) -> Said {
        let word = self.mapping.long(self.layout.arrival(parity, rank)).load(Ordering::Acquire);
        Said { epoch: word >> BITS, count: word as usize & ANYTHING, parcels: word & PARCELS != 0 }
    }

    /// What everybody wrote, and whether anybody sent parcels.
    fn hear_everybody(&self, said: &Said, own: &[u64]) -> Result<(Vec<Told>, bool), Error> {
        let parity = (said.epoch & 1) as usize;
        let mut told = Vec::with_capacity(self.size as usize);
        let mut parcels = said.parcels;
        for rank in 0..self.size {
            if rank == self.rank {
                let fits = said.count != ANYTHING;
                told.push(if fits { pages(own.iter().copied()) } else { Told::Anything });
                continue;
            }
            self.wait_until(|| self.said(parity, rank).epoch == said.epoch)?;
            let theirs = self.said(parity, rank);
            parcels |= theirs.parcels;
            told.push(self.read_notices(parity, rank, theirs.count)?);
        }
        Ok((told, parcels))
    }

    fn read_notices(&self, parity: usize, rank: u32, count: usize) -> Result<Told, Error> {
        if count == ANYTHING {
            return Ok(Told::Anything);
        }
        let mut at = self.layout.short_notices(parity, rank);
        if count > SHORT_NOTICES {
            at = self.layout.notices_copy();
            let remote = self.layout.long_notices(parity);
            self.peers.execute(&[(rank, Op::Read { remote, local: at, len: count * 8 })])?;
        }
        Ok(pages((0..count).map(|number| self.mapping.long(at + number * 8).load(Ordering::Acquire))))
    }

    pub(super) fn wait_all(&self) -> Result<(), Error> {
        let count = {
            let mut passed = self.barriers.lock();
            passed.waits += 1;
            passed.waits
        };
        let arrival = Op::WriteAndWake { remote: self.layout.wait_count(self.rank), value: count };
        let ops: Vec<(u32, Op)> = self.others().map(|peer| (peer, arrival)).collect();
        self.peers.post(&ops)?;
        for rank in self.others() {
            let arrived = self.mapping.long(self.layout.wait_count(rank));
            self.wait_until(|| arrived.load(Ordering::Acquire) >= count)?;
        }
        Ok(())
    }

    /// Returns when everything that was started is done.
    pub(super) fn drain(&self) -> Result<(), Error> {
        let nothing = Op::WriteWord { remote: self.layout.nothing(), value: 0 };
        let ops: Vec<(u32, Op)> = self.others().map(|peer| (peer, nothing)).collect();
        self.peers.execute(&ops)
    }
}

fn pages(words: impl Iterator<Item = u64>) -> Told {
    Told::Pages(words.map(Notice::unpack).collect())
}
