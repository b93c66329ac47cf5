//! Descriptions of queue pairs for their peers.

use ferroce_proto::verbs::{Mtu, Transport};
use ferroce_proto::{Gid, Psn, Qkey, Qpn};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The description of a queue pair that a peer needs to send to it.
///
/// It is encoded as 36 bytes ([`Endpoint::to_bytes`]) or as text (`rc/127.0.0.1/0x01a2b3/psn=77/mtu=4096/rd=16/qkey=0x0`).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its transport.
    pub transport: Transport,
    /// Its address.
    pub gid: Gid,
    /// Its queue pair number.
    pub qpn: Qpn,
    /// Its first packet sequence number.
    pub psn: Psn,
    /// The largest path MTU it can use.
    pub mtu: Mtu,
    /// READs and atomics that it serves at a time.
    pub rd_atomic: u8,
    /// The Q_Key that datagrams to it must carry.
    pub qkey: Qkey,
}

/// Why bytes or text are not an endpoint.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEndpoint {
    /// The magic number or the format is wrong.
    #[error("not a ferroce endpoint")]
    NotAnEndpoint,
    /// The encoding has another version.
    #[error("the endpoint has version {0}; this library supports version {VERSION}")]
    Version(u8),
    /// A field has an invalid value.
    #[error("the endpoint has an invalid {0}")]
    Field(&'static str),
}

const MAGIC: [u8; 4] = *b"fRCE";
const VERSION: u8 = 1;
/// The transports as text. The byte code of a transport is its index in this list plus 1.
const TRANSPORTS: [(Transport, &str); 5] = [
    (Transport::Rc, "rc"),
    (Transport::Uc, "uc"),
    (Transport::Ud, "ud"),
    (Transport::XrcIni, "xrc-ini"),
    (Transport::XrcTgt, "xrc-tgt"),
];

impl Endpoint {
    /// Size of the encoding in bytes.
    pub const ENCODED_LEN: usize = 36;

    /// The endpoint of a multicast group, for [`Pd::address_handle`](crate::Pd::address_handle).
    pub fn multicast(group: IpAddr, qkey: Qkey) -> Endpoint {
        Endpoint::datagram(group, Qpn::MULTICAST, qkey)
    }

    /// The endpoint of a datagram queue pair, for example of the sender of a datagram.
    pub fn datagram(address: IpAddr, qpn: Qpn, qkey: Qkey) -> Endpoint {
        Endpoint {
            transport: Transport::Ud,
            gid: address.into(),
            qpn,
            psn: Psn::new(0),
            mtu: Mtu::default(),
            rd_atomic: 0,
            qkey,
        }
    }

    /// Its address.
    pub fn address(&self) -> IpAddr {
        self.gid.to_ip()
    }

