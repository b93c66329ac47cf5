//! Answers that came before their turn: one bit for each sequence number whose data is placed, but behind one that is
//! still missing.
//!
//! Only READ responses and the answers to atomics are kept here. That a SEND or WRITE was executed follows from any
//! later answer, so one number (`Requester::reached`) remembers it for all of them.

use crate::ids::Psn;
use alloc::boxed::Box;
use alloc::vec;

/// The most that is remembered behind the oldest missing answer: 4 MiB of the smallest packets. A power of two, so that
/// the ring fits the space of sequence numbers.
const CAPACITY: u32 = 16 * 1024;

/// The set. It takes no memory until something comes early for the first time.
#[derive(Debug, Default)]
pub(super) struct Early {
    bits: Box<[u64]>,
    count: u32,
}

impl Early {
    /// The word and the bit of a number.
    fn slot(psn: Psn) -> (usize, u64) {
        let at = psn.value() % CAPACITY;
        ((at / 64) as usize, 1 << (at % 64))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn holds(&self, psn: Psn) -> bool {
        let (word, bit) = Self::slot(psn);
        self.count > 0 && self.bits[word] & bit != 0
    }

    /// Whether it can be remembered that `psn` was answered while `una` is still missing.
    pub(super) fn has_room(una: Psn, psn: Psn) -> bool {
        (0..CAPACITY as i32).contains(&psn.distance_from(una))
    }

    /// Remembers an answer for which [`Self::has_room`] said yes.
    pub(super) fn insert(&mut self, psn: Psn) {
        if self.bits.is_empty() {
            self.bits = vec![0; (CAPACITY / 64) as usize].into();
        }
        let (word, bit) = Self::slot(psn);
        self.count += u32::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
    }

    /// Forgets an answer because its turn has come; false if it never came.
    pub(super) fn take(&mut self, psn: Psn) -> bool {
        let held = self.holds(psn);
        if held {
            let (word, bit) = Self::slot(psn);
            self.bits[word] &= !bit;
            self.count -= 1;
        }
        held
    }

    pub(super) fn clear(&mut self) {
        self.bits.fill(0);
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_early_is_there_once_also_where_numbers_start_over() {
        let mut early = Early::default();
        assert!(early.is_empty() && !early.holds(Psn::new(0)) && !early.take(Psn::new(0)));
        let una = Psn::new(0xff_fff0);
        for n in [1, 15, 16, 17, CAPACITY - 1] {
            assert!(Early::has_room(una, una.plus(n)));
            early.insert(una.plus(n));
            early.insert(una.plus(n));
        }
        assert!(!Early::has_room(una, una.plus(CAPACITY)) && !Early::has_room(una, una.minus(1)));
        assert!(!early.holds(una) && !early.holds(una.plus(18)));
        for n in [1, 15, 16, 17, CAPACITY - 1] {
            assert!(early.take(una.plus(n)) && !early.take(una.plus(n)));
        }
        assert!(early.is_empty());
        early.insert(una);
        early.clear();
        assert!(early.is_empty() && !early.holds(una));
    }
}
