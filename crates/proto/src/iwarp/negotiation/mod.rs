//! MPA negotiation: one request, one reply, then FPDUs (RFC 5044, 7; RFC 6581).
//!
//! [`Initiator`] and [`Responder`] take bytes in any pieces and return how many of them belong to the frame. The rest
//! belongs to the FPDU phase; the caller passes it to the queue pair. Both ends limit how long they wait.
//!
//! | question | rule |
//! |---|---|
//! | CRC | used if either end requests it |
//! | markers | never; a request for them is refused, as siw does |
//! | IRD and ORD | each end's ORD is lowered to the other's IRD (revision 2); without negotiation each end keeps its own |
//! | RTR | the initiator offers an empty WRITE or READ, the responder selects WRITE if it can |
//! | extensions | RFC 7306, if both frames carry ferroce's mark |
//! | key | with one, both frames and the RTR message prove it (`proof`) |

mod initiator;
mod proof;
mod responder;

pub use initiator::{Initiator, Reply};
pub use proof::{Confirmation, REPLY_PROOF_LEN, REQUEST_PROOF_LEN, RequestKey, StreamAddrs};
pub use responder::{Request, Responder};

use super::wire::{BadFrame, Enhanced, FrameKind, MAX_PRIVATE_DATA, MpaFrame, TerminateCode};
use crate::cm::{MAX_STORED, NOT_PROVEN, WINDOW_S};
use alloc::vec::Vec;

/// How long the initiator waits for the reply; siw's value.
pub const REPLY_TIMEOUT_NS: u64 = 10_000_000_000;
/// How long the responder waits for the request; siw's value.
pub const REQUEST_TIMEOUT_NS: u64 = 5_000_000_000;

/// The terms that one end offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Highest MPA revision to use: 1 or 2.
    pub revision: u8,
    /// Whether to use CRCs even if the peer does not request them.
    pub crc: bool,
    /// READs and atomics that this end answers at a time.
    pub ird: u8,
    /// READs and atomics that this end has outstanding at most.
    pub ord: u8,
    /// Initiator: whether to begin with an RTR message, so that the responder's program may send first.
    pub rtr: bool,
}

impl Default for Offer {
    fn default() -> Self {
        Offer { revision: 2, crc: false, ird: 1, ord: 1, rtr: true }
    }
}

/// The message that the initiator sends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// An empty WRITE.
    Write,
    /// An empty READ.
    Read,
}

/// Which end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It connected, and sends the first FPDU.
    Initiator,
    /// It listened. It must not send before it has received an FPDU.
    Responder,
}

/// The terms of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Which end this is.
    pub role: Role,
    /// Whether FPDUs have a CRC.
    pub crc: bool,
    /// READs and atomics that this end answers at a time.
    pub ird: u8,
    /// READs and atomics that this end has outstanding at most.
    pub ord: u8,
    /// The RTR message, sent by the initiator.
    pub rtr: Option<Rtr>,
    /// Whether the peer is ferroce, too: immediate data, atomics and long FPDUs are possible.
    pub is_ferroce: bool,
    /// With a key: STag and offset of the RTR message. The responder receives no other FPDU before it.
    pub confirmation: Option<Confirmation>,
}

impl Negotiated {
    /// Adds STag and offset of the RTR message. Only an empty WRITE has them.
    fn confirmed_by(self, confirmation: Option<Confirmation>) -> Result<Negotiated, NegotiationError> {
        match (confirmation, self.rtr) {
            (Some(_), None | Some(Rtr::Read)) => Err(NegotiationError::Rtr),
            _ => Ok(Negotiated { confirmation, ..self }),
        }
    }

    /// Whether the peer may miss the RTR message that this end sends. siw reads the first FPDU only when bytes arrive after it
    /// has sent its reply. An empty WRITE may be repeated.
    pub fn may_miss_rtr(&self) -> bool {
        self.role == Role::Initiator && self.rtr == Some(Rtr::Write) && !self.is_ferroce
    }
}

/// Why a negotiation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NegotiationError {
    /// The bytes are not a frame.
    #[error(transparent)]
    Frame(#[from] BadFrame),
    /// The peer requests markers.
    #[error("the peer asks for MPA markers, which ferroce does not send")]
    Markers,
    /// The peer supports only an older revision.
    #[error("the peer answered with MPA revision {0}: connect again with that revision")]
    OlderRevision(u8),
    /// The peer announces more outstanding READs than this end offers.
    #[error("the peer wants {ord} READs at a time, this end answers {ird}")]
    Ird {
        /// The peer's ORD.
        ord: u16,
        /// The IRD of this end.
        ird: u8,
    },
    /// No RTR message that both ends support.
    #[error("the two ends support no common RTR message")]
    Rtr,
    /// The peer does not prove the key.
    #[error("the peer does not prove the key of this end: it has no key (FERROCE_CM_KEY) or another one")]
    Unproven,
    /// The proof was used before, or its time differs too much from the current time.
    #[error(
        "the proof of the key was used before, or the clocks of the two hosts differ by more than {WINDOW_S} s"
    )]
    Replayed,
    /// Too many requests with a proof.
    #[error("more than {MAX_STORED} requests with a proof within {} s: try again later", 2 * WINDOW_S)]
    TooManyRequests,
}

impl NegotiationError {
    /// The private data of a reply that refuses a request for this reason, for the peer's program.
    pub const fn reject_text(&self) -> &'static [u8] {
        match self {
            NegotiationError::Unproven => NOT_PROVEN,
            NegotiationError::Replayed => {
                b"ferroce: the proof of the key was used before, or the clocks differ too much"
            }
            NegotiationError::TooManyRequests => b"ferroce: too many requests with a proof: try again later",
            _ => b"",
        }
    }

    /// The Terminate that the initiator sends for a reply it cannot accept, if any.
    pub const fn code(&self) -> Option<TerminateCode> {
        match self {
            NegotiationError::Ird { .. } => Some(TerminateCode::LLP_IRD),
            NegotiationError::Rtr => Some(TerminateCode::LLP_RTR),
            _ => None,
        }
    }
}

/// The smaller of this end's depth and the peer's; that of this end if the peer does not negotiate.
fn lower(own: u8, peer: u16) -> u8 {
    if peer == Enhanced::NOT_NEGOTIATED { own } else { own.min(u8::try_from(peer).unwrap_or(u8::MAX)) }
}

/// A frame, and its bytes as they arrived. A proof covers these.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReceivedFrame {
    frame: MpaFrame,
    bytes: Vec<u8>,
}

/// Collects the bytes of one frame.
#[derive(Debug)]
struct FrameBuffer {
    kind: FrameKind,
    bytes: Vec<u8>,
}

impl FrameBuffer {
    fn new(kind: FrameKind) -> FrameBuffer {
        FrameBuffer { kind, bytes: Vec::new() }
    }

    /// Returns how many of the bytes belong to the frame, and the frame once it is complete.
    fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<ReceivedFrame>), BadFrame> {
        let before = self.bytes.len();
        let most = MpaFrame::HEADER_LEN + MAX_PRIVATE_DATA - before;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(most)]);
        match MpaFrame::parse(self.kind, &self.bytes)? {
            // The frame was incomplete without these bytes, so it ends in them.
            Some((frame, len)) => {
                let mut bytes = core::mem::take(&mut self.bytes);
                bytes.truncate(len);
                Ok((len - before, Some(ReceivedFrame { frame, bytes })))
            }
            None => Ok((bytes.len(), None)),
        }
    }
}
