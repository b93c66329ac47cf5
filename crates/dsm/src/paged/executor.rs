//! Executes the steps of the coherence machine.

use super::State;
use super::layout::MappingLayout;
use super::packed::{Parcels, SCATTERED};
use crate::PAGE;
use crate::coherence::{Access, Blocks, Fault, Run, Step, changed};
use crate::error::Error;
use crate::faults::{Touch, View};
use crate::map::{Change, Mapping};
use crate::statistics::{Counters, add};
use crate::transport::{Op, Peers};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pages as they were before the program wrote them.
pub(super) type Twins = HashMap<usize, Box<[u8; PAGE]>>;

/// Byte ranges of pages.
pub(super) type Sent = HashMap<usize, Vec<std::ops::Range<usize>>>;

pub(super) struct Executor {
    /// The program's mapping of the heap. Copies through it may fault, so no lock may be held then.
    pub(super) view: View,
    peers: Arc<Peers>,
    mapping: Arc<Mapping>,
    heap: usize,
    counters: Arc<Counters>,
}

/// Operations that are collected and then executed together.
struct Batch<'a> {
    ops: Vec<(u32, Op)>,
    fetches: bool,
    /// Where changes may be packed.
    parcels: Option<&'a mut Parcels>,
}

impl Executor {
    pub(super) fn new(
        view: View,
        peers: Arc<Peers>,
        mapping: Arc<Mapping>,
        layout: MappingLayout,
        counters: Arc<Counters>,
    ) -> Self {
        Self { view, peers, mapping, heap: layout.len(), counters }
    }

