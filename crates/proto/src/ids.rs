//! Numbers that must not be confused, each with a type of its own.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MASK_24: u32 = 0x00ff_ffff;

/// Queue pair number, 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// QP0, subnet management.
    pub const SMI: Qpn = Qpn(0);
    /// QP1, general services such as connection management.
    pub const GSI: Qpn = Qpn(1);
    /// The destination of every multicast packet (IBA 10.5.2.1).
    pub const MULTICAST: Qpn = Qpn(MASK_24);

    /// Keeps the low 24 bits.
    pub const fn new(value: u32) -> Self {
        Qpn(value & MASK_24)
    }
    /// The number itself.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

/// Number of an XRC shared receive queue, 24 bits, as in an XRCETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Srqn(u32);

impl Srqn {
    /// Keeps the low 24 bits.
    pub const fn new(value: u32) -> Self {
        Srqn(value & MASK_24)
    }
    /// The number itself.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

/// Packet sequence number: 24 bits, compared in the half space around it (IBA 9.7.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Keeps the low 24 bits.
    pub const fn new(value: u32) -> Self {
        Psn(value & MASK_24)
    }
    /// The number itself.
    pub const fn value(self) -> u32 {
        self.0
    }
    /// This number `n` packets later.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Psn(self.0.wrapping_add(n) & MASK_24)
    }
    /// This number `n` packets earlier.
    #[must_use]
    pub const fn minus(self, n: u32) -> Self {
        Psn(self.0.wrapping_sub(n) & MASK_24)
    }
    /// Signed distance from `other` to `self`, in -2^23 ..= 2^23 - 1.
    pub const fn distance_from(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
    /// Whether `self` comes before `other` in the half space that ends at `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance_from(other) < 0
    }
    /// Whether `self` comes after `other`.
    pub const fn is_after(self, other: Psn) -> bool {
        self.distance_from(other) > 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

macro_rules! key {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

key!(
    /// Local key of a memory region, as in scatter/gather entries.
    LKey, u32
);
key!(
    /// Remote key of a memory region, which a peer needs to access it.
    RKey, u32
);
key!(
    /// Queue key of a datagram QP.
    Qkey, u32
);
key!(
    /// Partition key.
    PKey, u16
);
key!(
    /// Which protection domain something belongs to; unique within one NIC.
    PdId, u32
);

impl Qkey {
    /// Whether this is a controlled key, which a work request may not specify (IBA 10.2.5): the sender then
    /// uses its QP's own key instead.
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl PKey {
    /// The default partition, full membership: the only one a RoCE port has.
    pub const DEFAULT: PKey = PKey(0xffff);

    /// Whether a packet with key `other` may enter this partition: same number, at least one full member
    /// (IBA 10.9.3).
    pub const fn admits(self, other: PKey) -> bool {
        self.0 & 0x7fff == other.0 & 0x7fff && (self.0 | other.0) & 0x8000 != 0
    }
}

/// Global identifier: on RoCEv2 an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The zero GID: an empty table entry.
    pub const ZERO: Gid = Gid([0; 16]);

    /// The GID that stands for an IP address.
    pub const fn from_ip(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }
    /// The IP address of this GID; an IPv4-mapped one is returned as IPv4.
    #[inline]
    pub const fn to_ip(self) -> IpAddr {
        match self.to_ipv4() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from_octets(self.0)),
        }
    }
    /// The IPv4 address, if this is an IPv4-mapped GID.
    #[inline]
    pub const fn to_ipv4(self) -> Option<Ipv4Addr> {
        // Compared as one number: each packet needs this several times, and the library compares byte by byte.
        let bits = u128::from_be_bytes(self.0);
        if bits >> 32 == 0xffff { Some(Ipv4Addr::from_bits(bits as u32)) } else { None }
    }
    /// Whether packets to this GID go to a group.
    pub const fn is_multicast(self) -> bool {
        match self.to_ip() {
            IpAddr::V4(v4) => v4.is_multicast(),
            IpAddr::V6(v6) => v6.is_multicast(),
        }
    }
    /// Whether this is the all-zero GID.
    pub fn is_zero(self) -> bool {
        self == Gid::ZERO
    }
}

impl From<IpAddr> for Gid {
    fn from(addr: IpAddr) -> Self {
        Gid::from_ip(addr)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            let sep = if i == 0 { "" } else { ":" };
            write!(f, "{sep}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_compares_across_the_wrap() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert!(last.is_before(last.plus(1)));
        assert!(Psn::new(5).is_after(last));
        assert_eq!(Psn::new(5).distance_from(last), 6);
        assert_eq!(last.distance_from(Psn::new(5)), -6);
        assert_eq!(Psn::new(0).minus(1), last);
    }

    #[test]
    fn gid_and_ip_are_two_views_of_one_thing() {
        let v4: IpAddr = Ipv4Addr::new(10, 0, 0, 1).into();
        assert_eq!(Gid::from_ip(v4).to_ip(), v4);
        let v6: IpAddr = Ipv6Addr::LOCALHOST.into();
        assert_eq!(Gid::from_ip(v6).to_ip(), v6);
        assert!(Gid::from_ip(Ipv4Addr::new(239, 1, 2, 3).into()).is_multicast());
    }

    #[test]
    fn pkey_needs_one_full_member() {
        assert!(PKey(0xffff).admits(PKey(0x7fff)));
        assert!(!PKey(0x7fff).admits(PKey(0x7fff)));
        assert!(!PKey(0x8001).admits(PKey(0xffff)));
    }
}
