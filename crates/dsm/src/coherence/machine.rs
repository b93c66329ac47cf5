//! What happens to a page at a fault, a lock, a barrier.

use super::blocks::{Blocks, Fetches, Usefulness};
use super::cache::Cache;
use super::colocated::Colocated;
use super::locality::Locality;
use super::notice::{Notice, Notices};
use super::prediction::{MAX_PAGES_PER_WRITE_FAULT, PredictionLimit, UNCONFIRMED};
use super::updates::{Update, Updates};
use super::{Access, Run, Step};
use std::collections::BTreeMap;

/// Home pages that one fault opens together, where no notice depends on it: within how many pages, and in how many runs,
/// where pages are distributed one by one.
const OPEN_AT_ONCE: usize = 512;
const OPEN_RUNS: usize = 16;

/// Maximum number of notices with blocks per lock or barrier. Beyond it, notices list whole pages, which merge
/// better.
const MAX_LOCK_NOTICES: usize = 20;
const MAX_BARRIER_NOTICES: usize = 1024;

/// What is fixed when a process joins.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) rank: u32,
    pub(crate) cache_pages: usize,
    /// Maximum number of pages that one fault prefetches; 0: none.
    pub(crate) prefetch_pages: usize,
    /// How many pages behind the faulting one are checked for those that were fetched together with it the last time.
    pub(crate) max_checking_pages: usize,
    /// A job of one process.
    pub(crate) alone: bool,
    /// A number for the host of each process, equal where processes share pages. It is the same in all processes.
    pub(crate) hosts: Vec<u32>,
    /// Co-located processes whose mappings can be shown here. Only this process uses the list.
    pub(crate) colocated: Vec<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Page {
    pub(super) home: u16,
    pub(super) access: Access,
    /// The program sees the bytes of the home, which is co-located.
    pub(super) shared: bool,
    /// There is a readable copy here. Always true at home, and where the page is shared.
    pub(super) valid: bool,
    /// There is a twin: the copy may have words that its home lacks.
    pub(super) dirty: bool,
    /// Blocks of the local bytes that no other process is known to have written.
    pub(super) here: Blocks,
    /// Blocks that this process wrote since the last barrier, as far as compared.
    pub(super) wrote: Blocks,
    /// Written since the last barrier.
    pub(super) written: bool,
    /// The program is known to have written the page: it was not only opened because a write was predicted.
    pub(super) known_written: bool,
    /// Counted by the cache.
    pub(super) resident: bool,
    /// Interval in which it was last opened for writing, and last fetched; 0 for never.
    pub(super) written_in: u32,
    pub(super) fetched_in: u32,
    /// Interval at whose start a barrier invalidated it, and how often in a row it was fetched in that very interval.
    pub(super) stale_in: u32,
    pub(super) refetches: u8,
    /// Number of predicted writes in a row, and of predicted fetches.
    pub(super) write_predictions: u8,
    pub(super) fetch_predictions: u8,
    pub(super) prediction_limit: PredictionLimit,
    /// Number of intervals in a row in which it was opened for writing.
    pub(super) written_in_a_row: u8,
    /// The barrier before which changes last went home, except at that barrier itself; 0 for never.
    pub(super) sent_early_in: u32,
    /// Its first fetch is reported, or is about to be, for changed blocks.
    pub(super) reported: bool,
    /// How useful changed blocks are, where the program writes at home.
    pub(super) usefulness: Usefulness,
}

/// The protocol of one process.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(super) rank: u32,
    pub(super) table: Vec<Page>,
    /// Pages with write access, unordered.
    pub(super) writable: Vec<usize>,
    /// Pages with `written`, unordered.
    pub(super) written: Vec<usize>,
    /// Pages that stayed writable over the last barrier, sorted.
    pub(super) kept: Vec<usize>,
    /// Pages written under each lock that is held, unordered and with repetitions.
    scopes: BTreeMap<u32, Vec<usize>>,
    pub(super) cache: Cache,
    pub(super) colocated: Colocated,
    pub(super) locality: Locality,
    pub(super) prefetch_pages: usize,
    /// The same for first writes.
    pub(super) writing: Locality,
    /// Counts how often write access was revoked from all pages.
    pub(super) interval: u32,
    /// Whether pages are opened for writing because their write is predicted.
    pub(crate) predict_writes: bool,
    /// This is the only process: no notices are needed.
    pub(super) alone: bool,
    pub(super) max_checking_pages: usize,
    /// Whether notices name blocks, so that only written blocks are fetched.
    pub(crate) changed_blocks: bool,
    pub(super) fetches: Fetches,
    pub(super) updates: Updates,
    /// Whether pages move to their only writer.
    pub(crate) migrate: bool,
    /// Pages that moved to this process.
    pub(crate) migrations: u64,
    /// Copies that were evicted.
    pub(crate) evictions: u64,
}

