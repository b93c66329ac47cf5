//! IPv6 header (RFC 8200), without extension headers.

use super::Malformed;
use super::malformed::first_bytes;
use core::net::Ipv6Addr;

const VERSION: u32 = 6;

/// IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Traffic class: DSCP in the high six bits, ECN in the low two.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// What follows; 17 (UDP) in RoCEv2.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
}

impl Ipv6Header {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Ipv6Header, Malformed> {
        let b: &[u8; Ipv6Header::LEN] = first_bytes(bytes)?;
        let first = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        if first >> 28 != VERSION {
            return Err(Malformed::BadIpVersion(b[0] >> 4));
        }
        let addr = |at: usize| first_bytes(&b[at..]).map(|octets: &[u8; 16]| Ipv6Addr::from(*octets));
        Ok(Ipv6Header {
            tclass: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len: u16::from_be_bytes([b[4], b[5]]),
            next_header: b[6],
            hop_limit: b[7],
            src: addr(8)?,
            dst: addr(24)?,
        })
    }

    /// Encodes the header. Only 20 bits of the flow label fit.
    pub fn to_bytes(&self) -> [u8; Ipv6Header::LEN] {
        let first = VERSION << 28 | u32::from(self.tclass) << 20 | self.flow_label & 0xf_ffff;
        let mut b = [0; Ipv6Header::LEN];
        b[..4].copy_from_slice(&first.to_be_bytes());
        b[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src.octets());
        b[24..].copy_from_slice(&self.dst.octets());
        b
    }
}
