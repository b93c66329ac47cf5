//! The two checksums of RDMA: [`Crc32`], of which the ICRC of RoCE is made, and [`Crc32c`] of iWARP.
//!
//! An outgoing packet is a short header and a payload of a few KiB in another place. With AVX-512, the general functions of `crc32fast`
//! spend a third of their time at the ends of such a packet: they process a header of twelve bytes step by step, and then sixteen partial sums
//! one after the other (eight in registers of 256 bits, four in those of 128). [`Crc32::update`] adds the header together with the first bytes
//! of the payload, and the partial sums in pairs. Everything else is left to `crc32fast`, which has no CRC-32C.
#![cfg_attr(not(feature = "std"), no_std)]

mod castagnoli;
#[cfg(all(target_arch = "x86_64", feature = "std"))]
mod folding;

pub use castagnoli::Crc32c;

#[cfg(all(target_arch = "x86_64", feature = "std"))]
use folding::Folding;

/// Bytes of the header that [`Crc32::update`] takes: a BTH.
pub const HEAD_LEN: usize = 12;

/// Bytes of a block: inputs are folded in whole blocks.
#[cfg(any(test, all(target_arch = "x86_64", feature = "std")))]
const BLOCK: usize = 256;

/// The polynomial of Ethernet; the highest bit is the coefficient of `x^0`.
#[cfg(any(test, all(target_arch = "x86_64", feature = "std")))]
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Computes CRC-32 the way that suits this processor. Creating one reads the features of the processor, so keep it.
#[derive(Clone, Copy, Debug)]
pub struct Crc32 {
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    folding: Option<Folding<POLYNOMIAL>>,
}

impl Default for Crc32 {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32 {
    /// Selects the implementation.
    pub fn new() -> Crc32 {
        Crc32 {
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            folding: Folding::new(),
        }
    }

    /// The CRC-32 of the bytes that `crc` covers, followed by `head` and `body`. The CRC-32 of no bytes is 0.
    #[inline]
    pub fn update(self, crc: u32, head: &[u8; HEAD_LEN], body: &[u8]) -> u32 {
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        if let Some(folding) = self.folding
            && body.len() >= BLOCK
        {
            // An extension header of four bytes, as of a READ response, is added with the header.
            if let Some((more, body)) = body.split_first_chunk()
                && let (blocks, []) = body.as_chunks()
            {
                return folding.update_with_long_head(crc, head, more, blocks);
            }
            let (blocks, rest) = body.as_chunks();
            let crc = folding.update_with_head(crc, head, blocks);
            return if rest.is_empty() { crc } else { by_crc32fast(crc, &[], rest) };
        }
        by_crc32fast(crc, head, body)
    }
}

fn by_crc32fast(crc: u32, head: &[u8], body: &[u8]) -> u32 {
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
        // Catalogues of CRCs list the value of these nine digits.
        assert_eq!(bit_by_bit(0, b"123456789"), 0xcbf4_3926);
    }

    /// The definition of the standard, bit by bit.
    fn bit_by_bit(crc: u32, bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
        !bytes.iter().fold(!crc, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
    }

    /// Byte `n` of a fixed pattern that does not repeat.
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    pub(crate) fn noise(n: usize) -> u8 {
        ((n as u32).wrapping_mul(0x9e37_79b9) >> 24) as u8
    }

    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    fn every_length_is_right(folding: Option<Folding<POLYNOMIAL>>, needed: &str) {
        if folding.is_none() {
            println!("SKIPPED: this processor has no {needed}");
            return;
        }
        let (crc, head) = (0x1234_5678, std::array::from_fn(noise));
        let bytes: [u8; 3 * BLOCK + 16] = std::array::from_fn(noise);
        for len in 0..=bytes.len() {
            let right = bit_by_bit(bit_by_bit(crc, &head), &bytes[..len]);
            assert_eq!(Crc32 { folding }.update(crc, &head, &bytes[..len]), right, "{len} bytes");
        }
    }

    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    #[test]
    fn every_length_is_right_with_512_bits() {
        every_length_is_right(Folding::wide(), "AVX-512 with VPCLMULQDQ");
    }

    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    #[test]
    fn every_length_is_right_with_128_bits() {
        every_length_is_right(Folding::narrow(), "PCLMULQDQ");
    }

    proptest! {
        #[test]
        fn any_length_and_place_gives_the_same(
            crc: u32,
            head: [u8; HEAD_LEN],
            body in prop::collection::vec(any::<u8>(), 0..5000),
            cut in 0..64_usize,
            has_whole_blocks: bool,
        ) {
            let body = &body[cut.min(body.len())..];
            // Whole blocks behind an extension header are rare otherwise.
            let whole_blocks = body.len().saturating_sub(4) / BLOCK * BLOCK;
            let body = if has_whole_blocks && whole_blocks > 0 { &body[..whole_blocks + 4] } else { body };
            let right = bit_by_bit(bit_by_bit(crc, &head), body);
            prop_assert_eq!(Crc32::new().update(crc, &head, body), right);
            prop_assert_eq!(by_crc32fast(crc, &head, body), right);
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            for folding in [Folding::wide(), Folding::narrow()].into_iter().flatten() {
                prop_assert_eq!(Crc32 { folding: Some(folding) }.update(crc, &head, body), right);
            }
        }
    }
}