/// What [`Machine::fault`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The steps to do before the program continues.
    Steps(Vec<Step>),
    /// No allocation has this page.
    Unknown,
}

impl Machine {
    pub(crate) fn new(options: Options) -> Self {
        let prefetch_pages = options.prefetch_pages.min(options.cache_pages / 4);
        Self {
            rank: options.rank,
            table: Vec::new(),
            writable: Vec::new(),
            written: Vec::new(),
            kept: Vec::new(),
            scopes: BTreeMap::new(),
            cache: Cache::new(options.cache_pages),
            colocated: Colocated::new(options.hosts, options.colocated),
            locality: Locality::new(prefetch_pages),
            prefetch_pages,
            writing: Locality::new(MAX_PAGES_PER_WRITE_FAULT),
            interval: 1,
            predict_writes: true,
            alone: options.alone,
            max_checking_pages: options.max_checking_pages,
            changed_blocks: false,
            fetches: Fetches::default(),
            updates: Updates::default(),
            migrate: false,
            migrations: 0,
            evictions: 0,
        }
    }

    pub(super) fn home(&self, page: usize) -> u32 {
        u32::from(self.table[page].home)
    }

    /// Whether the program sees the bytes of the page's home: the home is this process, or the page is shared.
    pub(super) fn sees_home(&self, page: usize) -> bool {
        self.table[page].shared || self.home(page) == self.rank
    }

    /// Handles an access without the rights for it.
    pub(crate) fn fault(&mut self, page: usize, write: bool) -> Fault {
        let Some(&state) = self.table.get(page).filter(|page| page.home != u16::MAX) else {
            return Fault::Unknown;
        };
        let mut steps = Vec::new();
        let wanted = if write { Access::Write } else { Access::Read };
        // Another thread may have handled the same fault.
        if state.access >= wanted {
            return Fault::Steps(steps);
        }
        if !state.valid {
            self.fetch_for_fault(page, &mut steps);
        }
        if write {
            self.begin_writing(page, &mut steps);
        } else if self.table[page].access == Access::None {
            let runs = match self.sees_home(page) {
                true => self.home_pages(page, |state| state.access == Access::None),
                false => vec![Run { first: page, count: 1 }],
            };
            runs.into_iter().for_each(|run| self.set_access(run, Access::Read, &mut steps));
        }
        Fault::Steps(steps)
    }

    /// Whether the program may read a page now. If so, a fault there is a write.
    pub(crate) fn is_readable(&self, page: usize) -> bool {
        self.table.get(page).is_some_and(|page| page.access == Access::Read)
    }

    /// Steps that make all of these pages readable, fetched together.
    pub(crate) fn fetch_all(&mut self, run: Run) -> Vec<Step> {
        let mut steps = Vec::new();
        let known = run.first..(run.first + run.count).min(self.table.len());
        let missing: Vec<usize> = known
            .filter(|&page| !self.table[page].valid && self.table[page].home != u16::MAX)
            .take(self.cache.most / 2)
            .collect();
        if let Some(&first) = missing.first() {
            self.fetch(&missing, first, &mut steps);
        }
        steps
    }

    /// Pages from `page` on that the program sees at the same home, and for which `fits` holds.
    fn home_pages(&self, page: usize, fits: impl Fn(&Page) -> bool) -> Vec<Run> {
        let home = self.home(page);
        let same = |page| self.home(page) == home && self.sees_home(page);
        let fits = |page: &usize| same(*page) && fits(&self.table[*page]);
        let end = (page + OPEN_AT_ONCE).min(self.table.len());
        let mut runs = Run::of((page..end).filter(fits));
        runs.truncate(OPEN_RUNS);
        runs
    }

