//! Which sixteenths of a page changed, so that only those are fetched again.
//!
//! A copy of a page that another process wrote becomes inaccessible, but its bytes stay. A notice lists the written blocks. Blocks that no
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

/// Number of writes of a home page that are announced as writes of the whole page after most of it had changed: at
/// first, and at most.
const MIN_WHOLE_PAGE_WRITES: u8 = 8;
const MAX_WHOLE_PAGE_WRITES: u8 = 128;
/// How many barriers announce single blocks of a home page after the last report that a process fetched the page.
const MAX_BARRIERS_WITHOUT_FETCH: u8 = 24;
/// Barriers from one report of fetches to the next, less than [`MAX_BARRIERS_WITHOUT_FETCH`], and maximum length of a report. The first
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

/// Whether to announce the changed blocks of a page that the program writes at home, or always the whole page.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usefulness {
    /// Number of writes that are still announced as writes of the whole page, and this number at the start.
    whole_page_writes_left: u8,
    whole_page_writes: u8,
    /// A process has reported that it fetches the page.
    is_fetched: bool,
    /// How many barriers announced blocks since the last such report.
    barriers_without_fetch: u8,
}

impl Usefulness {
    /// A write is announced as one of the whole page.
    pub(super) fn on_whole_page_write(&mut self) {
        self.whole_page_writes_left = self.whole_page_writes_left.saturating_sub(1);
    }

    /// Whether to determine the changed blocks of the next write.
    fn is_likely(self) -> bool {
        self.is_fetched && self.whole_page_writes_left == 0
    }

    /// A comparison with the twin found these changed blocks.
    pub(super) fn on_compared(&mut self, changed: Blocks) {
        self.is_fetched &= self.barriers_without_fetch < MAX_BARRIERS_WITHOUT_FETCH;
        if !changed.are_few() {
            let next = self.whole_page_writes.saturating_mul(2);
            self.whole_page_writes = next.clamp(MIN_WHOLE_PAGE_WRITES, MAX_WHOLE_PAGE_WRITES);
        } else if !changed.is_empty() {
            self.whole_page_writes = 0;
        }
        self.whole_page_writes_left = self.whole_page_writes;
    }

    /// A barrier announces less than the whole page.
    pub(super) fn on_blocks_announced(&mut self) {
        self.barriers_without_fetch = self.barriers_without_fetch.saturating_add(1);
    }

    /// Another process fetched the page, or blocks of it.
    pub(super) fn on_fetched(&mut self) {
        (self.is_fetched, self.barriers_without_fetch) = (true, 0);
    }
}

/// Pages that this process fetched. At some barriers it reports them to the homes that may announce blocks.
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
