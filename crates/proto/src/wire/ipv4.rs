//! IPv4 header (RFC 791), as RoCEv2 has it: without options.

use super::Malformed;
use super::malformed::first_bytes;
use core::net::Ipv4Addr;

const VERSION_AND_WORDS: u8 = 0x45;

/// IPv4 header without options. It has no field for the checksum: the writer computes it, the parser checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Type of service: DSCP in the high six bits, ECN in the low two.
    pub tos: u8,
    /// Bytes of header and data.
    pub total_len: u16,
    /// Identification; the ICRC covers it.
    pub ident: u16,
    /// Flags and fragment offset; [`Ipv4Header::DONT_FRAGMENT`] alone in RoCEv2.
    pub flags: u16,
    /// Time to live.
    pub ttl: u8,
    /// What follows; [`Ipv4Header::PROTOCOL_UDP`] in RoCEv2.
    pub protocol: u8,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
}

impl Ipv4Header {
    /// Bytes on the wire.
    pub const LEN: usize = 20;
    /// Flag "don't fragment".
    pub const DONT_FRAGMENT: u16 = 0x4000;
    /// Protocol number of UDP.
    pub const PROTOCOL_UDP: u8 = 17;

    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Ipv4Header, Malformed> {
        let b: &[u8; Ipv4Header::LEN] = first_bytes(bytes)?;
        if b[0] >> 4 != 4 {
            return Err(Malformed::BadIpVersion(b[0] >> 4));
        }
        if b[0] != VERSION_AND_WORDS {
            return Err(Malformed::BadIpHeaderLength(b[0] & 0xf));
        }
        let word = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        if checksum(b) != 0 {
            return Err(Malformed::BadIpChecksum(word(10)));
        }
        if usize::from(word(2)) < Ipv4Header::LEN {
            return Err(Malformed::BadLengthField(word(2)));
        }
        Ok(Ipv4Header {
            tos: b[1],
            total_len: word(2),
            ident: word(4),
            flags: word(6),
            ttl: b[8],
            protocol: b[9],
            src: Ipv4Addr::new(b[12], b[13], b[14], b[15]),
            dst: Ipv4Addr::new(b[16], b[17], b[18], b[19]),
        })
    }

    /// Encodes the header, with its checksum.
    pub fn to_bytes(&self) -> [u8; Ipv4Header::LEN] {
        let mut b = [0; Ipv4Header::LEN];
        b[0] = VERSION_AND_WORDS;
        b[1] = self.tos;
        b[2..4].copy_from_slice(&self.total_len.to_be_bytes());
        b[4..6].copy_from_slice(&self.ident.to_be_bytes());
        b[6..8].copy_from_slice(&self.flags.to_be_bytes());
        b[8] = self.ttl;
        b[9] = self.protocol;
        b[12..16].copy_from_slice(&self.src.octets());
        b[16..].copy_from_slice(&self.dst.octets());
        let sum = checksum(&b);
        b[10..12].copy_from_slice(&sum.to_be_bytes());
        b
    }
}

/// Internet checksum (RFC 1071); zero over a header that holds its own right checksum.
fn checksum(header: &[u8; Ipv4Header::LEN]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    // Ten words carry at most nine; one fold leaves at most one more carry.
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
