//! What happens to a page at a fault, a lock, a barrier.

use super::cache::Cache;
use super::locality::Locality;
use super::notice::{Notice, Told};
use super::{Access, Run, Step};
use std::collections::BTreeMap;

/// Home pages that one read fault opens at once; nothing is copied for them.
const OPEN_AT_ONCE: usize = 64;

/// What is fixed when a process joins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) rank: u32,
    pub(crate) cache_pages: usize,
    /// Most pages fetched together with one, 0 for none.
    pub(crate) prefetch_pages: usize,
    /// How far behind it they may be.
    pub(crate) max_checking_pages: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Page {
    home: u16,
    access: Access,
    /// There is a copy here that may be read. Always so at home.
    valid: bool,
    /// There is a twin: the copy has words that its home lacks.
    dirty: bool,
    /// Written since the last barrier.
    written: bool,
    /// Counted by the cache.
    resident: bool,
}

/// The protocol of one process.
#[derive(Debug)]
pub(crate) struct Machine {
    rank: u32,
    table: Vec<Page>,
    /// Pages with write access, unordered.
    writable: Vec<usize>,
    /// Pages with `written`, unordered.
    written: Vec<usize>,
    /// Pages written under each lock that is held, unordered and with repetitions.
    scopes: BTreeMap<u32, Vec<usize>>,
    cache: Cache,
    locality: Locality,
    max_checking_pages: usize,
    migrate: bool,
    migrations: u64,
}

/// What [`Machine::fault`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// To be done, then the program may go on.
    Steps(Vec<Step>),
    /// No allocation has this page.
    Unknown,
}

