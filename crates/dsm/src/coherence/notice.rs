//! Write notices: which pages a process wrote.

use super::{Blocks, Run};

/// Pages that were written, by one process in one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) run: Run,
    /// The writer still has valid copies of them.
    pub(crate) kept: bool,
    /// Blocks of each page that may have been written. None: its sender wrote nothing, but fetched the page.
    pub(crate) blocks: Blocks,
}

/// The notices of one process for an interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notices {
    /// These pages.
    Pages(Vec<Notice>),
    /// More than fit: any page may have been written.
    Overflow,
}

const COUNT_BITS: u32 = 22;
const PAGE_BITS: u32 = 40;
/// Bits of the count where blocks are listed; the blocks take the rest.
const SHORT_COUNT_BITS: u32 = 6;
const KEPT: u64 = 1 << 63;
const NAMED: u64 = 1 << 62;

impl Notice {
    /// Longest run of one packed notice, and the same where it names blocks.
    const MAX_COUNT: usize = (1 << COUNT_BITS) - 1;
    const MAX_COUNT_NAMED: usize = (1 << SHORT_COUNT_BITS) - 1;

    /// Merges adjacent equal notices. If more than `most` remain, it drops their blocks.
    pub(crate) fn merged(notices: Vec<Notice>, most: usize) -> Vec<Notice> {
        let mut merged: Vec<Notice> = Vec::new();
        for notice in notices {
            match merged.last_mut() {
                Some(last)
                    if (last.kept, last.blocks) == (notice.kept, notice.blocks)
                        && last.run.first + last.run.count == notice.run.first =>
                {
                    last.run.count += notice.run.count;
                }
                _ => merged.push(notice),
            }
        }
        if merged.len() > most && merged.iter().any(|notice| notice.blocks != Blocks::ALL) {
            let whole = merged.into_iter().map(|notice| Notice { blocks: Blocks::ALL, ..notice });
            return Self::merged(whole.collect(), most);
        }
        merged
    }

    /// As 64 bits: kept, whether blocks are named, count (and blocks), first page. Long runs need several.
    pub(crate) fn pack(notices: &[Notice]) -> Vec<u64> {
        let mut words = Vec::with_capacity(notices.len());
        for Notice { run, kept, blocks } in notices {
            let (most, named) = match *blocks {
                Blocks::ALL => (Self::MAX_COUNT, 0),
                Blocks(bits) => {
                    (Self::MAX_COUNT_NAMED, NAMED | u64::from(bits) << (PAGE_BITS + SHORT_COUNT_BITS))
                }
            };
            let mut rest = *run;
            while rest.count > 0 {
                let count = rest.count.min(most);
                let kept = if *kept { KEPT } else { 0 };
                words.push(kept | named | (count as u64) << PAGE_BITS | rest.first as u64);
                rest = Run { first: rest.first + count, count: rest.count - count };
            }
        }
        words
    }

    /// The reverse, for one word. Every word is a valid notice.
    pub(crate) fn unpack(word: u64) -> Notice {
        let first = (word & ((1 << PAGE_BITS) - 1)) as usize;
        let (count, blocks) = match word & NAMED {
            0 => ((word >> PAGE_BITS) as usize & Self::MAX_COUNT, Blocks::ALL),
            _ => {
                let bits = (word >> (PAGE_BITS + SHORT_COUNT_BITS)) as u16;
                ((word >> PAGE_BITS) as usize & Self::MAX_COUNT_NAMED, Blocks(bits))
            }
        };
        Notice { run: Run { first, count }, kept: word & KEPT != 0, blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_packed_into_words() {
        let notices = [
            Notice { run: Run { first: 7, count: 3 }, kept: true, blocks: Blocks::ALL },
            Notice { run: Run { first: (1 << 40) - 1, count: 1 }, kept: false, blocks: Blocks::ALL },
            Notice { run: Run { first: 3, count: 63 }, kept: true, blocks: Blocks(0x8001) },
            Notice { run: Run { first: 99, count: 1 }, kept: false, blocks: Blocks(0x7ffe) },
        ];
        let words = Notice::pack(&notices);
        assert_eq!(words.iter().copied().map(Notice::unpack).collect::<Vec<_>>(), notices);
        let long =
            Notice { run: Run { first: 0, count: Notice::MAX_COUNT + 5 }, kept: false, blocks: Blocks::ALL };
        let parts: Vec<Run> =
            Notice::pack(&[long]).into_iter().map(|word| Notice::unpack(word).run).collect();
        assert_eq!(
            parts,
            [Run { first: 0, count: Notice::MAX_COUNT }, Run { first: Notice::MAX_COUNT, count: 5 }]
        );
    }

    #[test]
    fn adjacent_equal_notices_are_merged_and_too_many_lose_their_blocks() {
        let one =
            |page, bits| Notice { run: Run { first: page, count: 1 }, kept: true, blocks: Blocks(bits) };
        let merged = Notice::merged(vec![one(4, 1), one(5, 1), one(6, 2), one(8, 2)], 9);
        let first = Notice { run: Run { first: 4, count: 2 }, ..one(4, 1) };
        assert_eq!(merged, [first, one(6, 2), one(8, 2)]);
        let whole = Notice::merged(vec![one(4, 1), one(5, 1), one(6, 2), one(8, 2)], 2);
        let all = |first, count| Notice { run: Run { first, count }, kept: true, blocks: Blocks::ALL };
        assert_eq!(whole, [all(4, 3), all(8, 1)]);
    }
}
