//! Global route header (IBA 8.3): laid out as an IPv6 header, with GIDs for addresses.
//!
//! RoCEv2 has none on the wire. The receive buffer of a datagram still starts with one, made from the IP header.

use super::{Ipv6Header, Malformed};
use crate::ids::Gid;
use core::net::Ipv6Addr;

/// Global route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// What follows; [`Grh::NEXT_HEADER_IBA`] for a BTH.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub sgid: Gid,
    /// Destination.
    pub dgid: Gid,
}

impl Grh {
    /// Bytes on the wire.
    pub const LEN: usize = 40;
    /// Next header: an InfiniBand transport header.
    pub const NEXT_HEADER_IBA: u8 = 0x1b;

    /// Reads the header at the start of `bytes`; the IP version must be 6.
    pub fn parse(bytes: &[u8]) -> Result<Grh, Malformed> {
        let Ipv6Header { tclass, flow_label, payload_len, next_header, hop_limit, src, dst } =
            Ipv6Header::parse(bytes)?;
        let (sgid, dgid) = (Gid(src.octets()), Gid(dst.octets()));
        Ok(Grh { tclass, flow_label, payload_len, next_header, hop_limit, sgid, dgid })
    }

    /// Encodes the header. Only 20 bits of the flow label fit.
    pub fn to_bytes(&self) -> [u8; Grh::LEN] {
        let Grh { tclass, flow_label, payload_len, next_header, hop_limit, sgid, dgid } = *self;
        let (src, dst) = (Ipv6Addr::from(sgid.0), Ipv6Addr::from(dgid.0));
        Ipv6Header { tclass, flow_label, payload_len, next_header, hop_limit, src, dst }.to_bytes()
    }
}
