//! Barriers. Each process writes its arrival and its notices to every other process, without a coordinator, or along a tree
//! if the program requests one.

use super::layout::{LONG_NOTICES, SHORT_NOTICES};
use super::packed::Parcels;
use super::{Core, executor};
use crate::coherence::{Notice, Notices};
use crate::error::Error;
use crate::transport::Op;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Bits of an arrival below the number of the barrier: whether there are parcels, and how many notices.
const BITS: u32 = 24;
const PARCELS: u64 = 1 << 23;
/// As a count: more notices than fit.
const OVERFLOW: usize = PARCELS as usize - 1;

/// The arrival of one process at a barrier.
pub(super) struct Arrival {
    epoch: u64,
    pub(super) count: usize,
    parcels: bool,
}

impl Arrival {
    fn word(&self) -> u64 {
        self.epoch << BITS | if self.parcels { PARCELS } else { 0 } | self.count as u64
    }
}

/// Number of barriers that this process has passed.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// With coherence.
    pub(super) epoch: u64,
    /// Without.
    waits: u64,
}

impl Core {
    pub(super) fn barrier(&self) -> Result<(), Error> {
        let epoch = self.barriers.lock().epoch + 1;
        let mut parcels = Parcels::default();
        let tree = self.tree.load(Ordering::Relaxed);
        let (arrival, words) = {
            let mut state = self.state.lock();
            state.sent = Some(executor::Sent::default());
            let steps = state.machine.arrive();
            let packing = self.packs.load(Ordering::Relaxed).then_some(&mut parcels);
            let mut ops = self.executor.start(&mut state, steps, packing)?;
            if !parcels.is_empty() {
                // Those of the last barrier use the same memory and may still be in flight.
                self.peers.finish()?;
            }
            self.send_parcels(epoch, &parcels, &mut ops);
            let words = Notice::pack(&state.machine.arrived());
            let count = if words.len() <= LONG_NOTICES { words.len() } else { OVERFLOW };
            let arrival = Arrival { epoch, count, parcels: !parcels.is_empty() };
            self.note_notices(&arrival, &words, tree);
            // Before another thread may write these pages again.
            match tree {
                true => self.peers.execute(&ops).and_then(|()| self.peers.finish())?,
                false => {
                    let updates = self.stage_updates(epoch, state.machine.updates());
                    self.announce_arrival(&arrival, ops, &updates)?
                }
            }
            (arrival, words)
        };
        let received = self.wait_for_arrivals(&arrival, &words, tree)?;
        let mut state = self.state.lock();
        let before = state.machine.migrations;
        let steps = state.machine.depart(&received, &self.received_updates(epoch));
        self.executor.count_losses(&steps, state.machine.migrations - before);
        self.executor.run(&mut state, steps)?;
        state.sent = None;
        // A page that moves away is no longer fetched in order behind its changes.
        if state.machine.migrate {
            self.peers.finish()?;
        }
        let again = state.machine.must_wait_again();
        drop(state);
        if again {
            self.wait_all()?;
        }
        self.barriers.lock().epoch = epoch;
        Ok(())
    }

    /// Returns the notices of all processes, once the changes of all are at home.
    fn wait_for_arrivals(&self, arrival: &Arrival, words: &[u64], tree: bool) -> Result<Vec<Notices>, Error> {
        if tree {
            self.gather_over_tree(arrival.epoch)?
        }
        let (received, parcels) = self.collect_arrivals(arrival, words)?;
        if parcels {
            self.open_parcels(arrival.epoch)?;
            // A page may be fetched only after its home has applied the parcels.
            self.wait_all()?;
        }
        Ok(received)
    }

    pub(super) fn others(&self) -> impl Iterator<Item = u32> {
        let own = self.rank;
        (0..self.size).filter(move |rank| *rank != own)
    }