    fn fetch_for_fault(&mut self, page: usize, steps: &mut Vec<Step>) {
        let pages = self.fetched_together(page);
        self.fetch(&pages, page, steps);
    }

    /// Evicts if necessary, and fetches sorted pages for reading.
    pub(super) fn fetch(&mut self, pages: &[usize], keep: usize, steps: &mut Vec<Step>) {
        let need = pages.iter().filter(|&&page| !self.table[page].resident).count();
        let victims = self.cache.victims(need, keep);
        self.evict(&victims, steps);
        self.fetch_steps(pages, steps);
        for &page in pages {
            let is_predicted = page != keep;
            let state = &mut self.table[page];
            (state.valid, state.fetched_in) = (true, self.interval);
            state.refetches =
                if state.stale_in == self.interval { state.refetches.saturating_add(1) } else { 0 };
            state.fetch_predictions =
                if is_predicted { state.fetch_predictions.saturating_add(1) } else { 0 };
            if !self.table[page].resident {
                self.table[page].resident = true;
                self.cache.add(page);
            }
        }
        self.set_access_of(pages, Access::Read, steps);
    }

    fn evict(&mut self, victims: &[usize], steps: &mut Vec<Step>) {
        if victims.is_empty() {
            return;
        }
        self.evictions += victims.len() as u64;
        self.forget(victims, steps);
        for &page in victims {
            (self.table[page].resident, self.table[page].here) = (false, Blocks::NONE);
            self.drop_update(page);
        }
        steps.extend(Run::of(victims.iter().copied()).into_iter().map(Step::Discard));
    }

    /// Invalidates sorted copies. Their own changes go home first.
    pub(super) fn forget(&mut self, pages: &[usize], steps: &mut Vec<Step>) {
        let open = pages.iter().copied().filter(|&page| self.table[page].access != Access::None);
        self.set_access_of(&open.collect::<Vec<_>>(), Access::None, steps);
        self.flush(pages, steps);
        for &page in pages {
            self.table[page].valid = false;
        }
    }

    /// Sends the changes of those pages that have any, before the next barrier.
    fn flush(&mut self, pages: &[usize], steps: &mut Vec<Step>) {
        for &page in pages {
            if self.table[page].dirty {
                self.table[page].sent_early_in = self.updates.interval();
            }
        }
        self.flush_at_barrier(pages, steps);
    }

    fn flush_at_barrier(&mut self, pages: &[usize], steps: &mut Vec<Step>) {
        for &page in pages {
            if std::mem::take(&mut self.table[page].dirty) {
                steps.push(match self.sees_home(page) {
                    true => Step::Compare(page),
                    false => Step::Flush(page, self.home(page)),
                });
            }
        }
    }

    /// Opens a page for writing, and with it the pages that are likely to be written next.
    fn begin_writing(&mut self, page: usize, steps: &mut Vec<Step>) {
        if self.alone {
            let runs = self.home_pages(page, |state| state.access != Access::Write);
            runs.into_iter().for_each(|run| self.set_access(run, Access::Write, steps));
            return;
        }
        let pages = self.written_together(page);
        for &each in &pages {
            self.note_write(each, each != page, steps);
        }
        self.writable.extend(&pages);
        self.set_access_of(&pages, Access::Write, steps);
    }

    fn note_write(&mut self, page: usize, is_predicted: bool, steps: &mut Vec<Step>) {
        let twin = self.needs_twin(page);
        let state = &mut self.table[page];
        if twin && !state.dirty {
            state.dirty = true;
            steps.push(Step::Twin(page));
        }
        state.write_predictions = match (is_predicted, state.written_in) {
            (false, _) => {
                state.prediction_limit.on_fault(state.write_predictions);
                0
            }
            // Only an adjacent page suggests it; the next interval must confirm that it is written, by a fault or a walk of faults.
            (true, 0) => UNCONFIRMED,
            (true, _) if state.write_predictions == UNCONFIRMED => 1,
            (true, _) => state.write_predictions + 1,
        };
        state.written_in_a_row = match self.interval.wrapping_sub(state.written_in) {
            0 => state.written_in_a_row,
            1 => state.written_in_a_row.saturating_add(1),
            _ => 1,
        };
        state.written_in = self.interval;
        if !twin {
            // There is no twin to compare with later.
            (state.known_written, state.wrote) = (true, Blocks::ALL);
            state.usefulness.on_whole_page_write();
        }
        state.known_written |= !is_predicted;
        if !state.written {
            state.written = true;
            self.written.push(page);
        }
        for scope in self.scopes.values_mut() {
            scope.push(page);
        }
    }

