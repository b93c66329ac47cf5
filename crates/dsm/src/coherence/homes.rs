//! Which page is at home where.

use super::machine::{Machine, Page};
use super::notice::{Notice, Told};
use super::{Access, Blocks, Run, Step};
use std::collections::BTreeMap;

impl Machine {
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
        let here = if valid { Blocks::ALL } else { Blocks::NONE };
        self.table[run.pages()].fill(Page { home: home as u16, valid, here, ..Page::default() });
    }

    /// Pages that are no longer allocated. Their bytes are nobody's.
    pub(crate) fn unplace(&mut self, run: Run) -> Vec<Step> {
        self.table[run.pages()].fill(Page { home: u16::MAX, ..Page::default() });
        self.writable.retain(|page| !run.pages().contains(page));
        self.written.retain(|page| !run.pages().contains(page));
        self.cache.retain(|page| !run.pages().contains(&page));
        vec![Step::Protect(run, Access::None), Step::Discard(run)]
    }

    /// A page that one process alone wrote, and still has, is at home there from now on. Everybody was told the same
    /// and so decides the same.
    pub(super) fn move_homes(&mut self, told: &[Told]) {
        let mut writers: BTreeMap<usize, Option<u16>> = BTreeMap::new();
        let mut moved = false;
        for (rank, told) in (0u16..).zip(told) {
            let Told::Pages(notices) = told else { return };
            for Notice { run, kept, .. } in notices {
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
            if was_home || is_home {
                // What is at home is whole, and what was is a whole copy.
                state.here = Blocks::ALL;
            }
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
}
