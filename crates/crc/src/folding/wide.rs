//! Registers of 512 bits, which hold four polynomials each: four times 64 bytes per round.

use super::{BLOCK, LANE_BITS, Step, factors, prefetch, reduce, start};
use core::arch::x86_64::{
    __m128i, __m512i, _mm_xor_si128, _mm512_broadcast_i32x4, _mm512_castsi512_si128,
    _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_loadu_si512, _mm512_set_epi64,
    _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

const REGISTER_BITS: u32 = 4 * LANE_BITS;

/// As [`super::Folding::sum`].
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
pub(super) fn sum<const POLYNOMIAL: u32, const IS_HEAD: bool>(first: u128, body: &[[u8; BLOCK]]) -> u32 {
    let start = start::<POLYNOMIAL, IS_HEAD>(first);
    let Some((block, others)) = body.split_first() else { unreachable!("the caller has a block") };
    let [mut a, mut b, mut c, mut d] = load(block);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(start));
    let all = broadcast(const { Step::by(POLYNOMIAL, 4 * REGISTER_BITS) });
    for block in others {
        prefetch(block);
        let [e, f, g, h] = load(block);
        a = fold(a, all, e);
        b = fold(b, all, f);
        c = fold(c, all, g);
        d = fold(d, all, h);
    }
    let two = broadcast(const { Step::by(POLYNOMIAL, 2 * REGISTER_BITS) });
    let (a, b) = (fold(a, two, c), fold(b, two, d));
    let one = broadcast(const { Step::by(POLYNOMIAL, REGISTER_BITS) });
    reduce::<POLYNOMIAL>(collect::<POLYNOMIAL>(fold(a, one, b)))
}

/// Moves `value` and adds `there`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(value: __m512i, step: __m512i, there: __m512i) -> __m512i {
    const XOR_OF_THREE: i32 = 0x96;
    let first = _mm512_clmulepi64_epi128(value, step, 0x00);
    let second = _mm512_clmulepi64_epi128(value, step, 0x11);
    _mm512_ternarylogic_epi64(first, second, there, XOR_OF_THREE)
}

/// The sum of the four polynomials of a register, each moved to the position of the last one.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn collect<const POLYNOMIAL: u32>(value: __m512i) -> __m128i {
    let [s, t, u, v] = const {
        [
            Step::by(POLYNOMIAL, 3 * LANE_BITS),
            Step::by(POLYNOMIAL, 2 * LANE_BITS),
            Step::by(POLYNOMIAL, LANE_BITS),
            Step::NOWHERE,
        ]
    };
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

#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast(step: Step) -> __m512i {
    _mm512_broadcast_i32x4(factors(step))
}

/// The four registers of a block.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(block: &[u8; BLOCK]) -> [__m512i; 4] {
    let ([a, b, c, d], _) = block.as_chunks::<64>() else { unreachable!("a block is four registers") };
    // SAFETY: each is 64 readable bytes, and this instruction requires no alignment.
    [a, b, c, d].map(|bytes| unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) })
}
