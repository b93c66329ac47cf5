//! UDP header (RFC 768).

use super::Malformed;
use super::malformed::first_bytes;

/// Destination port of RoCEv2.
pub const ROCE_UDP_PORT: u16 = 4791;

/// UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// Source port: entropy for switches that hash flows.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Bytes of header and data.
    pub len: u16,
    /// 0 for none, as RoCEv2 senders write it. It is not checked, because the ICRC covers more.
    pub checksum: u16,
}

impl UdpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<UdpHeader, Malformed> {
        let &[s0, s1, d0, d1, l0, l1, c0, c1] = first_bytes(bytes)?;
        let len = u16::from_be_bytes([l0, l1]);
        if usize::from(len) < UdpHeader::LEN {
            return Err(Malformed::BadLengthField(len));
        }
        Ok(UdpHeader {
            sport: u16::from_be_bytes([s0, s1]),
            dport: u16::from_be_bytes([d0, d1]),
            len,
            checksum: u16::from_be_bytes([c0, c1]),
        })
    }

    /// Encodes the header.
    pub fn to_bytes(&self) -> [u8; UdpHeader::LEN] {
        let mut b = [0; UdpHeader::LEN];
        b[..2].copy_from_slice(&self.sport.to_be_bytes());
        b[2..4].copy_from_slice(&self.dport.to_be_bytes());
        b[4..6].copy_from_slice(&self.len.to_be_bytes());
        b[6..].copy_from_slice(&self.checksum.to_be_bytes());
        b
    }
}
