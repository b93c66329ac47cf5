//! Keys that cannot be guessed.
//!
//! A key is the number of a table slot and a random tag, enciphered with a secret of this NIC. So a key leads to its
//! slot in a few nanoseconds, but one key, or the lkey of a region, reveals nothing about any other key.

use crate::limits::MAX_MR;
use rand::Rng;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a key that number the slot; the rest is the tag that distinguishes generations.
pub(super) const SLOT_BITS: u32 = MAX_MR.ilog2();
const ROUNDS: usize = 6;
/// Keys in the cache of key-to-slot translations.
const CACHED_KEYS: usize = 256;

/// A secret permutation of the 32-bit numbers: a balanced Feistel network with a multiplying round function.
#[derive(Debug)]
pub(super) struct KeyCipher {
    round_keys: [u64; ROUNDS],
    /// The keys looked up last, each with its slot. Most programs use a few keys repeatedly, and six dependent multiplications take
    /// longer than a short copy. An empty entry is 0, so the pair of key 0 and slot 0 is never taken from the cache.
    cached: Box<[AtomicU64; CACHED_KEYS]>,
}

impl KeyCipher {
    pub(super) fn random() -> Self {
        let mut rng = ferroce_os::random::generator();
        KeyCipher {
            round_keys: std::array::from_fn(|_| rng.random::<u64>() | 1),
            cached: Box::new(std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    fn round(&self, i: usize, half: u32) -> u32 {
        let key = self.round_keys[i];
        let mixed = (u64::from(half) ^ (key >> 32)).wrapping_mul(key);
        ((mixed >> 40) ^ (mixed >> 17)) as u32 & 0xffff
    }

    /// A fresh key for a slot.
    pub(super) fn key_for(&self, slot: u32) -> u32 {
        let tag = ferroce_os::random::number::<u32>() >> SLOT_BITS << SLOT_BITS;
        let plain = slot | tag;
        let (mut left, mut right) = (plain >> 16, plain & 0xffff);
        for i in 0..ROUNDS {
            (left, right) = (right, left ^ self.round(i, right));
        }
        left << 16 | right
    }

    /// The slot of a key. Every number leads to some slot, so the caller compares the whole key there.
    #[inline]
    pub(super) fn slot_of(&self, key: u32) -> u32 {
        let entry = &self.cached[key as usize % CACHED_KEYS];
        let known = entry.load(Ordering::Relaxed);
        if (known >> 32) as u32 == key && known != 0 {
            return known as u32;
        }
        let slot = self.decipher(key);
        entry.store(u64::from(key) << 32 | u64::from(slot), Ordering::Relaxed);
        slot
    }

    #[inline(never)]
    fn decipher(&self, key: u32) -> u32 {
        let (mut left, mut right) = (key >> 16, key & 0xffff);
        for i in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.round(i, left), left);
        }
        (left << 16 | right) & ((1 << SLOT_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_leads_back_to_its_slot() {
        let cipher = KeyCipher::random();
        for slot in (0..1 << SLOT_BITS).step_by(997) {
            let key = cipher.key_for(slot);
            assert_eq!(
                [cipher.slot_of(key), cipher.slot_of(key)],
                [slot; 2],
                "asked for the first time and again"
            );
        }
    }

    #[test]
    fn keys_of_adjacent_slots_are_unrelated() {
        let cipher = KeyCipher::random();
        let keys: Vec<u32> = (0..1000).map(|slot| cipher.key_for(slot)).collect();
        let flipped: u32 = keys.windows(2).map(|w| (w[0] ^ w[1]).count_ones()).sum();
        let mean = f64::from(flipped) / 999.0;
        assert!(
            (14.0..18.0).contains(&mean),
            "keys of adjacent slots differ in {mean} bits on average, not about 16"
        );
    }
}