impl Machine {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            rank: options.rank,
            table: Vec::new(),
            writable: Vec::new(),
            written: Vec::new(),
            scopes: BTreeMap::new(),
            cache: Cache::new(options.cache_pages),
            locality: Locality::new(options.prefetch_pages.min(options.cache_pages / 4)),
            max_checking_pages: options.max_checking_pages,
            migrate: false,
            migrations: 0,
        }
    }

    /// Whether pages move to their only writer.
    pub(crate) fn set_migration(&mut self, on: bool) {
        self.migrate = on;
    }

    /// Pages that moved to this process.
    pub(crate) fn migrations(&self) -> u64 {
        self.migrations
    }

    /// New pages and their home.
    pub(crate) fn place(&mut self, run: Run, home: u32) {
        let end = run.first + run.count;
        if self.table.len() < end {
            self.table.resize(end, Page { home: u16::MAX, ..Page::default() });
        }
        let valid = home == self.rank;
        self.table[run.pages()].fill(Page { home: home as u16, valid, ..Page::default() });
    }

    /// Pages that are no longer allocated. Their bytes are nobody's.
    pub(crate) fn unplace(&mut self, run: Run) -> Vec<Step> {
        self.table[run.pages()].fill(Page { home: u16::MAX, ..Page::default() });
        self.writable.retain(|page| !run.pages().contains(page));
        self.written.retain(|page| !run.pages().contains(page));
        self.cache.retain(|page| !run.pages().contains(&page));
        vec![Step::Protect(run, Access::None), Step::Discard(run)]
    }

    fn home(&self, page: usize) -> u32 {
        u32::from(self.table[page].home)
    }

    fn is_home(&self, page: usize) -> bool {
        self.home(page) == self.rank
    }

    /// The program touched a page that it may not.
    pub(crate) fn fault(&mut self, page: usize, write: bool) -> Fault {
        let Some(&state) = self.table.get(page).filter(|page| page.home != u16::MAX) else {
            return Fault::Unknown;
        };
        let mut steps = Vec::new();
        let wanted = if write { Access::Write } else { Access::Read };
        // Another thread may have been here first.
        if state.access >= wanted {
            return Fault::Steps(steps);
        }
        if !state.valid {
            self.bring(page, &mut steps);
        }
        if write {
            self.begin_writing(page, &mut steps);
        } else if self.table[page].access == Access::None {
            let run =
                if self.is_home(page) { self.closed_home_pages(page) } else { Run { first: page, count: 1 } };
            self.set_access(run, Access::Read, &mut steps);
        }
        Fault::Steps(steps)
    }

    /// Whether the program may read a page now: then a fault there is a write.
    pub(crate) fn is_readable(&self, page: usize) -> bool {
        self.table.get(page).is_some_and(|page| page.access == Access::Read)
    }

    /// Steps that make all of these pages readable, fetched together.
    pub(crate) fn fetch_all(&mut self, run: Run) -> Vec<Step> {
        let mut steps = Vec::new();
        let known = run.first..(run.first + run.count).min(self.table.len());
        let missing: Vec<usize> = known
            .filter(|&page| !self.table[page].valid && self.table[page].home != u16::MAX)
            .take(self.cache.most() / 2)
            .collect();
        if let Some(&first) = missing.first() {
            self.fetch(&missing, first, &mut steps);
        }
        steps
    }

    /// Pages around `page` that are at home here and not open yet.
    fn closed_home_pages(&self, page: usize) -> Run {
        let closed = |page: &usize| self.is_home(*page) && self.table[*page].access == Access::None;
        let end = (page + OPEN_AT_ONCE).min(self.table.len());
        Run { first: page, count: (page..end).take_while(closed).count() }
    }

    fn bring(&mut self, page: usize, steps: &mut Vec<Step>) {
        let ahead = self.locality.ahead(page);
        let far = if ahead == 0 { 0 } else { self.max_checking_pages.max(ahead) };
        let end = (page + 1 + far).min(self.table.len());
        let wanted = |&page: &usize| !self.table[page].valid && self.table[page].home != u16::MAX;
        let mut pages = vec![page];
        pages.extend((page + 1..end).filter(wanted).take(ahead));
        self.locality.fetched(page, pages.last().map_or(page, |last| last + 1));
        self.fetch(&pages, page, steps);
    }

    /// Makes room for sorted pages and fetches them, readable.
    fn fetch(&mut self, pages: &[usize], keep: usize, steps: &mut Vec<Step>) {
        let need = pages.iter().filter(|&&page| !self.table[page].resident).count();
        let victims = self.cache.victims(need, keep);
        self.evict(&victims, steps);
        for run in Run::of(pages.iter().copied()) {
            let mut first = run.first;
            for page in run.pages() {
                if self.home(page) != self.home(first) {
                    steps.push(Step::Fetch(Run { first, count: page - first }, self.home(first)));
                    first = page;
                }
            }
            steps.push(Step::Fetch(Run { first, count: run.first + run.count - first }, self.home(first)));
        }
        for &page in pages {
            self.table[page].valid = true;
            if !self.table[page].resident {
                self.table[page].resident = true;
                self.cache.add(page);
            }
        }
        for run in Run::of(pages.iter().copied()) {
            self.set_access(run, Access::Read, steps);
        }
    }

    fn evict(&mut self, victims: &[usize], steps: &mut Vec<Step>) {
        if victims.is_empty() {
            return;
        }
        self.forget(victims, steps);
        for &page in victims {
            self.table[page].resident = false;
        }
        steps.extend(Run::of(victims.iter().copied()).into_iter().map(Step::Discard));
    }

    /// Sorted copies are no longer good here; what they have alone goes home first.
    fn forget(&mut self, pages: &[usize], steps: &mut Vec<Step>) {
        let open = pages.iter().copied().filter(|&page| self.table[page].access != Access::None);
        for run in Run::of(open) {
            self.set_access(run, Access::None, steps);
        }
        self.flush(pages, steps);
        for &page in pages {
            self.table[page].valid = false;
        }
    }

    /// Sends the changes of those pages that have any.
    fn flush(&mut self, pages: &[usize], steps: &mut Vec<Step>) {
        for &page in pages {
            if std::mem::take(&mut self.table[page].dirty) {
                steps.push(Step::Flush(page, self.home(page)));
            }
        }
    }

    fn begin_writing(&mut self, page: usize, steps: &mut Vec<Step>) {
        if !self.is_home(page) && !self.table[page].dirty {
            self.table[page].dirty = true;
            steps.push(Step::Twin(page));
        }
        if !self.table[page].written {
            self.table[page].written = true;
            self.written.push(page);
        }
        for scope in self.scopes.values_mut() {
            scope.push(page);
        }
        self.writable.push(page);
        self.set_access(Run { first: page, count: 1 }, Access::Write, steps);
    }

    fn set_access(&mut self, run: Run, access: Access, steps: &mut Vec<Step>) {
        for page in &mut self.table[run.pages()] {
            page.access = access;
        }
        steps.push(Step::Protect(run, access));
    }

    /// Takes write access from everything, so that the next write of each page is noticed.
    fn close_interval(&mut self, steps: &mut Vec<Step>) {
        let mut writable = std::mem::take(&mut self.writable);
        writable.sort_unstable();
        writable.dedup();
        writable.retain(|&page| self.table[page].access == Access::Write);
        for run in Run::of(writable) {
            self.set_access(run, Access::Read, steps);
        }
    }

    /// A lock was taken; `told` is what was written under it since this process last knew.
    pub(crate) fn acquire(&mut self, lock: u32, told: &Told) -> Vec<Step> {
        let mut steps = Vec::new();
        self.close_interval(&mut steps);
        self.invalidate([told], &mut steps);
        self.scopes.insert(lock, Vec::new());
        steps
    }

    /// A lock is about to be given back: what to do before, and what to tell the next holder.
    pub(crate) fn release(&mut self, lock: u32) -> (Vec<Step>, Vec<Notice>) {
        let mut steps = Vec::new();
        let mut pages = self.scopes.remove(&lock).unwrap_or_default();
        pages.sort_unstable();
        pages.dedup();
        let open: Vec<usize> =
            pages.iter().copied().filter(|&page| self.table[page].access == Access::Write).collect();
        for run in Run::of(open) {
            self.set_access(run, Access::Read, &mut steps);
        }
        self.flush(&pages, &mut steps);
        let notices = Run::of(pages).into_iter().map(|run| Notice { run, kept: false }).collect();
        (steps, notices)
    }

    /// This process comes to a barrier: what to do before it says so, and what to tell everybody.
    pub(crate) fn arrive(&mut self) -> (Vec<Step>, Vec<Notice>) {
        let mut steps = Vec::new();
        self.close_interval(&mut steps);
        let mut pages = std::mem::take(&mut self.written);
        pages.sort_unstable();
        self.flush(&pages, &mut steps);
        for &page in &pages {
            self.table[page].written = false;
        }
        let mut notices: Vec<Notice> = Vec::new();
        for page in pages {
            let kept = self.table[page].valid;
            match notices.last_mut() {
                Some(last) if last.kept == kept && last.run.first + last.run.count == page => {
                    last.run.count += 1
                }
                _ => notices.push(Notice { run: Run { first: page, count: 1 }, kept }),
            }
        }
        (steps, notices)
    }

    /// Everybody has come to the barrier. `told` has what each process said, by rank, this one's own included.
    pub(crate) fn depart(&mut self, told: &[Told]) -> Vec<Step> {
        let mut steps = Vec::new();
        let own = self.rank as usize;
        let others = told.iter().enumerate().filter(|(rank, _)| *rank != own);
        self.invalidate(others.map(|(_, told)| told), &mut steps);
        if self.migrate {
            self.move_homes(told);
        }
        steps
    }

    /// Forgets copies that somebody else wrote.
    fn invalidate<'a>(&mut self, told: impl IntoIterator<Item = &'a Told>, steps: &mut Vec<Step>) {
        let mut stale = Vec::new();
        for told in told {
            match told {
                Told::Pages(notices) => {
                    let end = self.table.len();
                    let pages = notices.iter().flat_map(|notice| {
                        notice.run.first.min(end)..(notice.run.first + notice.run.count).min(end)
                    });
                    stale.extend(pages.filter(|&page| self.table[page].valid && !self.is_home(page)));
                }
                Told::Anything => {
                    stale = (0..self.table.len())
                        .filter(|&page| self.table[page].valid && !self.is_home(page))
                        .collect();
                    break;
                }
            }
        }
        stale.sort_unstable();
        stale.dedup();
        self.forget(&stale, steps);
    }

    /// A page that one process alone wrote, and still has, is at home there from now on. Everybody was told the same
    /// and so decides the same.
    fn move_homes(&mut self, told: &[Told]) {
        let mut writers: BTreeMap<usize, Option<u16>> = BTreeMap::new();
        let mut moved = false;
        for (rank, told) in (0u16..).zip(told) {
            let Told::Pages(notices) = told else { return };
            for Notice { run, kept } in notices {
                for page in run.pages() {
                    writers.entry(page).and_modify(|writer| *writer = None).or_insert(kept.then_some(rank));
                }
            }
        }
        for (page, writer) in writers {
            let Some(writer) = writer.filter(|_| page < self.table.len()) else { continue };
            let state = &mut self.table[page];
            if state.home == writer || state.home == u16::MAX {
                continue;
            }
            let (was_home, is_home) = (u32::from(state.home) == self.rank, u32::from(writer) == self.rank);
            state.home = writer;
            if is_home {
                moved = true;
                self.migrations += 1;
                (state.resident, state.dirty) = (false, false);
            } else if was_home {
                // Our copy is as good as the new home's until the next notice; from now on it counts.
                state.resident = true;
                self.cache.add(page);
            }
        }
        if moved {
            let table = &self.table;
            self.cache.retain(|page| table[page].resident);
        }
    }

    /// The program may do nothing at all now; every page it touches faults once more.
    pub(crate) fn close_all(&mut self) {
        for page in &mut self.table {
            page.access = Access::None;
        }
        self.writable.clear();
    }
}
