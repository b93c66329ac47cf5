//! Management datagram: the 24 bytes in front of every message to QP1 (IBA 13.4.2).

use super::malformed::first_bytes;
use super::{Bth, Deth, Headers, Opcode, Operation, Service};
use crate::ids::{Psn, Qkey, Qpn};

/// Bytes of every management datagram, with its header.
pub const MAD_LEN: usize = 256;
/// Bytes behind the header.
pub const MAD_BODY_LEN: usize = MAD_LEN - MadHeader::LEN;
/// Queue key of QP1 (IBA 10.2.5): what every packet to it carries.
pub const GSI_QKEY: Qkey = Qkey(0x8001_0000);

const GSI_OPCODE: Opcode = Opcode::new(Service::Ud, Operation::SendOnly);

/// The headers of a management datagram from QP1 to QP1.
pub fn gsi_headers() -> Headers {
    let mut headers = Headers::new(Bth::new(GSI_OPCODE, Qpn::GSI, Psn::new(0)));
    headers.deth = Some(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI });
    headers
}

/// Why a packet to QP1 is not a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotGsi {
    /// It has another opcode.
    Unexpected(Opcode),
    /// It has another Q_Key.
    Qkey,
}

/// Checks the headers of a packet to QP1 (IBA 9.6.1, C10-122).
pub fn check_gsi(headers: &Headers) -> Result<(), NotGsi> {
    match headers.deth {
        _ if headers.bth.opcode != GSI_OPCODE => Err(NotGsi::Unexpected(headers.bth.opcode)),
        Some(deth) if deth.qkey == GSI_QKEY => Ok(()),
        _ => Err(NotGsi::Qkey),
    }
}

/// Header of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// Version of the header, always 1.
    pub base_version: u8,
    /// Management class.
    pub mgmt_class: u8,
    /// Class version.
    pub class_version: u8,
    /// Method; the highest bit marks a response.
    pub method: u8,
    /// Outcome, in responses.
    pub status: u16,
    /// Defined by the class.
    pub class_specific: u16,
    /// Transaction id: matches a response to its request.
    pub tid: u64,
    /// Which message.
    pub attr_id: u16,
    /// Further choice within the message.
    pub attr_mod: u32,
}

impl MadHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 24;
    /// The only version of the header.
    pub const BASE_VERSION: u8 = 1;
    /// Method of an unsolicited message.
    pub const METHOD_SEND: u8 = 3;

    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<MadHeader, BadMad> {
        let b: &[u8; MadHeader::LEN] =
            first_bytes(bytes).map_err(|_| BadMad::TooShort { have: bytes.len() })?;
        let half = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        Ok(MadHeader {
            base_version: b[0],
            mgmt_class: b[1],
            class_version: b[2],
            method: b[3],
            status: half(4),
            class_specific: half(6),
            tid: u64::from(word(8)) << 32 | u64::from(word(12)),
            attr_id: half(16),
            attr_mod: word(20),
        })
    }

    /// Encodes the header.
    pub fn to_bytes(&self) -> [u8; MadHeader::LEN] {
        let mut b = [0; MadHeader::LEN];
        b[..4].copy_from_slice(&[self.base_version, self.mgmt_class, self.class_version, self.method]);
        b[4..6].copy_from_slice(&self.status.to_be_bytes());
        b[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        b[8..16].copy_from_slice(&self.tid.to_be_bytes());
        b[16..18].copy_from_slice(&self.attr_id.to_be_bytes());
        b[20..].copy_from_slice(&self.attr_mod.to_be_bytes());
        b
    }
}

/// Why bytes are not a message of communication management. Such a datagram is counted and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum BadMad {
    /// Shorter than a management datagram.
    #[error("{have} bytes, a management datagram has {MAD_LEN}")]
    TooShort {
        /// Actual length in bytes.
        have: usize,
    },
    /// Unknown header version.
    #[error("management datagram of version {0}, only 1 exists")]
    BaseVersion(u8),
    /// Another management class.
    #[error("management class {0:#04x}, only 0x07 is answered here")]
    Class(u8),
    /// Another version of communication management.
    #[error("communication management of version {0}, only 2 is known")]
    ClassVersion(u8),
    /// Communication management only ever sends.
    #[error("method {0:#04x} in a message that can only be sent")]
    Method(u8),
    /// A message that does not exist.
    #[error("attribute {0:#06x} names no message")]
    Attribute(u16),
}
