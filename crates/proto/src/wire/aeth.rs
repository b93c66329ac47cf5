//! Acknowledge extended transport header: the outcome, and the progress of the responder (IBA 9.3).

use super::Malformed;
use super::malformed::first_bytes;

const MSN_MASK: u32 = 0x00ff_ffff;
const VALUE_MASK: u8 = 0x1f;
// Bits 7..5 of the syndrome (IBA 9.7.5.2); bit 7 is reserved, so only four of the eight codes are valid.
const ACK: u8 = 0;
const RNR_NAK: u8 = 1;
const NAK: u8 = 3;

/// Acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Positive, or the reason of the NAK.
    pub syndrome: Syndrome,
    /// Message sequence number: messages completed by the responder, 24 bits.
    pub msn: u32,
}

/// The syndrome of an AETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Done.
    Ack {
        /// Encoded end-to-end credit, 5 bits; 31 means that credits are not in use (IBA 9.7.7.2).
        credit: u8,
    },
    /// Receiver not ready: retry later.
    RnrNak {
        /// Encoded time to wait, 5 bits (IBA 9.7.5.2).
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
}

/// Why a request was refused (IBA 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing: retransmit from the expected PSN.
    PsnSequence = 0,
    /// The responder does not support the request, or it is invalid.
    InvalidRequest = 1,
    /// Memory protection refused it.
    RemoteAccess = 2,
    /// The responder failed for a reason of its own.
    RemoteOperational = 3,
    /// Reliable datagram only.
    InvalidRdRequest = 4,
}

impl Syndrome {
    /// Credit code of a responder without end-to-end flow control.
    pub const ACK_NO_CREDIT: Syndrome = Syndrome::Ack { credit: 31 };

    /// The syndrome of a byte.
    #[inline]
    pub const fn from_byte(byte: u8) -> Result<Syndrome, Malformed> {
        let value = byte & VALUE_MASK;
        Ok(match (byte >> 5, value) {
            (ACK, _) => Syndrome::Ack { credit: value },
            (RNR_NAK, _) => Syndrome::RnrNak { timer: value },
            (NAK, 0) => Syndrome::Nak(NakCode::PsnSequence),
            (NAK, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (NAK, 2) => Syndrome::Nak(NakCode::RemoteAccess),
            (NAK, 3) => Syndrome::Nak(NakCode::RemoteOperational),
            (NAK, 4) => Syndrome::Nak(NakCode::InvalidRdRequest),
            _ => return Err(Malformed::ReservedSyndrome(byte)),
        })
    }

    /// The byte on the wire. Only five bits of a credit or timer fit.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credit } => ACK << 5 | credit & VALUE_MASK,
            Syndrome::RnrNak { timer } => RNR_NAK << 5 | timer & VALUE_MASK,
            Syndrome::Nak(code) => NAK << 5 | code as u8,
        }
    }
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Aeth, Malformed> {
        let &[syndrome, m0, m1, m2] = first_bytes(bytes)?;
        Ok(Aeth { syndrome: Syndrome::from_byte(syndrome)?, msn: u32::from_be_bytes([0, m0, m1, m2]) })
    }

    /// Encodes the header. Only 24 bits of the MSN fit.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Aeth::LEN] {
        (u32::from(self.syndrome.to_byte()) << 24 | self.msn & MSN_MASK).to_be_bytes()
    }
}