    /// Records that a page differs from its twin in these blocks.
    pub(crate) fn compared(&mut self, page: usize, changed: Blocks) {
        if self.sees_home(page) {
            self.table[page].usefulness.on_compared(changed);
        }
        self.note_changed(page, changed);
    }

    fn note_changed(&mut self, page: usize, changed: Blocks) {
        let state = &mut self.table[page];
        state.known_written |= !changed.is_empty();
        state.wrote = state.wrote.with(changed);
    }

    pub(super) fn set_access(&mut self, run: Run, access: Access, steps: &mut Vec<Step>) {
        for page in &mut self.table[run.pages()] {
            page.access = access;
        }
        steps.push(Step::Protect(run, access));
    }

    /// The same for sorted pages.
    pub(super) fn set_access_of(&mut self, pages: &[usize], access: Access, steps: &mut Vec<Step>) {
        Run::of(pages.iter().copied()).into_iter().for_each(|run| self.set_access(run, access, steps));
    }

    /// Revokes write access from all pages, so that the next write of each faults.
    fn close_interval(&mut self, steps: &mut Vec<Step>) {
        self.interval = self.interval.wrapping_add(1).max(1);
        let mut writable = std::mem::take(&mut self.writable);
        writable.sort();
        writable.dedup();
        writable.retain(|&page| self.table[page].access == Access::Write);
        let runs = self.joined(Run::of(writable));
        runs.into_iter().for_each(|run| self.set_access(run, Access::Read, steps));
    }

    /// Joins sorted runs where only pages that are open for reading lie between them: to open those for reading again
    /// costs less than a step of its own for each run.
    fn joined(&self, runs: Vec<Run>) -> Vec<Run> {
        let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
        for run in runs {
            match joined.last_mut() {
                Some(last)
                    if run.first - last.pages().end <= OPEN_AT_ONCE
                        && self.table[last.pages().end..run.first]
                            .iter()
                            .all(|page| page.access == Access::Read) =>
                {
                    last.count = run.pages().end - last.first;
                }
                _ => joined.push(run),
            }
        }
        joined
    }

    /// A lock is acquired. `received` are the new notices of its log.
    pub(crate) fn acquire(&mut self, lock: u32, received: &Notices) -> Vec<Step> {
        let mut steps = Vec::new();
        self.close_interval(&mut steps);
        self.invalidate([received], &mut steps);
        self.scopes.insert(lock, Vec::new());
        steps
    }

    /// A lock is about to be released. Returns the steps before [`Machine::released`].
    pub(crate) fn release(&mut self, lock: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        let Some(pages) = self.scopes.get_mut(&lock) else { return steps };
        pages.sort_unstable();
        pages.dedup();
        let pages = pages.clone();
        let open = pages.iter().copied().filter(|&page| self.table[page].access == Access::Write);
        self.set_access_of(&open.collect::<Vec<_>>(), Access::Read, &mut steps);
        self.flush(&pages, &mut steps);
        steps
    }

    /// Those steps are done. Returns the notices for the next holder.
    pub(crate) fn released(&mut self, lock: u32) -> Vec<Notice> {
        let mut pages = self.scopes.remove(&lock).unwrap_or_default();
        pages.retain(|&page| self.table[page].known_written);
        let notices = pages.into_iter().map(|page| self.notice(page, false));
        Notice::merged(notices.collect(), MAX_LOCK_NOTICES)
    }

    fn notice(&self, page: usize, kept: bool) -> Notice {
        // Written, but equal to the twin. An earlier notice may have listed the page, so all blocks count.
        let wrote = self.table[page].wrote;
        let blocks = if self.changed_blocks && !wrote.is_empty() { wrote } else { Blocks::ALL };
        Notice { run: Run { first: page, count: 1 }, kept, blocks }
    }

