//! Both CRCs of whole blocks of [`BLOCK`] bytes, by carry-less multiplication.
//!
//! A polynomial of degree below 128 fills 16 bytes, in the bit order of these CRCs: the first bit of the message is the highest coefficient.
//! Moving such a polynomial `n` bits along the message multiplies it by `x^n`. Modulo the CRC's polynomial that takes two carry-less
//! multiplications, one for each half of 64 bits, by factors that depend on `n` alone ([`Step`]). Several polynomials walk over the message side
//! by side, and each adds the bytes below it. The last 128 bits collect all sums and are then reduced to 32 (Gopal and others, "Fast CRC
//! Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).

mod narrow;
mod wide;

use crate::{BLOCK, HEAD_LEN};
use core::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_cvtsi64_si128,
    _mm_extract_epi32, _mm_prefetch, _mm_set_epi64x, _mm_setzero_si128, _mm_srli_si128, _mm_xor_si128,
};

/// Distance of the prefetches, in bytes.
const PREFETCH_DISTANCE: usize = 2048;
const LANE_BITS: u32 = 128;

/// Proof that this processor has the instructions. `POLYNOMIAL` is that of the CRC; its highest bit is the coefficient of `x^0`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folding<const POLYNOMIAL: u32>(Width);

#[derive(Clone, Copy, Debug)]
enum Width {
    /// Registers of 512 bits: AVX-512 with its carry-less multiplication.
    Wide,
    /// Registers of 128 bits.
    Narrow,
}

impl<const POLYNOMIAL: u32> Folding<POLYNOMIAL> {
    /// With registers of 512 bits, or of 128 bits. Returns `None` also on a processor with VPCLMULQDQ but without AVX-512 (AMD Zen 3, Intel's
    /// client processors since Alder Lake): there `crc32fast` 1.5.4 itself keeps eight sums, in registers of 256 bits. Nobody has measured
    /// whether the code of 128 bits is faster than that.
    pub(crate) fn new() -> Option<Self> {
        let has_256_bits = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq");
        Self::wide().or_else(|| Self::narrow().filter(|_| !has_256_bits))
    }

    /// With registers of 512 bits.
    pub(crate) fn wide() -> Option<Self> {
        let is_wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq");
        Self::narrow().filter(|_| is_wide).map(|_| Folding(Width::Wide))
    }

    /// With registers of 128 bits.
    pub(crate) fn narrow() -> Option<Self> {
        let has_all = is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1");
        has_all.then_some(Folding(Width::Narrow))
    }

    /// The CRC of the bytes that `crc` covers, followed by at least one block.
    #[inline]
    pub(crate) fn update(self, crc: u32, body: &[[u8; BLOCK]]) -> u32 {
        self.sum::<false>(u128::from(!crc), body)
    }

    /// The CRC of the bytes that `crc` covers, followed by a header and at least one block.
    #[inline]
    pub(crate) fn update_with_head(self, crc: u32, head: &[u8; HEAD_LEN], body: &[[u8; BLOCK]]) -> u32 {
        // Four leading zeros make it sixteen bytes; they change nothing.
        self.sum::<true>((number(head) ^ u128::from(!crc)) << 32, body)
    }

    /// The same for a header with four more bytes.
    #[inline]
    pub(crate) fn update_with_long_head(
        self,
        crc: u32,
        head: &[u8; HEAD_LEN],
        more: &[u8; 4],
        body: &[[u8; BLOCK]],
    ) -> u32 {
        let more = u128::from(u32::from_le_bytes(*more)) << (8 * HEAD_LEN);
        self.sum::<true>(number(head) ^ u128::from(!crc) ^ more, body)
    }

    /// `first` are 128 bits in front of the body if it `IS_HEAD`, otherwise they are added to the first of the body.
    #[inline]
    fn sum<const IS_HEAD: bool>(self, first: u128, body: &[[u8; BLOCK]]) -> u32 {
        // SAFETY: a `Folding` of this width exists only where the processor has the instructions.
        unsafe {
            match self.0 {
                Width::Wide => wide::sum::<POLYNOMIAL, IS_HEAD>(first, body),
                Width::Narrow => narrow::sum::<POLYNOMIAL, IS_HEAD>(first, body),
            }
        }
    }
}

/// The factors that move the two halves of a polynomial along the message. The first half lies 64 bits further ahead.
#[derive(Clone, Copy)]
struct Step {
    first: i64,
    second: i64,
}

impl Step {
    const NOWHERE: Step = Step { first: 0, second: 0 };

    /// The products of the instruction lack one bit of the order used here, and lie 32 bits from the position of the
    /// remainder modulo a polynomial of degree 32. Hence the shift by one, and the 32.
    const fn by(polynomial: u32, bits: u32) -> Step {
        Step { first: power(polynomial, bits + 32) << 1, second: power(polynomial, bits - 32) << 1 }
    }
}

