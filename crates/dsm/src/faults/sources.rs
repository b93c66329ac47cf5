//! The mappings that the program's view shows: our own, or that of a co-located process.

use crate::PAGE;
use crate::coherence::Run;
use crate::error::Error;
use crate::map::{Mapping, punch};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

/// The memory of one process: its file, and a mapping of it that is always writable.
pub(crate) struct Source {
    pub(crate) file: File,
    pub(crate) mapping: Arc<Mapping>,
}

/// The mappings that can be shown, and the mapping of each page.
pub(crate) struct Sources {
    own: u32,
    /// Offset of the heap, in all mappings.
    heap: usize,
    mappings: BTreeMap<u32, Source>,
    /// The rank of the shown mapping, by page. Pages beyond its end are our own.
    shown: Mutex<Vec<u32>>,
}

impl Sources {
    /// `mappings` are by rank, and include `own`.
    pub(crate) fn new(own: u32, heap: usize, mappings: BTreeMap<u32, Source>) -> Self {
        Self { own, heap, mappings, shown: Mutex::default() }
    }

    pub(super) fn own(&self) -> u32 {
        self.own
    }

    /// Frees the memory of pages of our own mapping.
    pub(crate) fn discard(&self, run: Run) -> Result<(), Error> {
        punch(&self.mappings[&self.own].file, self.heap + run.first * PAGE, run.count * PAGE)
    }

    /// A mapping, and the offset of the heap in it.
    pub(super) fn mapping(&self, rank: u32) -> Result<(&Source, usize), Error> {
        let unknown = || Error::Transport(format!("the memory of process {rank} is not mapped here"));
        self.mappings.get(&rank).map(|source| (source, self.heap)).ok_or_else(unknown)
    }

    /// The rank of the process whose mapping shows a page.
    pub(super) fn rank(&self, page: usize) -> u32 {
        self.shown.lock().get(page).copied().unwrap_or(self.own)
    }

    fn at(&self, page: usize) -> (&Mapping, usize) {
        (&self.mappings[&self.rank(page)].mapping, self.heap + page * PAGE)
    }

    /// Copies a page from the mapping that is shown, even if the page is closed for the program.
    pub(crate) fn read(&self, page: usize, into: &mut [u8; PAGE]) {
        let (mapping, at) = self.at(page);
        mapping.read(at, into);
    }

    /// Allocates a page in its file.
    pub(super) fn touch(&self, page: usize) {
        let (mapping, at) = self.at(page);
        mapping.touch(at);
    }

    /// Records the mapping that pages are shown from.
    pub(super) fn set(&self, run: Run, rank: u32) {
        let mut shown = self.shown.lock();
        let end = run.first + run.count;
        if shown.len() < end {
            shown.resize(end.next_power_of_two(), self.own);
        }
        shown[run.pages()].fill(rank);
    }

    /// The first part of a run whose pages belong to one mapping.
    pub(super) fn first_piece(&self, run: Run) -> Run {
        let shown = self.shown.lock();
        let rank = |page: usize| shown.get(page).copied().unwrap_or(self.own);
        if run.first >= shown.len() {
            return run;
        }
        let alike = run.pages().take_while(|page| rank(*page) == rank(run.first));
        Run { count: alike.count(), ..run }
    }
}
