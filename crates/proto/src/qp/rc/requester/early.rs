//! Out-of-order responses: one bit for each PSN whose data is placed while an earlier response is missing.
//!
//! The set holds only responses to READs and atomics. An ACK is cumulative, so one PSN (`Requester::reached`) covers
//! every SEND and WRITE.

use crate::ids::Psn;
use alloc::boxed::Box;
use alloc::vec;

/// PSNs tracked beyond the oldest missing response: 4 MiB of the smallest packets. A power of two, so that the ring
/// wraps with the PSN space.
const CAPACITY: u32 = 16 * 1024;

/// The set. It allocates when the first response arrives out of order.
#[derive(Debug, Default)]
pub(super) struct Early {
    bits: Box<[u64]>,
    count: u32,
}

impl Early {
    /// Word index and bit mask of a PSN.
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

    /// Whether the ring can hold `psn` while `una` is missing.
    pub(super) fn can_hold(una: Psn, psn: Psn) -> bool {
        (0..CAPACITY as i32).contains(&psn.distance_from(una))
    }

    /// Adds a PSN that [`Self::can_hold`] accepts.
    pub(super) fn insert(&mut self, psn: Psn) {
        if self.bits.is_empty() {
            self.bits = vec![0; (CAPACITY / 64) as usize].into();
        }
        let (word, bit) = Self::slot(psn);
        self.count += u32::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
    }

    /// Removes a PSN. Returns whether it was in the set.
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
    fn early_psns_are_taken_once_across_the_psn_wrap() {
        let mut early = Early::default();
        assert!(early.is_empty() && !early.holds(Psn::new(0)) && !early.take(Psn::new(0)));
        let una = Psn::new(0xff_fff0);
        for n in [1, 15, 16, 17, CAPACITY - 1] {
            assert!(Early::can_hold(una, una.plus(n)));
            early.insert(una.plus(n));
            early.insert(una.plus(n));
        }
        assert!(!Early::can_hold(una, una.plus(CAPACITY)) && !Early::can_hold(una, una.minus(1)));
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
