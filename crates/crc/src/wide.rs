//! Four times 64 bytes at a time, for processors with AVX-512 and its carry-less multiplication.
//!
//! A register of 512 bits holds four polynomials of degree below 128, one beside the other, in the bit order of this CRC: the first
//! bit of the message is the highest coefficient. To move such a polynomial `n` bits along the message is to multiply it by `x^n`, and
//! modulo the CRC's polynomial that is two carry-less multiplications, one for each half of 64 bits, by numbers that depend
//! on `n` alone ([`Step`]). So four registers walk over the message, each adding what lies under it, until all is added up
//! in the last 128 bits, which are then reduced to 32 (Gopal and others, "Fast CRC Computation for Generic Polynomials Using
//! PCLMULQDQ Instruction", Intel 2009).

use crate::HEAD_LEN;
use core::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_T0, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_cvtsi64_si128,
    _mm_extract_epi32, _mm_prefetch, _mm_set_epi64x, _mm_srli_si128, _mm_xor_si128, _mm512_broadcast_i32x4,
    _mm512_castsi512_si128, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_loadu_si512,
    _mm512_set_epi64, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

/// Bytes that are added in one round.
const BLOCK: usize = 256;
/// How far ahead of the sum memory is asked for.
const AHEAD: usize = 2048;
const LANE_BITS: u32 = 128;
const REGISTER_BITS: u32 = 4 * LANE_BITS;

/// This processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wide(());

impl Wide {
    pub(crate) fn new() -> Option<Wide> {
        let has_all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("sse4.1");
        has_all.then_some(Wide(()))
    }

    /// As [`Summer::sum`](crate::Summer::sum), of at least one block.
    #[inline]
    pub(crate) fn sum(self, crc: u32, head: &[u8; HEAD_LEN], body: &[[u8; BLOCK]]) -> u32 {
        // SAFETY: there is a `Wide` only where the processor has the instructions.
        unsafe { sum(crc, head, body) }
    }
}

/// What moves a polynomial along: the factors for its two halves, of which the first one lies 64 bits further ahead.
#[derive(Clone, Copy)]
struct Step {
    first: i64,
    second: i64,
}

impl Step {
    const NOWHERE: Step = Step { first: 0, second: 0 };

    /// The products of the instruction are one bit short of the order used here, and stand 32 bits apart from where the
    /// remainder modulo a polynomial of degree 32 is wanted: hence the shift by one, and the 32.
    const fn by(bits: u32) -> Step {
        Step { first: power(bits + 32) << 1, second: power(bits - 32) << 1 }
    }
}

/// `x^n` modulo the polynomial of CRC-32; the highest of 32 bits is the coefficient of `x^0`.
const fn power(n: u32) -> i64 {
    let (mut value, mut left) = (1_u32 << 31, n);
    while left > 0 {
        value = value >> 1 ^ if value & 1 == 1 { 0xedb8_8320 } else { 0 };
        left -= 1;
    }
    value as i64
}

/// The polynomial itself and the whole part of `x^64` divided by it, in the same order, for the last reduction (Barrett's).
const POLYNOMIAL: i64 = 0x1_db71_0641;
const QUOTIENT: i64 = 0x1_f701_1641;

#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
fn sum(crc: u32, head: &[u8; HEAD_LEN], body: &[[u8; BLOCK]]) -> u32 {
    let Some((first, others)) = body.split_first() else { unreachable!("the caller has a block") };
    let [mut a, mut b, mut c, mut d] = load(first);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(moved_head(crc, head)));
    let all = broadcast(const { Step::by(4 * REGISTER_BITS) });
    for block in others {
        ask_for(block);
        let [e, f, g, h] = load(block);
        a = fold(a, all, e);
        b = fold(b, all, f);
        c = fold(c, all, g);
        d = fold(d, all, h);
    }
    let two = broadcast(const { Step::by(2 * REGISTER_BITS) });
    let (a, b) = (fold(a, two, c), fold(b, two, d));
    let one = broadcast(const { Step::by(REGISTER_BITS) });
    reduce(collect(fold(a, one, b)))
}

