//! Any message of communication management, with its MAD header.

use super::layout::{Body, Layout};
use super::{Apr, CommId, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq};
use crate::wire::mad::{BadMad, MAD_LEN, MadHeader};

const MGMT_CLASS: u8 = 7;
const CLASS_VERSION: u8 = 2;

/// The messages, each with its number in the MAD header and its name in the specification.
macro_rules! messages {
    ($($kind:ident $attr_id:literal $name:literal,)+) => {
        /// A message. It is not boxed, because most messages are of the larger kinds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each variant is named as its message")]
        pub enum CmMessage {
            $($kind($kind),)+
        }

        impl CmMessage {
            /// Number of the message in the MAD header.
            pub const fn attr_id(&self) -> u16 {
                match self {
                    $(CmMessage::$kind(_) => $attr_id,)+
                }
            }

            /// The name in the specification.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(CmMessage::$kind(_) => $name,)+
                }
            }

            fn parse(attr_id: u16, body: &Body) -> Option<CmMessage> {
                Some(match attr_id {
                    $($attr_id => CmMessage::$kind($kind::default().read(body)),)+
                    _ => return None,
                })
            }

            fn body(&self) -> Body {
                match *self {
                    $(CmMessage::$kind(message) => message.body(),)+
                }
            }
        }
    };
}

messages! {
    Req 0x10 "REQ",
    Mra 0x11 "MRA",
    Rej 0x12 "REJ",
    Rep 0x13 "REP",
    Rtu 0x14 "RTU",
    Dreq 0x15 "DREQ",
    Drep 0x16 "DREP",
    SidrReq 0x17 "SIDR_REQ",
    SidrRep 0x18 "SIDR_REP",
    Lap 0x19 "LAP",
    Apr 0x1a "APR",
}

/// The receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadTarget {
    /// The listener of the service.
    Service(ServiceId),
    /// The owner of this id.
    Connection(CommId),
}

impl CmMessage {
    /// The id that the sender of a REQ or REP has assigned to the connection.
    pub const fn introduced(&self) -> Option<CommId> {
        match self {
            CmMessage::Req(req) => Some(req.local_comm_id),
            CmMessage::Rep(rep) => Some(rep.local_comm_id),
            _ => None,
        }
    }

    /// The receiver of the message.
    pub const fn target(&self) -> MadTarget {
        MadTarget::Connection(match self {
            CmMessage::Req(m) => return MadTarget::Service(ServiceId(m.service_id)),
            CmMessage::SidrReq(m) => return MadTarget::Service(ServiceId(m.service_id)),
            CmMessage::Mra(m) => m.remote_comm_id,
            CmMessage::Rej(m) => m.remote_comm_id,
            CmMessage::Rep(m) => m.remote_comm_id,
            CmMessage::Rtu(m) => m.remote_comm_id,
            CmMessage::Dreq(m) => m.remote_comm_id,
            CmMessage::Drep(m) => m.remote_comm_id,
            CmMessage::SidrRep(m) => m.request_id,
            CmMessage::Lap(m) => m.remote_comm_id,
            CmMessage::Apr(m) => m.remote_comm_id,
        })
    }
}

/// The service that a REQ or SIDR_REQ of this host requests, without parsing the whole message; `None` for other messages.
pub fn offered_service(mad: &[u8; MAD_LEN]) -> Option<ServiceId> {
    const SERVICE_AT: usize = MadHeader::LEN + 8;
    let header = MadHeader::parse(mad).ok()?;
    let service = mad[SERVICE_AT..].first_chunk().map(|b| ServiceId(u64::from_be_bytes(*b)));
    service.filter(|_| matches!(header.attr_id, 0x10 | 0x17))
}

/// A message with the values of its MAD header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmMad {
    /// Transaction id: the same in a message and its answers.
    pub tid: u64,
    /// Vendor options of a REQ or REP; zero elsewhere.
    pub attr_mod: u32,
    /// The message.
    pub message: CmMessage,
}

impl CmMad {
    /// Reads a MAD; bytes behind its 256 are ignored.
    pub fn parse(bytes: &[u8]) -> Result<CmMad, BadMad> {
        let header = MadHeader::parse(bytes)?;
        if header.base_version != MadHeader::BASE_VERSION {
            return Err(BadMad::BaseVersion(header.base_version));
        }
        if header.mgmt_class != MGMT_CLASS {
            return Err(BadMad::Class(header.mgmt_class));
        }
        if header.class_version != CLASS_VERSION {
            return Err(BadMad::ClassVersion(header.class_version));
        }
        if header.method != MadHeader::METHOD_SEND {
            return Err(BadMad::Method(header.method));
        }
        let body = bytes[MadHeader::LEN..].first_chunk().ok_or(BadMad::TooShort { have: bytes.len() })?;
        let message = CmMessage::parse(header.attr_id, body).ok_or(BadMad::Attribute(header.attr_id))?;
        Ok(CmMad { tid: header.tid, attr_mod: header.attr_mod, message })
    }

    /// Encodes the MAD.
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            mgmt_class: MGMT_CLASS,
            class_version: CLASS_VERSION,
            method: MadHeader::METHOD_SEND,
            status: 0,
            class_specific: 0,
            tid: self.tid,
            attr_id: self.message.attr_id(),
            attr_mod: self.attr_mod,
        };
        let mut bytes = [0; MAD_LEN];
        bytes[..MadHeader::LEN].copy_from_slice(&header.to_bytes());
        bytes[MadHeader::LEN..].copy_from_slice(&self.message.body());
        bytes
    }
}