    /// This process arrives at a barrier. Returns the steps before [`Machine::arrived`].
    pub(crate) fn arrive(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        self.keep_writable();
        self.close_interval(&mut steps);
        let mut pages = std::mem::take(&mut self.written);
        pages.sort();
        self.flush_at_barrier(&pages, &mut steps);
        self.written = pages;
        steps
    }

    /// Those steps are done. Returns the notices for all processes.
    pub(crate) fn arrived(&mut self) -> Vec<Notice> {
        let mut notices: Vec<Notice> = Vec::new();
        for page in std::mem::take(&mut self.written) {
            let notice = self.notice(page, self.table[page].valid);
            let sees_home = self.sees_home(page);
            let state = &mut self.table[page];
            if sees_home && state.wrote != Blocks::ALL {
                state.usefulness.on_blocks_announced();
            }
            (state.written, state.wrote) = (false, Blocks::NONE);
            if std::mem::take(&mut state.known_written) {
                notices.push(notice);
            }
        }
        // They may be written at any time from now on, so the next barrier announces them in any case.
        for at in 0..self.kept.len() {
            self.note_write(self.kept[at], true, &mut Vec::new());
        }
        self.writable.extend(&self.kept);
        let mut notices = Notice::merged(notices, MAX_BARRIER_NOTICES);
        self.choose_updates(&notices);
        notices.extend(self.updates.requests(MAX_BARRIER_NOTICES.saturating_sub(notices.len())));
        notices.extend(self.fetches.report(MAX_BARRIER_NOTICES.saturating_sub(notices.len())));
        notices
    }

    /// All processes have arrived at the barrier. `received` has the notices of each, by rank, including our own, and `updates` the
    /// pages that came with them.
    pub(crate) fn depart(&mut self, received: &[Notices], updates: &[Update]) -> Vec<Step> {
        let mut steps = Vec::new();
        let own = self.rank as usize;
        let others = received.iter().enumerate().filter(|(rank, _)| *rank != own);
        let stale = self.invalidate(others.map(|(_, received)| received), &mut steps);
        if self.migrate {
            self.move_homes(received, &mut steps);
        }
        self.note_requests(received);
        self.receive_updates(received, updates);
        self.fetch_again(&stale, received, &mut steps);
        self.end_updates();
        steps
    }

    /// Invalidates copies that other processes wrote, and returns these pages.
    fn invalidate<'a>(
        &mut self,
        received: impl IntoIterator<Item = &'a Notices>,
        steps: &mut Vec<Step>,
    ) -> Vec<usize> {
        let mut stale = Vec::new();
        for received in received {
            match received {
                Notices::Pages(notices) => {
                    let end = self.table.len();
                    for Notice { run, blocks, .. } in notices {
                        let pages = run.first.min(end)..(run.first + run.count).min(end);
                        stale.extend(pages.filter(|&page| self.mark_stale(page, *blocks)));
                    }
                }
                Notices::Overflow => {
                    stale =
                        (0..self.table.len()).filter(|&page| self.mark_stale(page, Blocks::ALL)).collect();
                    break;
                }
            }
        }
        stale.sort_unstable();
        stale.dedup();
        self.forget(&stale, steps);
        stale
    }

    /// Handles a notice: another process wrote these blocks or, if none, fetched the page. Returns whether there is a copy to invalidate.
    fn mark_stale(&mut self, page: usize, blocks: Blocks) -> bool {
        if self.sees_home(page) {
            if blocks.is_empty() {
                self.table[page].usefulness.on_fetched();
            }
            if self.table[page].dirty {
                // The page has their words, but its twin does not: a later write of ours may not differ from the twin.
                self.note_changed(page, blocks);
            }
            return false;
        }
        let state = &mut self.table[page];
        state.here = state.here.without(blocks);
        state.valid && !blocks.is_empty()
    }

    /// Closes all pages. The next access to each faults.
    pub(crate) fn close_all(&mut self) {
        for page in &mut self.table {
            page.access = Access::None;
        }
        self.writable.clear();
    }
}
