//! Write notices: which pages somebody wrote.

use super::Run;

/// Pages that were written, by one process in one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) run: Run,
    /// The writer still has good copies of them.
    pub(crate) kept: bool,
}

/// What one process tells about an interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    /// These pages.
    Pages(Vec<Notice>),
    /// More than could be told: any page may have been written.
    Anything,
}

const COUNT_BITS: u32 = 23;
const PAGE_BITS: u32 = 40;

impl Notice {
    /// Longest run that one packed notice tells.
    const MOST: usize = (1 << COUNT_BITS) - 1;

    /// As 64 bits: kept, count, first page. Long runs need several.
    pub(crate) fn pack(notices: &[Notice]) -> Vec<u64> {
        let mut words = Vec::with_capacity(notices.len());
        for Notice { run, kept } in notices {
            let mut rest = *run;
            while rest.count > 0 {
                let count = rest.count.min(Self::MOST);
                let word = u64::from(*kept) << 63 | (count as u64) << PAGE_BITS | rest.first as u64;
                words.push(word);
                rest = Run { first: rest.first + count, count: rest.count - count };
            }
        }
        words
    }

    /// The reverse, one word at a time; every word is some notice.
    pub(crate) fn unpack(word: u64) -> Notice {
        let first = (word & ((1 << PAGE_BITS) - 1)) as usize;
        let count = (word >> PAGE_BITS) as usize & Self::MOST;
        Notice { run: Run { first, count }, kept: word >> 63 != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_packed_into_words() {
        let notices = [
            Notice { run: Run { first: 7, count: 3 }, kept: true },
            Notice { run: Run { first: (1 << 40) - 1, count: 1 }, kept: false },
        ];
        let words = Notice::pack(&notices);
        assert_eq!(words.iter().copied().map(Notice::unpack).collect::<Vec<_>>(), notices);
        let long = Notice { run: Run { first: 0, count: Notice::MOST + 5 }, kept: false };
        let parts: Vec<Run> =
            Notice::pack(&[long]).into_iter().map(|word| Notice::unpack(word).run).collect();
        assert_eq!(parts, [Run { first: 0, count: Notice::MOST }, Run { first: Notice::MOST, count: 5 }]);
    }
}