/// `x^n` modulo the polynomial; the highest of 32 bits is the coefficient of `x^0`.
const fn power(polynomial: u32, n: u32) -> i64 {
    let (mut value, mut left) = (1_u32 << 31, n);
    while left > 0 {
        value = value >> 1 ^ if value & 1 == 1 { polynomial } else { 0 };
        left -= 1;
    }
    value as i64
}

/// The polynomial of degree 32 with all its 33 coefficients; bit 0 is that of `x^32`.
const fn with_leading_coefficient(polynomial: u32) -> i64 {
    (polynomial as i64) << 1 | 1
}

/// The quotient of `x^64` and the polynomial, in the same order, for the last reduction (Barrett's).
const fn quotient(polynomial: u32) -> i64 {
    let (mut quotient, mut remainder, mut bit) = (1_i64, polynomial, 1);
    while bit <= 32 {
        let has_coefficient = remainder & 1 == 1;
        quotient |= (has_coefficient as i64) << bit;
        remainder = remainder >> 1 ^ if has_coefficient { polynomial } else { 0 };
        bit += 1;
    }
    quotient
}

#[inline]
fn number(head: &[u8; HEAD_LEN]) -> u128 {
    let mut bytes = [0; 16];
    bytes[..HEAD_LEN].copy_from_slice(head);
    u128::from_le_bytes(bytes)
}

/// What is added to the first 128 bits of the body: `first`, which is moved there if it `IS_HEAD`. It is part of the function of each width, and
/// `first` is a number, which stays in two registers: an array would be stored in pieces and loaded as a whole, which costs some 10 ns.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn start<const POLYNOMIAL: u32, const IS_HEAD: bool>(first: u128) -> __m128i {
    let first = _mm_set_epi64x((first >> 64) as i64, first as i64);
    if !IS_HEAD {
        return first;
    }
    fold(first, factors(const { Step::by(POLYNOMIAL, LANE_BITS) }), _mm_setzero_si128())
}

/// Moves `value` and adds `there`.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn fold(value: __m128i, step: __m128i, there: __m128i) -> __m128i {
    let first = _mm_clmulepi64_si128(value, step, 0x00);
    let second = _mm_clmulepi64_si128(value, step, 0x11);
    _mm_xor_si128(_mm_xor_si128(first, second), there)
}

/// The CRC of a message with these last 128 bits.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn reduce<const POLYNOMIAL: u32>(value: __m128i) -> u32 {
    let low_word = _mm_cvtsi32_si128(-1);
    // 128 bits to 96, to 64.
    let by_64 = _mm_cvtsi64_si128(const { Step::by(POLYNOMIAL, LANE_BITS).second });
    let value = _mm_xor_si128(_mm_clmulepi64_si128(value, by_64, 0x00), _mm_srli_si128(value, 8));
    let by_32 = _mm_cvtsi64_si128(const { power(POLYNOMIAL, 64) << 1 });
    let low = _mm_and_si128(value, low_word);
    let value = _mm_xor_si128(_mm_clmulepi64_si128(low, by_32, 0x00), _mm_srli_si128(value, 4));
    // 64 to 32.
    let numbers =
        _mm_set_epi64x(const { quotient(POLYNOMIAL) }, const { with_leading_coefficient(POLYNOMIAL) });
    let quotient = _mm_clmulepi64_si128(_mm_and_si128(value, low_word), numbers, 0x10);
    let product = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_word), numbers, 0x00);
    !(_mm_extract_epi32(_mm_xor_si128(value, product), 1) as u32)
}

/// The factors of a step, in a register.
#[inline]
#[target_feature(enable = "sse2")]
fn factors(step: Step) -> __m128i {
    _mm_set_epi64x(step.second, step.first)
}

/// Prefetches the bytes of later rounds. The processor's own prefetching starts anew in each page, and the next packet of a GRO batch, or
/// its payload, begins behind this one, in another page.
#[inline]
#[target_feature(enable = "sse2")]
fn prefetch(bytes: &[u8]) {
    for line in (0..bytes.len()).step_by(64) {
        // The address may lie behind the packet: a prefetch reads nothing.
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(PREFETCH_DISTANCE + line).cast());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The constants that the paper prints for the polynomial of Ethernet.
    #[test]
    fn the_constants_of_the_last_reduction_follow_from_the_polynomial() {
        assert_eq!(
            (with_leading_coefficient(0xedb8_8320), quotient(0xedb8_8320)),
            (0x1_db71_0641, 0x1_f701_1641)
        );
        assert_eq!(
            (with_leading_coefficient(0x82f6_3b78), quotient(0x82f6_3b78)),
            (0x1_05ec_76f1, 0xdea7_13f1)
        );
    }
}
