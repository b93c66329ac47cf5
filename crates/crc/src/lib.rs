//! CRC-32 of packets, the one that the ICRC of RoCE is made of.
//!
//! A packet on its way out is a short header in one place and a payload in another, and its length is known: a few KiB. For
//! that the general functions of `crc32fast`, which everything else is left to, spend a third of their time at the ends: they take a header
//! of twelve bytes step by step, and sixteen partial sums together one after the other. [`Summer::sum`] takes the header in
//! with the first bytes of the payload, and the partial sums in pairs.
//!
//! [`Crc32c`] is the other checksum of RDMA: the one of iWARP.
#![cfg_attr(not(feature = "std"), no_std)]

mod castagnoli;
#[cfg(all(target_arch = "x86_64", feature = "std"))]
mod wide;

pub use castagnoli::Crc32c;

/// Bytes of the header that [`Summer::sum`] takes: a BTH.
pub const HEAD_LEN: usize = 12;

/// Computes checksums the way that suits this processor. To make one asks what that is, which takes as long as a short checksum.
#[derive(Clone, Copy, Debug)]
pub struct Summer {
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    wide: Option<wide::Wide>,
}

impl Default for Summer {
    fn default() -> Self {
        Self::new()
    }
}

impl Summer {
    /// Asks the processor.
    pub fn new() -> Summer {
        Summer {
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            wide: wide::Wide::new(),
        }
    }

    /// The CRC-32 of what `crc` is the CRC-32 of, followed by `head` and `body`.
    #[inline]
    pub fn sum(self, crc: u32, head: &[u8; HEAD_LEN], body: &[u8]) -> u32 {
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        if let Some(wide) = self.wide
            && let (blocks, rest) = body.as_chunks()
            && !blocks.is_empty()
        {
            let crc = wide.sum(crc, head, blocks);
            return if rest.is_empty() { crc } else { slow(crc, &[], rest) };
        }
        slow(crc, head, body)
    }
}

fn slow(crc: u32, head: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(head);
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_the_crc_of_zip_and_ethernet() {
        // By the nine digits that are the check of every CRC.
        assert_eq!(bit_by_bit(0, b"123456789"), 0xcbf4_3926);
    }

    /// As the standard defines it, continued from `crc`. What is compared with it can fail on every processor, also where
    /// everything is left to crc32fast.
    fn bit_by_bit(crc: u32, bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        !bytes.iter().fold(!crc, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
    }

    proptest! {
        #[test]
        fn every_length_and_place_gives_the_same(
            crc: u32,
            head: [u8; HEAD_LEN],
            body in prop::collection::vec(any::<u8>(), 0..5000),
            cut in 0..64_usize,
        ) {
            let body = &body[cut.min(body.len())..];
            let right = bit_by_bit(bit_by_bit(crc, &head), body);
            prop_assert_eq!(Summer::new().sum(crc, &head, body), right);
            prop_assert_eq!(slow(crc, &head, body), right);
        }
    }
}
