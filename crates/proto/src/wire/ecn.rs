//! Explicit congestion notification: two bits of the traffic class (RFC 3168).

/// The bits.
pub const ECN_BITS: u8 = 3;
/// ECT(0): switches may mark the packet instead of dropping it.
pub const ECN_CAPABLE: u8 = 2;
/// Congestion experienced: a switch marked the packet.
pub const ECN_CE: u8 = 3;
