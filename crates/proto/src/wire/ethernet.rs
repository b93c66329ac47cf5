//! The bytes that a packet occupies on an Ethernet link.

use super::{Bth, ICRC_LEN, Ipv4Header, UdpHeader};

/// Bytes in addition to payload and extension headers: preamble and gap (20), Ethernet header and FCS (18), IPv4, UDP, BTH and
/// ICRC.
pub const ETHERNET_OVERHEAD: u32 = 20 + 18 + (Ipv4Header::LEN + UdpHeader::LEN + Bth::LEN + ICRC_LEN) as u32;
