//! Which sixteenths of a page changed, so that only those are fetched again.
//!
//! A copy that another process wrote is closed, but its bytes stay. A notice lists the written blocks. Blocks that no
//! notice listed since the copy was fetched are still valid. The home takes no part in this.

use super::Step;
use super::machine::Machine;
use std::ops::Range;

/// Blocks of a page.
pub(crate) const BLOCKS: usize = 16;
/// Maximum number of READs for one page; beyond that, one READ of the whole page is cheaper.
const MOST_PIECES: usize = 2;
/// Missing blocks from which on the whole page is fetched.
const NEARLY_ALL: u32 = 12;

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

impl Machine {
    /// Turns block notices on or off: with them, only written blocks are fetched.
    pub(crate) fn set_changed_blocks(&mut self, on: bool) {
        self.changed_blocks = on;
    }

    /// The blocks to fetch of a page, or `None` if the whole page should be fetched.
    fn worth(&self, page: usize) -> Option<Blocks> {
        let missing = self.table[page].here.missing();
        let few = missing.0.count_ones() < NEARLY_ALL && missing.ranges(BLOCKS).len() <= MOST_PIECES;
        Some(missing).filter(|_| self.changed_blocks && few)
    }

    /// The number of those blocks.
    pub(super) fn blocks_to_fetch(&self, page: usize) -> usize {
        self.worth(page).map_or(BLOCKS, |blocks| blocks.0.count_ones() as usize)
    }

    /// The steps that fetch sorted pages: whole pages in runs, and single blocks of pages whose other blocks are
    /// valid.
    pub(super) fn fetch_steps(&mut self, pages: &[usize], steps: &mut Vec<Step>) {
        let mut whole = Vec::with_capacity(pages.len());
        for &page in pages {
            match self.worth(page) {
                Some(missing) => steps.push(Step::FetchBlocks(page, missing, self.home(page))),
                None => whole.push(page),
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
