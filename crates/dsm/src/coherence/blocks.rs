//! Which sixteenths of a page changed, so that only those are fetched again.
//!
//! A copy that another process wrote is closed, but its bytes stay. A notice lists the written blocks. Blocks that no
//! notice listed since the copy was fetched are still valid. The home of a page takes no part in a fetch. To name the
//! blocks that it wrote itself, it needs a twin, which costs a write fault, a copy and a comparison per page and
//! interval. So processes report which pages they fetch, and the home announces any other page whole. A fetched page is
//! announced whole for a while, too, where most of it changes.

use super::machine::Machine;
use super::notice::Notice;
use super::{Run, Step};
use std::ops::Range;

/// Blocks of a page.
pub(crate) const BLOCKS: usize = 16;
/// Maximum number of READs for one page; beyond that, one READ of the whole page is cheaper.
const MAX_PIECES: usize = 2;
/// Missing blocks from which on the whole page is fetched.
const NEARLY_ALL: u32 = 12;

/// Writes of a home page that are announced whole after most of it had changed: at first, and at most.
const MIN_WHOLE: u8 = 8;
const MAX_WHOLE: u8 = 128;
/// How often the blocks of a home page are named at barriers after the last report that a process fetched the page.
const MAX_UNREAD: u8 = 24;
/// Barriers from one report of fetches to the next, less than [`MAX_UNREAD`], and maximum length of a report. The first
/// fetch of a page is reported at the next barrier.
const REPORT_EVERY: u8 = 8;
const MAX_REPORTED: usize = 1 << 14;

/// A set of blocks, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Blocks(pub(crate) u16);

impl Blocks {
    pub(crate) const ALL: Blocks = Blocks(u16::MAX);
    pub(crate) const NONE: Blocks = Blocks(0);

    /// The blocks that these byte ranges of a page touch.
    pub(crate) fn of(ranges: &[Range<usize>], page_bytes: usize) -> Blocks {
        let block = page_bytes / BLOCKS;
        let blocks = ranges.iter().flat_map(|range| range.start / block..range.end.div_ceil(block));
        Blocks(blocks.fold(0, |bits, block| bits | 1 << block))
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Blocks::NONE
    }

    pub(crate) fn with(self, more: Blocks) -> Blocks {
        Blocks(self.0 | more.0)
    }

    pub(crate) fn without(self, fewer: Blocks) -> Blocks {
        Blocks(self.0 & !fewer.0)
    }

    /// Whether fetching these blocks alone is cheaper than fetching the whole page.
    fn are_few(self) -> bool {
        self.0.count_ones() < NEARLY_ALL && self.ranges(BLOCKS).len() <= MAX_PIECES
    }

    fn missing(self) -> Blocks {
        Blocks(!self.0)
    }

    /// Byte ranges of the blocks, as long as possible.
    pub(crate) fn ranges(self, page_bytes: usize) -> Vec<Range<usize>> {
        let block = page_bytes / BLOCKS;
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for at in (0..BLOCKS).filter(|at| self.0 >> at & 1 != 0) {
            match ranges.last_mut() {
                Some(range) if range.end == at * block => range.end += block,
                _ => ranges.push(at * block..(at + 1) * block),
            }
        }
        ranges
    }
}

/// Whether it helps to name the changed blocks of a page that the program writes at home.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usefulness {
    /// Writes left to announce whole, and the number at the start.
    whole_left: u8,
    whole: u8,
    /// Other processes fetch the page.
    read: bool,
    /// How often blocks were named since such a report.
    unread: u8,
}

impl Usefulness {
    /// A write is announced whole.
    pub(super) fn skip(&mut self) {
        self.whole_left = self.whole_left.saturating_sub(1);
    }

    /// Whether to determine the changed blocks of the next write.
    fn is_likely(self) -> bool {
        self.read && self.whole_left == 0
    }

