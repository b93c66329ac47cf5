//! Service ids that stand for IP ports, and the IP addresses in front of the private data (IBA annex A11).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Port space of the connection manager: ports of different spaces are independent. The numbers are those of librdmacm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// Datagrams to IPoIB groups.
    Ipoib = 0x0002,
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Any transport; XRC among them.
    Ib = 0x013f,
}

impl PortSpace {
    /// All of them.
    pub const ALL: [PortSpace; 4] = [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];

    /// The space with that number.
    pub fn from_code(code: u16) -> Option<PortSpace> {
        PortSpace::ALL.into_iter().find(|s| *s as u16 == code)
    }

    /// Whether it is for datagrams, which resolve services instead of connecting.
    pub const fn is_datagram(self) -> bool {
        matches!(self, PortSpace::Udp | PortSpace::Ipoib)
    }
}

/// Service id, which identifies the service of a listener. Those of IP ports are `0x0000_0000_01PP_nnnn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service id of a port.
    pub const fn of_port(space: PortSpace, port: u16) -> ServiceId {
        ServiceId((space as u64) << 16 | port as u64)
    }
    /// The port, in any port space.
    pub const fn port(self) -> u16 {
        self.0 as u16
    }
    /// The port space, if it is one of those.
    pub fn space(self) -> Option<PortSpace> {
        if self.0 >> 32 != 0 { None } else { PortSpace::from_code((self.0 >> 16) as u16) }
    }
    /// Whether an [`IpHeader`] precedes the private data: all of `0x0000_0000_01…`.
    pub const fn has_ip_header(self) -> bool {
        self.0 >> 24 == 1
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// The first bytes of the private data of a REQ or SIDR_REQ to an IP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Port of the sender.
    pub sport: u16,
    /// Address of the sender.
    pub src: IpAddr,
    /// Address of the destination, of the same family.
    pub dst: IpAddr,
}

impl IpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 36;

    /// Reads the header; `None` if it is too short, of another version, or of no IP version.
    pub fn parse(bytes: &[u8]) -> Option<IpHeader> {
        let b: &[u8; IpHeader::LEN] = bytes.first_chunk()?;
        let (major, ip_version) = (b[0] >> 4, b[1] >> 4);
        if major != 0 {
            return None;
        }
        let address = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 16] = b[at..at + 16].try_into().ok()?;
            match ip_version {
                4 => Some(Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]).into()),
                6 => Some(Ipv6Addr::from(octets).into()),
                _ => None,
            }
        };
        Some(IpHeader { sport: u16::from_be_bytes([b[2], b[3]]), src: address(4)?, dst: address(20)? })
    }

    /// Encodes the header. Both addresses must be of one family; the source determines the version.
    pub fn to_bytes(&self) -> [u8; IpHeader::LEN] {
        let mut b = [0; IpHeader::LEN];
        b[1] = if self.src.is_ipv4() { 4 << 4 } else { 6 << 4 };
        b[2..4].copy_from_slice(&self.sport.to_be_bytes());
        for (at, address) in [(4, self.src), (20, self.dst)] {
            match address {
                IpAddr::V4(v4) => b[at + 12..at + 16].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => b[at..at + 16].copy_from_slice(&v6.octets()),
            }
        }
        b
    }
}
