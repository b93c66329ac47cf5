//! Eight registers of 128 bits, which hold one polynomial each: 128 bytes per round. A multiplication takes up to seven cycles and can start
//! every cycle, so fewer registers would wait for each other.

use super::{BLOCK, LANE_BITS, Step, factors, fold, prefetch, reduce, start};
use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_xor_si128};

/// Registers.
const LANES: usize = 8;
/// Bytes of all registers.
const ROW: usize = LANES * LANE_BITS as usize / 8;

const _: () = assert!(BLOCK.is_multiple_of(ROW));

/// As [`super::Folding::sum`].
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(super) fn sum<const POLYNOMIAL: u32, const IS_HEAD: bool>(first: u128, body: &[[u8; BLOCK]]) -> u32 {
    let start = start::<POLYNOMIAL, IS_HEAD>(first);
    let (rows, _) = body.as_flattened().as_chunks::<ROW>();
    let Some((row, others)) = rows.split_first() else { unreachable!("the caller has a block") };
    let mut lanes = load(row);
    lanes[0] = _mm_xor_si128(lanes[0], start);
    let all = factors(const { Step::by(POLYNOMIAL, LANES as u32 * LANE_BITS) });
    for row in others {
        prefetch(row);
        let there = load(row);
        for (lane, there) in lanes.iter_mut().zip(there) {
            *lane = fold(*lane, all, there);
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let four = factors(const { Step::by(POLYNOMIAL, 4 * LANE_BITS) });
    let (a, b, c, d) = (fold(a, four, e), fold(b, four, f), fold(c, four, g), fold(d, four, h));
    let two = factors(const { Step::by(POLYNOMIAL, 2 * LANE_BITS) });
    let (a, b) = (fold(a, two, c), fold(b, two, d));
    let one = factors(const { Step::by(POLYNOMIAL, LANE_BITS) });
    reduce::<POLYNOMIAL>(fold(a, one, b))
}

/// The registers of a row.
#[inline]
fn load(row: &[u8; ROW]) -> [__m128i; LANES] {
    std::array::from_fn(|lane| {
        // SAFETY: a row holds `LANES` registers, and this instruction requires no alignment.
        unsafe { _mm_loadu_si128(row.as_ptr().cast::<__m128i>().add(lane)) }
    })
}
