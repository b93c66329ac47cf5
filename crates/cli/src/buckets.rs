//! Log-linear buckets of histograms: a power of two has 2^`bits` of them, so a bucket is at most 1 / 2^`bits` of its values wide.

/// The bucket of a value: the position of its highest bit, then the `bits` below it.
#[inline]
pub(crate) fn bucket(value: u64, bits: u32) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(bits + 1);
    ((u64::from(shift) << bits) + (value >> shift)) as usize
}

/// The least and the largest value of a bucket.
pub(crate) fn bounds(bucket: usize, bits: u32) -> (u64, u64) {
    let shift = ((bucket >> bits) as u64).saturating_sub(1);
    let first = (bucket as u64 - (shift << bits)) << shift;
    (first, first + ((1 << shift) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_everything_once_and_in_order() {
        for bits in [4, 10] {
            let mut next = 0;
            for at in 0..=bucket(u64::MAX, bits) {
                let (first, last) = bounds(at, bits);
                assert_eq!((first, bucket(first, bits), bucket(last, bits)), (next, at, at));
                assert!(last - first <= first >> bits, "{first} to {last}");
                next = last.wrapping_add(1);
            }
            assert_eq!(next, 0, "the last bucket ends at the largest value");
        }
    }
}