/// What the header, with `crc` in front of it, adds to the first 128 bits of the body.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
fn moved_head(crc: u32, head: &[u8; HEAD_LEN]) -> __m128i {
    let ([first], rest) = head.as_chunks::<4>().0.split_at(1) else { unreachable!("twelve bytes") };
    let [second, third] = rest else { unreachable!("twelve bytes") };
    let word = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    // Four zeros in front make it sixteen bytes; they change nothing.
    let low = (word(first) ^ u64::from(!crc)) << 32;
    let high = word(second) | word(third) << 32;
    let step = const { Step::by(LANE_BITS) };
    let (head, step) = (_mm_set_epi64x(high as i64, low as i64), _mm_set_epi64x(step.second, step.first));
    _mm_xor_si128(_mm_clmulepi64_si128(head, step, 0x00), _mm_clmulepi64_si128(head, step, 0x11))
}

/// `value`, moved, and what lies there.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(value: __m512i, step: __m512i, there: __m512i) -> __m512i {
    const XOR_OF_THREE: i32 = 0x96;
    let first = _mm512_clmulepi64_epi128(value, step, 0x00);
    let second = _mm512_clmulepi64_epi128(value, step, 0x11);
    _mm512_ternarylogic_epi64(first, second, there, XOR_OF_THREE)
}

/// The four polynomials of a register, each moved to where the last one is.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn collect(value: __m512i) -> __m128i {
    const STEPS: [Step; 4] =
        [Step::by(3 * LANE_BITS), Step::by(2 * LANE_BITS), Step::by(LANE_BITS), Step::NOWHERE];
    let [s, t, u, v] = STEPS;
    let steps = _mm512_set_epi64(v.second, v.first, u.second, u.first, t.second, t.first, s.second, s.first);
    let first = _mm512_clmulepi64_epi128(value, steps, 0x00);
    let second = _mm512_clmulepi64_epi128(value, steps, 0x11);
    let moved = _mm512_xor_si512(first, second);
    let three = _mm_xor_si128(
        _mm_xor_si128(_mm512_castsi512_si128(moved), _mm512_extracti32x4_epi32(moved, 1)),
        _mm512_extracti32x4_epi32(moved, 2),
    );
    _mm_xor_si128(three, _mm512_extracti32x4_epi32(value, 3))
}

/// The CRC whose last 128 bits are these.
#[inline]
#[target_feature(enable = "avx512f,pclmulqdq,sse4.1")]
fn reduce(value: __m128i) -> u32 {
    let low_word = _mm_cvtsi32_si128(-1);
    // 128 bits to 96, to 64.
    let by_64 = _mm_cvtsi64_si128(const { Step::by(LANE_BITS).second });
    let value = _mm_xor_si128(_mm_clmulepi64_si128(value, by_64, 0x00), _mm_srli_si128(value, 8));
    let by_32 = _mm_cvtsi64_si128(const { power(64) << 1 });
    let low = _mm_and_si128(value, low_word);
    let value = _mm_xor_si128(_mm_clmulepi64_si128(low, by_32, 0x00), _mm_srli_si128(value, 4));
    // 64 to 32.
    let numbers = _mm_set_epi64x(QUOTIENT, POLYNOMIAL);
    let quotient = _mm_clmulepi64_si128(_mm_and_si128(value, low_word), numbers, 0x10);
    let product = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_word), numbers, 0x00);
    !(_mm_extract_epi32(_mm_xor_si128(value, product), 1) as u32)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast(step: Step) -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi64x(step.second, step.first))
}

/// Asks for what the rounds to come will read. The processor does so by itself, but anew in each page; the next packet of a train, or
/// its payload, begins where this one ends, in another page.
#[inline]
#[target_feature(enable = "avx512f")]
fn ask_for(block: &[u8; BLOCK]) {
    for line in (0..BLOCK).step_by(64) {
        // It may point behind the packet; nothing is read.
        _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().wrapping_add(AHEAD + line).cast());
    }
}

/// A block as it lies there.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(block: &[u8; BLOCK]) -> [__m512i; 4] {
    let ([a, b, c, d], _) = block.as_chunks::<64>() else { unreachable!("a block is four registers") };
    // SAFETY: each is 64 bytes that may be read, and this instruction asks for no alignment.
    [a, b, c, d].map(|bytes| unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) })
}
