//! Arbitrary data from a hostile local peer: the body of a fuzz target.

use crate::descriptors::RegionDescriptor;
use crate::ring::hostile::rings;

/// Checks that no ring and no descriptor causes an access outside its memory, or a panic.
pub fn target(bytes: &[u8]) {
    describe(bytes);
    rings(bytes);
}

/// Checks that a descriptor with any words can be read, and is unchanged after it is written and read again.
fn describe(bytes: &[u8]) {
    for words in bytes.as_chunks::<24>().0 {
        let fields = std::array::from_fn(|n| u64::from(words[2 * n]) << (words[2 * n + 1] % 64));
        let descriptor = RegionDescriptor::from_fields(fields);
        assert_eq!(RegionDescriptor::from_fields(descriptor.fields()), descriptor);
    }
}

#[cfg(test)]
mod tests {
    /// Runs in every test run, without the guidance of coverage.
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