    /// Writes our notices where others fetch them. The buffers of this parity are free: all processes have passed the previous
    /// barrier, and so have read the one before it.
    fn note_notices(&self, arrival: &Arrival, words: &[u64], tree: bool) {
        let parity = (arrival.epoch & 1) as usize;
        self.mapping.long(self.layout.arrival(parity, self.rank)).store(arrival.word(), Ordering::Release);
        if arrival.count == OVERFLOW {
            return;
        }
        let mut places = vec![self.layout.long_notices(parity)];
        if tree && arrival.count <= SHORT_NOTICES {
            places.push(self.layout.short_notices(parity, self.rank));
        }
        for place in places {
            for (at, word) in words.iter().enumerate() {
                self.mapping.long(place + at * 8).store(*word, Ordering::Release);
            }
        }
    }

    /// Sends changes and arrivals. A process that our changes do not go to must not receive our arrival before they are at home.
    /// At their only home they precede the arrival, since operations of one process on one mapping keep their order.
    fn announce_arrival(
        &self,
        arrival: &Arrival,
        changes: Vec<(u32, Op)>,
        updates: &BTreeMap<u32, Op>,
    ) -> Result<(), Error> {
        let in_order =
            |peer: &u32| changes.iter().all(|(home, _)| home == peer) && self.peers.began_only_at(*peer);
        let (now, later): (Vec<u32>, Vec<u32>) = self.others().partition(in_order);
        let any = !changes.is_empty();
        let mut ops = changes;
        ops.extend(self.arrivals(arrival, now, updates));
        if any {
            self.peers.begin(&ops)?
        } else {
            self.peers.post(&ops)?
        }
        if !later.is_empty() {
            self.peers.finish()?;
            self.peers.post(&self.arrivals(arrival, later, updates))?;
        }
        Ok(())
    }

    fn arrivals(&self, arrival: &Arrival, to: Vec<u32>, updates: &BTreeMap<u32, Op>) -> Vec<(u32, Op)> {
        let parity = (arrival.epoch & 1) as usize;
        let word = Op::WriteAndWake { remote: self.layout.arrival(parity, self.rank), value: arrival.word() };
        let mut ops = Vec::with_capacity(3 * self.size as usize);
        for peer in to {
            ops.extend(updates.get(&peer).map(|update| (peer, *update)));
            if (1..=SHORT_NOTICES).contains(&arrival.count) {
                let (remote, local) =
                    (self.layout.short_notices(parity, self.rank), self.layout.long_notices(parity));
                ops.push((peer, Op::Write { remote, local, len: arrival.count * 8 }));
            }
            ops.push((peer, word));
        }
        ops
    }

    /// Reads the arrival of a process at its last barrier of this parity.
    pub(super) fn arrival(&self, parity: usize, rank: u32) -> Arrival {
        let word = self.mapping.long(self.layout.arrival(parity, rank)).load(Ordering::Acquire);
        Arrival { epoch: word >> BITS, count: word as usize & OVERFLOW, parcels: word & PARCELS != 0 }
    }

    /// Returns the notices of all processes, and whether any process sent parcels.
    fn collect_arrivals(&self, arrival: &Arrival, own: &[u64]) -> Result<(Vec<Notices>, bool), Error> {
        let parity = (arrival.epoch & 1) as usize;
        let mut received = Vec::with_capacity(self.size as usize);
        let mut parcels = arrival.parcels;
        for rank in 0..self.size {
            if rank == self.rank {
                let fits = arrival.count != OVERFLOW;
                received.push(if fits { pages(own.iter().copied()) } else { Notices::Overflow });
                continue;
            }
            self.wait_until(|| self.arrival(parity, rank).epoch == arrival.epoch)?;
            let theirs = self.arrival(parity, rank);
            parcels |= theirs.parcels;
            received.push(self.read_notices(parity, rank, theirs.count)?);
        }
        Ok((received, parcels))
    }

    fn read_notices(&self, parity: usize, rank: u32, count: usize) -> Result<Notices, Error> {
        if count == OVERFLOW {
            return Ok(Notices::Overflow);
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

    /// Waits until all posted operations are done.
    pub(super) fn drain(&self) -> Result<(), Error> {
        let nothing = Op::WriteWord { remote: self.layout.nothing(), value: 0 };
        let ops: Vec<(u32, Op)> = self.others().map(|peer| (peer, nothing)).collect();
        self.peers.execute(&ops)
    }
}

fn pages(words: impl Iterator<Item = u64>) -> Notices {
    Notices::Pages(words.map(Notice::unpack).collect())
}
