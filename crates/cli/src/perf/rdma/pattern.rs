//! A byte pattern that shows whether the data arrived.

use super::buffers::Buffers;
use crate::failure::Failure;

/// Bytes that depend on position and seed.
pub(super) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Checks the bytes in the region; the error names the first wrong one.
pub(super) fn check(region: &Buffers, at: u64, expected: &[u8], what: &str) -> Result<(), Failure> {
    let mut found = vec![0; expected.len()];
    region.read(at, &mut found)?;
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(wrong) => Err(Failure::new(format!(
            "{what} did not arrive as it was sent: byte {wrong} of {} is {:#04x} instead of {:#04x}",
            expected.len(),
            found[wrong],
            expected[wrong]
        ))
        .advise("The figures of this test cannot be trusted; please report it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_depend_on_seed_and_position() {
        assert_eq!(bytes(7, 13), bytes(7, 13));
        assert_ne!(bytes(7, 64), bytes(8, 64));
        assert_eq!(bytes(1, 3).len(), 3);
        let long = bytes(3, 4096);
        assert_ne!(long[..8], long[8..16]);
    }
}
