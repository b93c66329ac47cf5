//! What a local peer that keeps to no rule writes: the body of a fuzz target.

use crate::descriptors::RegionDescriptor;
use crate::ring::hostile::rings;

/// No ring and no descriptor leads outside its memory, or to a panic.
pub fn target(bytes: &[u8]) {
    describe(bytes);
    rings(bytes);
}

/// Descriptors with any words are read, and mean the same when they are written again.
fn describe(bytes: &[u8]) {
    for words in bytes.as_chunks::<24>().0 {
        let fields = std::array::from_fn(|n| u64::from(words[2 * n]) << (words[2 * n + 1] % 64));
        let descriptor = RegionDescriptor::from_fields(fields);
        assert_eq!(RegionDescriptor::from_fields(descriptor.fields()), descriptor);
    }
}

#[cfg(test)]
mod tests {
    /// No coverage guides it, but it runs in every test run.
    #[test]
    fn random_bytes_of_a_local_peer_change_nothing_else() {
        let mut state = ferroce_os::random::number::<u64>();
        println!("state {state}");
        for _ in 0..2000 {
            let mut byte = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as u8
            };
            let input: Vec<u8> = (0..120).map(|_| byte()).collect();
            super::target(&input);
        }
    }
}
