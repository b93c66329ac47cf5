//! A set of packet numbers in a narrow range, as bits.

use std::collections::VecDeque;

/// Packet numbers at and above a base that only rises.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeqSet {
    /// Number of the first bit; a multiple of 64.
    base: u32,
    words: VecDeque<u64>,
}

impl SeqSet {
    /// Adds a number. Returns `false` if it is in the set already or below the base.
    pub(crate) fn insert(&mut self, seq: u32) -> bool {
        let Some(offset) = seq.checked_sub(self.base) else { return false };
        let (word, bit) = ((offset / 64) as usize, 1u64 << (offset % 64));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let fresh = self.words[word] & bit == 0;
        self.words[word] |= bit;
        fresh
    }

    /// Whether a number was added.
    pub(crate) fn contains(&self, seq: u32) -> bool {
        let Some(offset) = seq.checked_sub(self.base) else { return false };
        self.words.get((offset / 64) as usize).is_some_and(|word| word & (1 << (offset % 64)) != 0)
    }

    /// Raises the base to the largest multiple of 64 that is not above `seq`.
    pub(crate) fn forget_below(&mut self, seq: u32) {
        while seq >= self.base + 64 {
            match self.words.pop_front() {
                Some(_) => self.base += 64,
                None => self.base = seq & !63,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_until_they_are_forgotten() {
        let mut set = SeqSet::default();
        assert!(set.insert(5) && set.insert(200) && !set.insert(5));
        assert!(set.contains(200) && !set.contains(199) && !set.contains(100_000));
        set.forget_below(130);
        assert!(set.contains(200) && !set.contains(5) && !set.insert(5));
        set.forget_below(1_000_000);
        assert!(!set.contains(200) && set.insert(1_000_000) && set.words.len() == 1);
    }
}
