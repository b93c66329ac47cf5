//! The coherence protocol of one process, as a machine without I/O, clock or memory of its own.
//!
//! Home based, multiple writers, scope consistency. Every page has a home, whose copy is always valid. A process that
//! reads a page of another home keeps a copy. A process that writes one keeps a twin as well, and sends the words
//! that differ home when the interval ends: at the release of a lock for what it wrote under the lock, at a barrier
//! for everything. Locks and barriers carry write notices; a process that receives one invalidates its copy.
//!
//! The caller reports events ([`Machine::fault`], [`Machine::acquire`], [`Machine::release`], [`Machine::arrive`],
//! [`Machine::depart`]). The machine returns [`Step`]s, which the caller does in order before it calls the machine
//! again.
//!
//! | file | question |
//! |---|---|
//! | `machine` | what happens to a page at a fault, a lock, a barrier |
//! | `cache` | which copies go when there are too many |
//! | `homes` | which page is at home where, and when that changes |
//! | `colocated` | which pages are shared with a home on this host |
//! | `prediction`, `locality` | which pages will be used next |
//! | `updates` | which pages a home sends at a barrier without a request |
//! | `notice` | how written pages are listed and packed |
//! | `diff`, `blocks` | which words of a page changed, and which parts must be fetched again |

mod blocks;
mod cache;
mod colocated;
mod diff;
mod homes;
mod locality;
mod machine;
mod notice;
mod prediction;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod updates;

pub(crate) use blocks::Blocks;
pub(crate) use diff::{WORD, changed};
pub(crate) use machine::{Fault, Machine, Options};
pub(crate) use notice::{Notice, Notices};
pub(crate) use updates::{MAX_UPDATES, Update};

/// What the program may do with a page right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Access {
    /// Nothing: any access faults.
    #[default]
    None,
    /// Read: a write faults.
    Read,
    /// Read and write.
    Write,
}

/// Pages one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl Run {
    pub(crate) fn pages(self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }

    /// The runs that sorted pages form.
    pub(crate) fn of(pages: impl IntoIterator<Item = usize>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                Some(run) if run.first + run.count == page => run.count += 1,
                _ => runs.push(Run { first: page, count: 1 }),
            }
        }
        runs
    }
}

/// What the caller must do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Change what the program may do.
    Protect(Run, Access),
    /// Copy pages from this home.
    Fetch(Run, u32),
    /// Copy parts of a page from this home.
    FetchBlocks(usize, Blocks, u32),
    /// Copy a page from where its update is, except the words that this process sent home last.
    Update(usize, usize),
    /// Keep a copy of a page, to compare with later.
    Twin(usize),
    /// Send the words that differ from the twin to this home, and forget the twin.
    Flush(usize, u32),
    /// Compare a page with its twin, and forget the twin.
    Compare(usize),
    /// Show the program these pages of the mapping of a process, without access rights. It is a co-located home, or
    /// ourselves.
    Show(Run, u32),
    /// Free our own bytes of these pages, after all pending operations that read them.
    Discard(Run),
}