    /// Encodes the endpoint.
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = code_and_name(self.transport).0;
        bytes[6] = self.mtu as u8;
        bytes[7] = self.rd_atomic;
        bytes[8..12].copy_from_slice(&self.qpn.value().to_be_bytes());
        bytes[12..16].copy_from_slice(&self.psn.value().to_be_bytes());
        bytes[16..20].copy_from_slice(&self.qkey.0.to_be_bytes());
        bytes[20..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// Decodes and checks an endpoint.
    pub fn from_bytes(bytes: &[u8; Self::ENCODED_LEN]) -> Result<Self, BadEndpoint> {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC {
            return Err(BadEndpoint::NotAnEndpoint);
        }
        if bytes[4] != VERSION {
            return Err(BadEndpoint::Version(bytes[4]));
        }
        let transport = usize::from(bytes[5]).checked_sub(1).and_then(|at| TRANSPORTS.get(at));
        let mut gid = Gid::ZERO;
        gid.0.copy_from_slice(&bytes[20..]);
        let endpoint = Endpoint {
            transport: transport.ok_or(BadEndpoint::Field("transport"))?.0,
            gid,
            qpn: number("QP number", word(8)).map(Qpn::new)?,
            psn: number("sequence number", word(12)).map(Psn::new)?,
            mtu: Mtu::from_code(bytes[6].into()).ok_or(BadEndpoint::Field("MTU"))?,
            rd_atomic: bytes[7],
            qkey: Qkey(word(16)),
        };
        endpoint.checked()
    }

    fn checked(self) -> Result<Self, BadEndpoint> {
        let group = self.gid.is_multicast() && self.transport == Transport::Ud && self.qpn == Qpn::MULTICAST;
        if self.gid.is_zero() || self.address().is_unspecified() || (self.gid.is_multicast() && !group) {
            return Err(BadEndpoint::Field("address"));
        }
        if self.qpn.value() < 2 || (self.qpn == Qpn::MULTICAST && !group) {
            return Err(BadEndpoint::Field("QP number"));
        }
        Ok(self)
    }
}

/// The byte code and the text of a transport.
fn code_and_name(transport: Transport) -> (u8, &'static str) {
    let at = TRANSPORTS.iter().position(|(known, _)| *known == transport).unwrap_or(0);
    (at as u8 + 1, TRANSPORTS[at].1)
}

/// QP and sequence numbers have 24 bits.
fn number(field: &'static str, value: u32) -> Result<u32, BadEndpoint> {
    if value >> 24 == 0 { Ok(value) } else { Err(BadEndpoint::Field(field)) }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, transport) = code_and_name(self.transport);
        let Endpoint { qpn, psn, rd_atomic, qkey, .. } = self;
        let (address, mtu) = (self.address(), self.mtu.bytes());
        write!(f, "{transport}/{address}/{qpn}/psn={psn}/mtu={mtu}/rd={rd_atomic}/qkey={qkey}")
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let fields: Vec<&str> = text.trim().split('/').collect();
        let [transport, address, qpn, psn, mtu, rd, qkey] = fields[..] else {
            return Err(BadEndpoint::NotAnEndpoint);
        };
        let transport = TRANSPORTS.iter().find(|(_, name)| *name == transport);
        let (transport, _) = *transport.ok_or(BadEndpoint::NotAnEndpoint)?;
        let address: IpAddr = address.parse().map_err(|_| BadEndpoint::Field("address"))?;
        let named = |field, text: &str, prefix| {
            let digits = text.strip_prefix(prefix).ok_or(BadEndpoint::Field(field))?;
            let (digits, radix) = digits.strip_prefix("0x").map_or((digits, 10), |hex| (hex, 16));
            u32::from_str_radix(digits, radix).map_err(|_| BadEndpoint::Field(field))
        };
        let endpoint = Endpoint {
            transport,
            gid: address.into(),
            qpn: number("QP number", named("QP number", qpn, "")?).map(Qpn::new)?,
            psn: number("sequence number", named("sequence number", psn, "psn=")?).map(Psn::new)?,
            mtu: Mtu::from_bytes(named("MTU", mtu, "mtu=")?).ok_or(BadEndpoint::Field("MTU"))?,
            rd_atomic: named("rd", rd, "rd=")?.try_into().map_err(|_| BadEndpoint::Field("rd"))?,
            qkey: Qkey(named("Q_Key", qkey, "qkey=")?),
        };
        endpoint.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(address: &str) -> Endpoint {
        Endpoint {
            transport: Transport::Rc,
            gid: Gid::from_ip(address.parse().unwrap()),
            qpn: Qpn::new(0x01_a2b3),
            psn: Psn::new(77),
            mtu: Mtu::B4096,
            rd_atomic: 16,
            qkey: Qkey(0x1111_1111),
        }
    }

    #[test]
    fn bytes_and_text_round_trip() {
        for address in ["127.0.0.1", "::1", "fe80::1"] {
            let endpoint = endpoint(address);
            assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes()), Ok(endpoint));
            assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }
        let group = Endpoint::multicast("239.1.2.3".parse().unwrap(), Qkey(1));
        assert_eq!(Endpoint::from_bytes(&group.to_bytes()), Ok(group));
    }

    #[test]
    fn every_byte_is_checked() {
        let good = endpoint("127.0.0.1").to_bytes();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Endpoint::from_bytes(&bytes)
        };
        assert_eq!(with(0, b'X'), Err(BadEndpoint::NotAnEndpoint));
        assert_eq!(with(4, 9), Err(BadEndpoint::Version(9)));
        assert_eq!(with(5, 0), Err(BadEndpoint::Field("transport")));
        assert_eq!(with(6, 6), Err(BadEndpoint::Field("MTU")));
        assert_eq!(with(8, 1), Err(BadEndpoint::Field("QP number")));
        assert_eq!(with(12, 1), Err(BadEndpoint::Field("sequence number")));
        assert_eq!(with(32, 224), Err(BadEndpoint::Field("address")));
    }

    #[test]
    fn text_of_other_types_is_refused() {
        let good = endpoint("127.0.0.1").to_string();
        for bad in [
            "",
            "rc",
            "xx/127.0.0.1/0x2/psn=0/mtu=256/rd=1/qkey=0",
            &good.replace("4096", "1500"),
            &format!("{good}/"),
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }
}
