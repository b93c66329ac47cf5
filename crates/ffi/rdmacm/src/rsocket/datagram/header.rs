//! The two headers of datagram sockets. Until an end has received the other's queue pair number, it sends datagrams over UDP with
//! a *service header* that carries its own queue pair number. Afterwards it sends UD messages with a *source header*, since a UD
//! message does not carry its source port. Both equal those of rdma-core's librdmacm byte for byte.

use crate::rsocket::wire::part;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Why a datagram is invalid. Invalid datagrams are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Malformed {
    /// It is shorter than its header.
    Short,
    /// It is not a message of this protocol.
    Tag,
    /// Version and length are inconsistent, or do not fit the sender's address.
    Shape,
}

/// The header of every UD message: its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SourceHeader {
    bytes: [u8; Self::MAX_LEN],
    length: usize,
}

const SOURCE_LEN_V4: usize = 8;
const SOURCE_LEN_V6: usize = 24;

impl SourceHeader {
    pub(crate) const MAX_LEN: usize = SOURCE_LEN_V6;

    pub(crate) fn new(source: SocketAddr) -> Self {
        let mut bytes = [0; Self::MAX_LEN];
        bytes[2..4].copy_from_slice(&source.port().to_be_bytes());
        let length = match source {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                SOURCE_LEN_V4
            }
            SocketAddr::V6(v6) => {
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                SOURCE_LEN_V6
            }
        };
        bytes[0] = if source.is_ipv4() { 4 } else { 6 };
        bytes[1] = length as u8;
        Self { bytes, length }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Reads the source, and the length of the header.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(SocketAddr, usize), Malformed> {
        let head: &[u8; SOURCE_LEN_V4] = bytes.first_chunk().ok_or(Malformed::Short)?;
        let port = u16::from_be_bytes([head[2], head[3]]);
        match (head[0], usize::from(head[1])) {
            (4, SOURCE_LEN_V4) => {
                let ip = Ipv4Addr::new(head[4], head[5], head[6], head[7]);
                Ok((SocketAddrV4::new(ip, port).into(), SOURCE_LEN_V4))
            }
            (6, SOURCE_LEN_V6) => {
                let all: &[u8; SOURCE_LEN_V6] = bytes.first_chunk().ok_or(Malformed::Short)?;
                let flow = u32::from_ne_bytes([all[4], all[5], all[6], all[7]]);
                let ip = Ipv6Addr::from(part::<16>(all, 8));
                Ok((SocketAddrV6::new(ip, port, flow, 0).into(), SOURCE_LEN_V6))
            }
            _ => Err(Malformed::Shape),
        }
    }
}

/// The kind of a UDP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// It carries data. The receiver replies with a packet that carries its queue pair.
    Data,
    /// It only carries the sender's queue pair.
    Answer,
    /// A packet of a later version, of which only the queue pair is used.
    Unknown(u8),
}

const TAG: u32 = 0x5555_5555;
const PURPOSE_DATA: u8 = 0;
const PURPOSE_ANSWER: u8 = 7;
const SERVICE_LEN_V4: usize = 16;
const SERVICE_LEN_V6: usize = 28;

/// The header of every UDP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServiceHeader {
    pub(crate) purpose: Purpose,
    /// The sender's queue pair.
    pub(crate) qpn: u32,
    /// The address of that queue pair. It is ignored: the source of the packet is used instead.
    pub(crate) address: IpAddr,
}