    pub(super) fn count_fault(&self, time: Duration) {
        add(&self.counters.fault_ns, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts how a lock or a barrier changed our copies.
    pub(super) fn count_losses(&self, steps: &[Step], migrations: u64) {
        let closed = |step: &Step| match step {
            Step::Protect(run, Access::None) => run.count as u64,
            _ => 0,
        };
        add(&self.counters.invalidations, steps.iter().map(closed).sum());
        add(&self.counters.migrations, migrations);
    }

    /// Handles a fault. Returns whether the page belongs to an allocation.
    pub(super) fn fault(&self, state: &mut State, page: usize, touch: Touch) -> Result<bool, Error> {
        let write = match touch {
            Touch::Write => true,
            Touch::Read => false,
            Touch::Unknown => state.machine.is_readable(page),
        };
        let Fault::Steps(steps) = state.machine.fault(page, write) else { return Ok(false) };
        if steps.is_empty() {
            self.view.reopen(page)?;
            return Ok(true);
        }
        add(if write { &self.counters.write_faults } else { &self.counters.read_faults }, 1);
        self.run(state, steps)?;
        Ok(true)
    }

    /// Executes steps, in order.
    pub(super) fn run(&self, state: &mut State, steps: Vec<Step>) -> Result<(), Error> {
        let ops = self.start(state, steps, None)?;
        if ops.is_empty() { Ok(()) } else { self.peers.execute(&ops) }
    }

    /// Executes steps, in order, but returns the last writes instead of executing them. Packs scattered changes into
    /// `parcels`, if given.
    pub(super) fn start(
        &self,
        state: &mut State,
        steps: Vec<Step>,
        parcels: Option<&mut Parcels>,
    ) -> Result<Vec<(u32, Op)>, Error> {
        let mut batch = Batch { ops: Vec::new(), fetches: false, parcels };
        let mut closed = false;
        for step in steps {
            match step {
                Step::Protect(_, access) if closed && access != Access::None => {}
                Step::Protect(run, access) => {
                    self.finish_fetches(&mut batch)?;
                    closed |= self.protect(state, run, access)? == Change::TooManyMappings;
                }
                Step::Fetch(run, home) => self.fetch(&mut batch, run, home),
                Step::FetchBlocks(page, blocks, home) => self.fetch_blocks(&mut batch, page, blocks, home),
                Step::Update(page, at) => self.update(state, page, at),
                Step::Twin(page) => {
                    self.finish_fetches(&mut batch)?;
                    // The last changes of the page may still be in flight to its home.
                    self.peers.finish()?;
                    let mut twin = Box::new([0; PAGE]);
                    self.view.sources.read(page, &mut twin);
                    state.twins.insert(page, twin);
                }
                Step::Flush(page, home) => self.flush(&mut batch, state, page, home),
                Step::Compare(page) => {
                    self.compare(state, page);
                }
                Step::Show(run, home) => closed |= self.show(state, run, home)? == Change::TooManyMappings,
                Step::Discard(run) => {
                    self.finish(&mut batch)?;
                    self.peers.finish()?;
                    self.view.sources.discard(run)?;
                }
            }
        }
        self.counters.evictions.store(state.machine.evictions, Ordering::Relaxed);
        let shared = state.machine.shared_pages().values().sum();
        self.counters.shared_pages.store(shared, Ordering::Relaxed);
        self.finish_fetches(&mut batch)?;
        Ok(batch.ops)
    }

    /// Changes access rights. At the limit of mappings it closes all pages instead, and returns [`Change::TooManyMappings`].
    fn protect(&self, state: &mut State, run: Run, access: Access) -> Result<Change, Error> {
        let change = self.view.protect(run, access)?;
        if change == Change::TooManyMappings {
            self.close_all(state)?;
        }
        Ok(change)
    }

    /// Shows pages of another mapping, with the same result. If they do not fit even then, sharing ends.
    fn show(&self, state: &mut State, run: Run, rank: u32) -> Result<Change, Error> {
        match state.machine.is_to_show(run, rank) {
            None => return self.view.show_own(run).map(|()| Change::Done),
            Some(false) => return Ok(Change::Done),
            Some(true) if self.view.show(run, rank)? == Change::Done => return Ok(Change::Done),
            Some(true) => self.close_all(state)?,
        }
        if self.view.show(run, rank)? == Change::TooManyMappings {
            let steps = state.machine.stop_sharing();
            self.start(state, steps, None)?;
        }
        Ok(Change::TooManyMappings)
    }

    fn close_all(&self, state: &mut State) -> Result<(), Error> {
        state.machine.close_all();
        let all = Run { first: 0, count: self.view.mapping.len() / PAGE };
        match self.view.protect(all, Access::None)? {
            Change::Done => Ok(()),
            Change::TooManyMappings => Err(Error::system("mprotect of the whole heap")),
        }
    }

    fn fetch(&self, batch: &mut Batch<'_>, run: Run, home: u32) {
        let at = self.heap + run.first * PAGE;
        let len = run.count * PAGE;
        add(if batch.fetches { &self.counters.prefetches } else { &self.counters.fetches }, 1);
        add(&self.counters.prefetches, run.count as u64 - 1);
        add(&self.counters.fetched_bytes, len as u64);
        self.counters.heat.fetched(run.first, run.count);
        batch.fetches = true;
        batch.ops.push((home, Op::Read { remote: at, local: at, len }));
    }

    fn fetch_blocks(&self, batch: &mut Batch<'_>, page: usize, blocks: Blocks, home: u32) {
        add(if batch.fetches { &self.counters.prefetches } else { &self.counters.fetches }, 1);
        self.counters.heat.fetched(page, 1);
        batch.fetches = true;
        for range in blocks.ranges(PAGE) {
            let at = self.heap + page * PAGE + range.start;
            add(&self.counters.fetched_bytes, range.len() as u64);
            batch.ops.push((home, Op::Read { remote: at, local: at, len: range.len() }));
        }
    }

    /// Copies a page that came with an arrival. It may lack the words that we sent at the same barrier.
    fn update(&self, state: &State, page: usize, at: usize) {
        add(&self.counters.prefetches, 1);
        add(&self.counters.fetched_bytes, PAGE as u64);
        self.counters.heat.fetched(page, 1);
        let place = self.heap + page * PAGE;
        let mut bytes = [0; PAGE];
        self.mapping.read(at, &mut bytes);
        for range in state.sent.iter().filter_map(|sent| sent.get(&page)).flatten() {
            self.mapping.read(place + range.start, &mut bytes[range.clone()]);
        }
        self.mapping.write(place, &bytes);
    }

    /// Returns the byte ranges that differ from the twin, and drops the twin.
    fn compare(&self, state: &mut State, page: usize) -> Vec<std::ops::Range<usize>> {
        let Some(twin) = state.twins.remove(&page) else { return Vec::new() };
        let mut now = [0; PAGE];
        self.view.sources.read(page, &mut now);
        let ranges = changed(&twin[..], &now);
        state.machine.compared(page, Blocks::of(&ranges, PAGE));
        ranges
    }

    fn flush(&self, batch: &mut Batch<'_>, state: &mut State, page: usize, home: u32) {
        let ranges = self.compare(state, page);
        let bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        add(&self.counters.diff_bytes, bytes as u64);
        add(&self.counters.diffs, u64::from(!ranges.is_empty()));
        if let Some(sent) = &mut state.sent {
            sent.insert(page, ranges.clone());
        }
        self.counters.heat.changed(page);
        if let Some(parcels) = batch.parcels.as_mut().filter(|_| ranges.len() >= SCATTERED) {
            let mut now = [0; PAGE];
            self.mapping.read(self.heap + page * PAGE, &mut now);
            if parcels.add(home, page, &now, &ranges) {
                add(&self.counters.packed_diffs, 1);
                return;
            }
        }
        for range in ranges {
            let place = self.heap + page * PAGE + range.start;
            batch.ops.push((home, Op::Write { remote: place, local: place, len: range.len() }));
        }
    }

    fn finish_fetches(&self, batch: &mut Batch<'_>) -> Result<(), Error> {
        if batch.fetches { self.finish(batch) } else { Ok(()) }
    }

    fn finish(&self, batch: &mut Batch<'_>) -> Result<(), Error> {
        batch.fetches = false;
        let ops = std::mem::take(&mut batch.ops);
        if ops.is_empty() {
            return Ok(());
        }
        // Allocating a new page takes a microsecond, which overlaps with the transfer.
        self.peers.execute_while(&ops, &mut || {
            for (_, op) in &ops {
                if let Op::Read { local, len, .. } = op {
                    (*local..local + len).step_by(PAGE).for_each(|place| self.mapping.touch(place));
                }
            }
        })
    }
}
