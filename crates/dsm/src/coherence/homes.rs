//! The home of each page.

use super::machine::{Machine, Page};
use super::notice::{Notice, Notices};
use super::{Access, Blocks, Run, Step};
use std::collections::BTreeMap;

impl Machine {
    /// New pages and their home.
    pub(crate) fn place(&mut self, run: Run, home: u32) -> Vec<Step> {
        let end = run.first + run.count;
        if self.table.len() < end {
            self.table.resize(end, Page { home: u16::MAX, ..Page::default() });
        }
        let valid = home == self.rank;
        let here = if valid { Blocks::ALL } else { Blocks::NONE };
        self.table[run.pages()].fill(Page { home: home as u16, valid, here, ..Page::default() });
        let mut steps = Vec::new();
        self.share(run, &mut steps);
        steps
    }

    /// Pages that are no longer allocated. Their bytes are undefined.
    pub(crate) fn unplace(&mut self, run: Run) -> Vec<Step> {
        let mut steps = vec![Step::Protect(run, Access::None)];
        self.unshare(run.pages(), &mut steps);
        self.table[run.pages()].fill(Page { home: u16::MAX, ..Page::default() });
        self.writable.retain(|page| !run.pages().contains(page));
        self.written.retain(|page| !run.pages().contains(page));
        self.cache.retain(|page| !run.pages().contains(&page));
        steps.push(Step::Discard(run));
        steps
    }

    /// Moves the home of each page to its only writer, if that still has a copy. A writer co-located with the old
    /// home has no bytes of its own and does not become the home. All processes receive the same notices and so
    /// decide the same.
    pub(super) fn move_homes(&mut self, received: &[Notices], steps: &mut Vec<Step>) {
        let mut writers: BTreeMap<usize, Option<u16>> = BTreeMap::new();
        for (rank, received) in (0u16..).zip(received) {
            let Notices::Pages(notices) = received else { return };
            for Notice { run, kept, .. } in notices.iter().filter(|notice| !notice.blocks.is_empty()) {
                for page in run.pages() {
                    writers.entry(page).and_modify(|writer| *writer = None).or_insert(kept.then_some(rank));
                }
            }
        }
        let moves = |(page, writer): (usize, Option<u16>)| {
            let home = self.table.get(page)?.home;
            let moves = |writer: &u16| home != u16::MAX && !self.colocated.same_host(home, *writer);
            Some((page, writer.filter(moves)?))
        };
        let moves: Vec<(usize, u16)> = writers.into_iter().filter_map(moves).collect();
        self.unshare(moves.iter().map(|(page, _)| *page), steps);
        let (mut moved, mut came) = (false, Vec::new());
        for (page, writer) in moves {
            let state = &mut self.table[page];
            self.colocated.on_home_moved(state.home);
            let (was_home, is_home) = (u32::from(state.home) == self.rank, u32::from(writer) == self.rank);
            state.home = writer;
            if was_home || is_home {
                // The new home has a whole page, and the old home has a whole copy.
                state.here = Blocks::ALL;
            }
            if is_home {
                moved = true;
                self.migrations += 1;
                (state.resident, state.dirty) = (false, false);
            } else if was_home {
                // Our copy is as good as the new home's until the next notice. From now on the cache counts it.
                state.resident = true;
                self.cache.add(page);
            } else if self.colocated.shows(writer) {
                came.push(page);
            }
        }
        for run in self.runs_by_home(came) {
            self.share(run, steps);
        }
        if moved {
            let table = &self.table;
            self.cache.retain(|page| table[page].resident);
        }
    }
}
