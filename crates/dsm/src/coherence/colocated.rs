//! Pages whose home is co-located. The program sees the home's own bytes, which the hardware keeps coherent. Such a
//! page is always valid and never fetched, and writes to it are immediately at home. Notices still list it, since other
//! hosts have copies.
//!
//! Each process decides for itself what it shares. A home treats a process that does not share like one on another
//! host. Only home migration is decided by all processes alike.

use super::machine::Machine;
use super::{Access, Blocks, Run, Step};
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of pieces of the view that show other mappings. Each may split the mapping twice, and the system
/// allows about 65000 mappings.
const MAX_PIECES: usize = 16384;

/// The co-located processes, and what is shared with them.
#[derive(Debug)]
pub(super) struct Colocated {
    /// The host of each rank. A rank beyond the end is alone on its host.
    hosts: Vec<u32>,
    ranks: Vec<u32>,
    /// Whether pages are shared from now on.
    on: bool,
    pieces: usize,
    /// A page left a host that runs several processes.
    left: bool,
    /// Pages ever shared, by their homes.
    pages: BTreeMap<u32, u64>,
}

impl Colocated {
    pub(super) fn new(hosts: Vec<u32>, ranks: Vec<u32>) -> Self {
        Self { hosts, ranks, on: true, pieces: 0, left: false, pages: BTreeMap::new() }
    }

    fn host(&self, rank: u16) -> Option<u32> {
        self.hosts.get(usize::from(rank)).copied()
    }

    /// Whether both processes are on one host, or are the same.
    pub(super) fn same_host(&self, one: u16, other: u16) -> bool {
        one == other || self.host(one).is_some_and(|host| self.host(other) == Some(host))
    }

    /// Whether pages of this home can be shared.
    pub(super) fn shows(&self, home: u16) -> bool {
        self.on && self.ranks.contains(&u32::from(home))
    }

    /// A home moves away from this process.
    pub(super) fn on_home_moved(&mut self, from: u16) {
        let host = self.host(from);
        self.left |= host.is_some() && self.hosts.iter().filter(|other| Some(**other) == host).count() > 1;
    }
}

impl Machine {
    /// Turns sharing with co-located homes on or off for new pages. Pages that are shared already stay shared.
    pub(crate) fn set_sharing(&mut self, on: bool) {
        self.colocated.on = on;
    }

    /// Pages that were ever shared, by their homes.
    pub(crate) fn shared_pages(&self) -> &BTreeMap<u32, u64> {
        &self.colocated.pages
    }

    /// Whether pages left a host of several processes at the last barrier; the same in all processes. Their old home discards its
    /// bytes after the barrier, so all processes must wait for each other again once they have stopped showing these bytes.
    pub(crate) fn must_wait_again(&mut self) -> bool {
        std::mem::take(&mut self.colocated.left)
    }

    /// Sorted pages in runs of one home each.
    pub(super) fn runs_by_home(&self, pages: impl IntoIterator<Item = usize>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                Some(run) if run.first + run.count == page && self.home(run.first) == self.home(page) => {
                    run.count += 1;
                }
                _ => runs.push(Run { first: page, count: 1 }),
            }
        }
        runs
    }

    /// Shows pages of one home, if it is co-located. This process has no unsent changes to them.
    pub(super) fn share(&mut self, run: Run, steps: &mut Vec<Step>) {
        let home = self.table[run.first].home;
        if !self.colocated.shows(home) || self.colocated.pieces >= MAX_PIECES {
            return;
        }
        self.close(run.pages(), steps);
        let copies: Vec<usize> = run.pages().filter(|&page| self.table[page].resident).collect();
        steps.extend(Run::of(copies.iter().copied()).into_iter().map(Step::Discard));
        steps.push(Step::Show(run, u32::from(home)));
        let before = self.pieces_around(run);
        for state in &mut self.table[run.pages()] {
            (state.shared, state.valid, state.here) = (true, true, Blocks::ALL);
            (state.resident, state.dirty) = (false, false);
        }
        self.colocated.pieces = self.colocated.pieces + self.pieces_around(run) - before;
        *self.colocated.pages.entry(u32::from(home)).or_default() += run.count as u64;
        if !copies.is_empty() {
            let table = &self.table;
            self.cache.retain(|page| table[page].resident);
        }
    }

    /// Shows our own mapping again for those of the sorted pages that are shared. It has no bytes there.
    pub(super) fn unshare(&mut self, pages: impl IntoIterator<Item = usize>, steps: &mut Vec<Step>) {
        let shared = pages.into_iter().filter(|&page| self.table[page].shared);
        for run in Run::of(shared.collect::<Vec<_>>()) {
            self.close(run.pages(), steps);
            steps.push(Step::Show(run, self.rank));
            let before = self.pieces_around(run);
            for state in &mut self.table[run.pages()] {
                (state.shared, state.valid, state.here) = (false, false, Blocks::NONE);
            }
            self.colocated.pieces = self.colocated.pieces + self.pieces_around(run) - before;
        }
    }

    /// Whether these pages are still shared with that process; `None` if it is this process.
    pub(crate) fn is_to_show(&self, run: Run, rank: u32) -> Option<bool> {
        (rank != self.rank).then(|| self.table[run.first].shared)
    }

    /// Stops sharing, because the system allows no more mappings. All pages are fetched from now on.
    pub(crate) fn stop_sharing(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        let shared: Vec<usize> = (0..self.table.len()).filter(|&page| self.table[page].shared).collect();
        self.forget(&shared, &mut steps);
        self.unshare(shared, &mut steps);
        self.colocated.on = false;
        self.colocated.pages.clear();
        steps
    }

    fn close(&mut self, pages: Range<usize>, steps: &mut Vec<Step>) {
        let open = pages.filter(|&page| self.table[page].access != Access::None);
        self.set_access_of(&open.collect::<Vec<_>>(), Access::None, steps);
    }

    /// Counts the pieces of other mappings that begin in these pages or right behind them.
    fn pieces_around(&self, run: Run) -> usize {
        let shown = |page: usize| Some(&self.table[page]).filter(|page| page.shared).map(|page| page.home);
        let begins = |page: &usize| {
            let home = shown(*page);
            home.is_some() && (*page == 0 || home != shown(*page - 1))
        };
        (run.first..(run.first + run.count + 1).min(self.table.len())).filter(begins).count()
    }
}
