//! Where packets go: path MTU, address vectors, resolved routes.

use crate::ids::Gid;

/// Path MTU: how many payload bytes one packet carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes: the most that fits an Ethernet frame of 1500.
    #[default]
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// Payload bytes per packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
    /// The MTU of exactly that many bytes.
    pub fn from_bytes(bytes: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| m.bytes() == bytes)
    }
    /// The MTU with that number in the verbs ABI (1 = 256 … 5 = 4096).
    pub fn from_code(code: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| *m as u32 == code)
    }
    /// The largest MTU whose packets (plus at most 84 bytes of headers) fit a network MTU.
    pub fn fitting(network_mtu: u32) -> Mtu {
        let fits = |m: &Mtu| m.bytes() + Self::HEADROOM <= network_mtu;
        Mtu::ALL.into_iter().rev().find(fits).unwrap_or(Mtu::B256)
    }
    /// IPv6 and UDP headers, BTH, the largest extension headers of a data packet, ICRC.
    const HEADROOM: u32 = 40 + 8 + 12 + 16 + 4 + 4;
}

/// Address vector as `modify_qp` and `create_ah` take it (the RoCE part: a GRH is always present).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// GID of the destination.
    pub dgid: Gid,
    /// Which entry of the local GID table is the source.
    pub sgid_index: u8,
    /// IPv6 flow label, 20 bits; also seeds the UDP source port.
    pub flow_label: u32,
    /// Hop limit (TTL).
    pub hop_limit: u8,
    /// Traffic class (TOS).
    pub traffic_class: u8,
    /// Service level; kept for `query`.
    pub sl: u8,
    /// Port number, always 1.
    pub port: u8,
}

/// An address vector with the source GID looked up: everything a packet's outer headers need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Route {
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Hop limit (TTL).
    pub hop_limit: u8,
    /// Traffic class (TOS).
    pub traffic_class: u8,
    /// Selects one of the link's source ports, so that switches distinguish the flows.
    pub entropy: u16,
}