    /// The program changed these blocks.
    pub(super) fn judge(&mut self, changed: Blocks) {
        self.read &= self.unread < MAX_UNREAD;
        if !changed.are_few() {
            self.whole = self.whole.saturating_mul(2).clamp(MIN_WHOLE, MAX_WHOLE);
        } else if !changed.is_empty() {
            self.whole = 0;
        }
        self.whole_left = self.whole;
    }

    /// A barrier announces less than the whole page.
    pub(super) fn named(&mut self) {
        self.unread = self.unread.saturating_add(1);
    }

    /// Another process fetched the page, or blocks of it.
    pub(super) fn fetched(&mut self) {
        (self.read, self.unread) = (true, 0);
    }
}

/// Pages that this process fetched. At some barriers it reports them to those who may name blocks.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    pages: Vec<usize>,
    /// One of them was never reported before.
    any_new: bool,
    barriers: u8,
}

impl Fetches {
    fn note(&mut self, page: usize, is_new: bool) {
        if self.pages.len() < MAX_REPORTED {
            self.pages.push(page);
            self.any_new |= is_new;
        }
    }

    /// At most `most` notices without blocks: if a page is new, and at every [`REPORT_EVERY`]th barrier.
    pub(super) fn report(&mut self, most: usize) -> Vec<Notice> {
        self.barriers = (self.barriers + 1) % REPORT_EVERY;
        if !std::mem::take(&mut self.any_new) && self.barriers != 0 {
            return Vec::new();
        }
        let mut pages = std::mem::take(&mut self.pages);
        pages.sort_unstable();
        pages.dedup();
        let notice = |run| Notice { run, kept: false, blocks: Blocks::NONE };
        Run::of(pages).into_iter().take(most).map(notice).collect()
    }
}

impl Machine {
    /// The blocks to fetch of a page, or `None` if the whole page should be fetched.
    fn blocks_worth_fetching(&self, page: usize) -> Option<Blocks> {
        let missing = self.table[page].here.missing();
        Some(missing).filter(|missing| self.changed_blocks && missing.are_few())
    }

    /// Whether a page that is written must be compared with a twin afterwards. At home, a twin only serves to find
    /// the changed blocks, for processes that fetch the page.
    pub(super) fn needs_twin(&self, page: usize) -> bool {
        let state = &self.table[page];
        !self.sees_home(page) || state.dirty || self.changed_blocks && state.usefulness.is_likely()
    }

    /// The number of those blocks.
    pub(super) fn blocks_to_fetch(&self, page: usize) -> usize {
        self.blocks_worth_fetching(page).map_or(BLOCKS, |blocks| blocks.0.count_ones() as usize)
    }

    /// The steps that fetch sorted pages: whole pages in runs, and single blocks of pages whose other blocks are
    /// valid.
    pub(super) fn fetch_steps(&mut self, pages: &[usize], steps: &mut Vec<Step>) {
        let mut whole = Vec::with_capacity(pages.len());
        for &page in pages {
            if self.changed_blocks {
                let is_new = !std::mem::replace(&mut self.table[page].reported, true);
                self.fetches.note(page, is_new);
            }
            match (self.take_update(page), self.blocks_worth_fetching(page)) {
                (Some(update), _) => steps.push(update),
                (None, Some(missing)) => {
                    steps.push(Step::FetchBlocks(page, missing, self.home(page)));
                }
                (None, None) => whole.push(page),
            }
            self.table[page].here = Blocks::ALL;
        }
        let runs = self.runs_by_home(whole);
        steps.extend(runs.into_iter().map(|run| Step::Fetch(run, self.home(run.first))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_what_changed_and_no_more() {
        let blocks = Blocks::of(&[4..12, 500..516, 4092..4096], 4096);
        assert_eq!(blocks.ranges(4096), [0..768, 3840..4096]);
        assert_eq!(Blocks::of(&[], 4096), Blocks::NONE);
        assert_eq!(Blocks::of(&[0..2048, 2048..4096], 4096), Blocks::ALL);
        assert_eq!(Blocks::ALL.without(blocks).with(blocks), Blocks::ALL);
    }
}