impl ServiceHeader {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SERVICE_LEN_V6);
        let (version, length) =
            if self.address.is_ipv4() { (4, SERVICE_LEN_V4) } else { (6, SERVICE_LEN_V6) };
        let purpose = match self.purpose {
            Purpose::Data => PURPOSE_DATA,
            Purpose::Answer => PURPOSE_ANSWER,
            Purpose::Unknown(raw) => raw,
        };
        bytes.extend(TAG.to_be_bytes());
        bytes.extend([version, purpose, length as u8, 0]);
        bytes.extend((self.qpn & 0xff_ffff).to_be_bytes());
        match self.address {
            IpAddr::V4(v4) => bytes.extend(v4.octets()),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
        bytes
    }

    /// Reads the header of a packet from `source`, and its length.
    pub(crate) fn parse(bytes: &[u8], source: &SocketAddr) -> Result<(Self, usize), Malformed> {
        let head: &[u8; SERVICE_LEN_V4] = bytes.first_chunk().ok_or(Malformed::Short)?;
        if u32::from_be_bytes([head[0], head[1], head[2], head[3]]) != TAG {
            return Err(Malformed::Tag);
        }
        let purpose = match head[5] {
            PURPOSE_DATA => Purpose::Data,
            PURPOSE_ANSWER => Purpose::Answer,
            raw => Purpose::Unknown(raw),
        };
        let qpn = u32::from_be_bytes([0, head[9], head[10], head[11]]);
        let (address, length): (IpAddr, _) = match (head[4], usize::from(head[6]), source.is_ipv4()) {
            (4, SERVICE_LEN_V4, true) => {
                (Ipv4Addr::new(head[12], head[13], head[14], head[15]).into(), SERVICE_LEN_V4)
            }
            (6, SERVICE_LEN_V6, false) => {
                let all: &[u8; SERVICE_LEN_V6] = bytes.first_chunk().ok_or(Malformed::Short)?;
                (Ipv6Addr::from(part::<16>(all, 12)).into(), SERVICE_LEN_V6)
            }
            _ => return Err(Malformed::Shape),
        };
        Ok((Self { purpose, qpn, address }, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4() -> SocketAddr {
        "192.0.2.1:7174".parse().unwrap()
    }

    fn v6() -> SocketAddr {
        "[2001:db8::5]:7174".parse().unwrap()
    }

    #[test]
    fn the_source_header_is_byte_exact() {
        assert_eq!(SourceHeader::new(v4()).as_bytes(), [4, 8, 0x1c, 0x06, 192, 0, 2, 1]);
        #[rustfmt::skip]
        let golden = [
            6, 24, 0x1c, 0x06, 0, 0, 0, 0,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5,
        ];
        assert_eq!(SourceHeader::new(v6()).as_bytes(), golden);
        for source in [v4(), v6()] {
            let header = SourceHeader::new(source);
            let mut packet = header.as_bytes().to_vec();
            packet.extend(b"payload");
            assert_eq!(SourceHeader::parse(&packet), Ok((source, header.as_bytes().len())));
        }
    }

    #[test]
    fn the_service_header_is_byte_exact() {
        let header = ServiceHeader { purpose: Purpose::Data, qpn: 0x0012_3456, address: v4().ip() };
        let golden = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 192, 0, 2, 1];
        assert_eq!(header.to_bytes(), golden);
        assert_eq!(ServiceHeader::parse(&golden, &v4()), Ok((header, 16)));
        let answer = ServiceHeader { purpose: Purpose::Answer, qpn: 1, address: v6().ip() };
        let bytes = answer.to_bytes();
        assert_eq!(bytes[..12], [0x55, 0x55, 0x55, 0x55, 6, 7, 28, 0, 0, 0, 0, 1]);
        assert_eq!(ServiceHeader::parse(&bytes, &v6()), Ok((answer, 28)));
    }

    #[test]
    fn strangers_are_refused() {
        let good = ServiceHeader { purpose: Purpose::Data, qpn: 1, address: v4().ip() }.to_bytes();
        assert_eq!(ServiceHeader::parse(&good, &v6()), Err(Malformed::Shape), "an address of the other kind");
        assert_eq!(ServiceHeader::parse(&good[..15], &v4()), Err(Malformed::Short));
        let mut other = good.clone();
        other[0] = 0;
        assert_eq!(ServiceHeader::parse(&other, &v4()), Err(Malformed::Tag));
        assert_eq!(SourceHeader::parse(&[4, 9, 0, 0, 0, 0, 0, 0]), Err(Malformed::Shape));
        assert_eq!(SourceHeader::parse(&[6, 24, 0, 0, 0, 0, 0, 0]), Err(Malformed::Short));
        assert_eq!(SourceHeader::parse(&[4]), Err(Malformed::Short));
    }

    /// Every short byte string is either refused or read, without a panic.
    #[test]
    fn nothing_from_the_network_panics() {
        for length in 0..64 {
            for fill in [0, 4, 6, 0x55, 0xff] {
                let mut bytes = vec![fill; length];
                let _ = SourceHeader::parse(&bytes);
                let _ = ServiceHeader::parse(&bytes, &v6());
                if length > 6 {
                    bytes[..4].fill(0x55);
                    bytes[4] = 6;
                    bytes[6] = 28;
                    let _ = ServiceHeader::parse(&bytes, &v6());
                }
            }
        }
    }
}
