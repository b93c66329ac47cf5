//! The two timers with encoded values.

/// RNR NAK timer by code, in units of 10 us (IBA table 45). Code 0 is the longest, not the shortest.
const RNR_TIMER_10US: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// How long a requester waits after an RNR NAK with this code. Only the low five bits exist on the wire.
pub const fn rnr_timer_ns(code: u8) -> u64 {
    RNR_TIMER_10US[(code & 31) as usize] as u64 * 10_000
}

/// Transport timer of an exponent: 4.096 us * 2^n; 0 means never (C9-140). Only five bits exist.
pub const fn timeout_ns(exponent: u8) -> Option<u64> {
    match exponent & 31 {
        0 => None,
        n => Some(4096 << n),
    }
}
