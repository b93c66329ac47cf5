//! CRC-32C, the checksum of iWARP's FPDUs and of iSCSI (RFC 3720, polynomial of Castagnoli).
//!
//! With AVX-512, long inputs are folded 256 bytes per round (`folding.rs`). x86-64 has an instruction for this CRC since SSE4.2. It takes three cycles
//! and can start every cycle, so long inputs are cut into three parts that are processed together. Other processors process eight bytes per step
//! through tables.

#[cfg(all(target_arch = "x86_64", feature = "std"))]
use crate::folding::Folding;

/// The polynomial; the highest bit is the coefficient of `x^0`.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[n][b]` is the effect of byte `b` when `n` bytes follow it in the same step.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut value, mut bit) = (byte as u32, 0);
        while bit < 8 {
            value = value >> 1 ^ if value & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// Computes CRC-32C the way that suits this processor. Creating one reads the features of the processor, so keep it.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    wide: Option<Folding<POLYNOMIAL>>,
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    has_instruction: bool,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// Selects the implementation.
    pub fn new() -> Crc32c {
        Crc32c {
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            wide: Folding::wide(),
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            has_instruction: is_x86_feature_detected!("sse4.2"),
        }
    }

    /// The CRC-32C of the bytes that `crc` covers, followed by `bytes`. The CRC-32C of no bytes is 0.
    #[inline]
    pub fn update(self, crc: u32, bytes: &[u8]) -> u32 {
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        if self.has_instruction {
            return self.by_processor(crc, bytes);
        }
        by_tables(crc, bytes)
    }

    /// Only for processors that have the instruction.
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    #[inline]
    fn by_processor(self, crc: u32, bytes: &[u8]) -> u32 {
        let (crc, rest) = match (self.wide, bytes.as_chunks()) {
            (Some(wide), (blocks, rest)) if !blocks.is_empty() => (wide.update(crc, blocks), rest),
            _ => (crc, bytes),
        };
        // SAFETY: the processor has SSE4.2, as `new` found.
        unsafe { by_instruction(crc, rest) }
    }
}

#[cfg(all(target_arch = "x86_64", feature = "std"))]
#[target_feature(enable = "sse4.2")]
fn by_instruction(crc: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let step = |crc: u64, word: &[u8; 8]| _mm_crc32_u64(crc, u64::from_le_bytes(*word));
    let (blocks, bytes) = bytes.as_chunks::<{ 3 * PART }>();
    let mut state = u64::from(!crc);
    for block in blocks {
        let (words, _) = block.as_chunks();
        let (first, others) = words.split_at(PART / 8);
        let (second, third) = others.split_at(PART / 8);
        let (mut a, mut b, mut c) = (state, 0, 0);
        for ((x, y), z) in first.iter().zip(second).zip(third) {
            (a, b, c) = (step(a, x), step(b, y), step(c, z));
        }
        state = u64::from(shift_by_part(shift_by_part(a as u32) ^ b as u32) ^ c as u32);
    }
    let (words, rest) = bytes.as_chunks();
    let long = words.iter().fold(state, step);
    !rest.iter().fold(long as u32, |crc, byte| _mm_crc32_u8(crc, *byte))
}

/// Bytes of each of the three parts that are processed together.
#[cfg(all(target_arch = "x86_64", feature = "std"))]
const PART: usize = 1024;

/// `SHIFT_BY_PART[n][b]` is the CRC state with byte `b` at byte position `n`, after another [`PART`] zero bytes.
#[cfg(all(target_arch = "x86_64", feature = "std"))]
static SHIFT_BY_PART: [[u32; 256]; 4] = shift_table();

#[cfg(all(target_arch = "x86_64", feature = "std"))]
const fn shift_table() -> [[u32; 256]; 4] {
    let mut table = [[0; 256]; 4];
    let mut bit = 0;
    while bit < 32 {
        let (mut value, mut byte) = (1_u32 << bit, 0);
        while byte < PART {
            value = value >> 8 ^ TABLES[0][(value & 0xff) as usize];
            byte += 1;
        }
        // The CRC is linear: the state of a byte is the XOR of those of its bits.
        let (position, mask, mut index) = (bit / 8, 1 << (bit % 8), 0);
        while index < 256 {
            if index & mask != 0 {
                table[position][index] ^= value;
            }
            index += 1;
        }
        bit += 1;
    }
    table
}

/// The CRC state after another [`PART`] zero bytes.
#[cfg(all(target_arch = "x86_64", feature = "std"))]
#[inline]
fn shift_by_part(state: u32) -> u32 {
    let bytes = state.to_le_bytes().into_iter().zip(&SHIFT_BY_PART);
    bytes.fold(0, |state, (byte, table)| state ^ table[usize::from(byte)])
}

fn by_tables(crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let long = words.iter().fold(!crc, |crc, word| {
        let mixed = (u64::from_le_bytes(*word) ^ u64::from(crc)).to_le_bytes();
        mixed
            .iter()
            .zip(TABLES.iter().rev())
            .fold(0, |state, (byte, table)| state ^ table[usize::from(*byte)])
    });
    !rest.iter().fold(long, |crc, byte| crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The examples of RFC 3720, appendix B.4; the digests are little-endian on the wire.
    #[test]
    fn it_gives_the_digests_of_iscsi() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        let mut command = [0; 48];
        for (at, value) in
            [(0, 0x01), (1, 0xc0), (16, 0x14), (22, 0x04), (27, 0x14), (31, 0x18), (32, 0x28), (40, 0x02)]
        {
            command[at] = value;
        }
        let examples: [(&[u8], [u8; 4]); 6] = [
            (&[0; 32], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&ascending, [0x4e, 0x79, 0xdd, 0x46]),
            (&descending, [0x5c, 0xdb, 0x3f, 0x11]),
            (&command, [0x56, 0x3a, 0x96, 0xd9]),
            (b"123456789", [0x83, 0x92, 0x06, 0xe3]),
        ];
        for (bytes, digest) in examples {
            assert_eq!(Crc32c::new().update(0, bytes).to_le_bytes(), digest, "{bytes:x?}");
            assert_eq!(by_tables(0, bytes).to_le_bytes(), digest, "{bytes:x?}");
        }
    }

    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    #[test]
    fn every_length_is_right_with_512_bits() {
        let crc = Crc32c::new();
        if crc.wide.is_none() {
            println!("SKIPPED: this processor has no AVX-512 with VPCLMULQDQ");
            return;
        }
        let bytes: [u8; 3 * crate::BLOCK + 16] = std::array::from_fn(crate::tests::noise);
        for len in 0..=bytes.len() {
            assert_eq!(crc.update(7, &bytes[..len]), by_tables(7, &bytes[..len]), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(bytes in prop::collection::vec(any::<u8>(), 0..10_000), cut in 0..10_000_usize) {
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            let whole = by_tables(0, &bytes);
            let crc = Crc32c::new();
            prop_assert_eq!(crc.update(crc.update(0, head), tail), whole);
            prop_assert_eq!(by_tables(by_tables(0, head), tail), whole);
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            if crc.has_instruction {
                // SAFETY: the processor has SSE4.2.
                prop_assert_eq!(unsafe { by_instruction(by_instruction(0, head), tail) }, whole);
            }
        }
    }
}
