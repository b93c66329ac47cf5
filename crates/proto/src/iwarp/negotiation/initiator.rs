//! The end that connects.

use super::super::wire::{Enhanced, FrameKind, MpaFrame, RtrKinds};
use super::proof::{Proven, RequestKey};
use super::{FrameBuffer, Negotiated, NegotiationError, Offer, Role, Rtr, lower};
use alloc::vec::Vec;

/// The responder's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The terms; `None` if the responder refused.
    pub accepted: Option<Negotiated>,
    /// The private data of its program.
    pub private_data: Vec<u8>,
}

/// The initiator: sends a request and waits for the reply.
#[derive(Debug)]
pub struct Initiator {
    offer: Offer,
    reply: FrameBuffer,
    /// The proof of the request, which the reply must answer.
    proven: Option<Proven>,
}

impl Initiator {
    /// Starts the negotiation. Returns the bytes of the request as well.
    pub fn new(offer: Offer, private_data: &[u8]) -> (Initiator, Vec<u8>) {
        Self::with_key(offer, private_data, None)
    }

    /// Starts the negotiation. With a key, the request proves it, and the reply must prove it too. The proof needs
    /// [`super::REQUEST_PROOF_LEN`] bytes of the private data.
    pub fn with_key(offer: Offer, private_data: &[u8], key: Option<&RequestKey>) -> (Initiator, Vec<u8>) {
        let enhanced = Enhanced {
            ird: offer.ird.into(),
            ord: offer.ord.into(),
            peer_to_peer: offer.rtr,
            rtr: RtrKinds { send: false, write: offer.rtr, read: offer.rtr },
        };
        let mut request = MpaFrame {
            kind: FrameKind::Request,
            revision: offer.revision,
            markers: false,
            crc: offer.crc,
            reject: false,
            is_ferroce: true,
            enhanced: (offer.revision == 2).then_some(enhanced),
            private_data: private_data.to_vec(),
        };
        let proven = key.map(|key| Proven::sign_request(&mut request, key));
        (Initiator { offer, reply: FrameBuffer::new(FrameKind::Reply), proven }, request.to_bytes())
    }

    /// Takes bytes of the stream. Returns the number of them that belong to the reply, and the reply once it is complete.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<Reply>), NegotiationError> {
        let (used, Some(mut received)) = self.reply.receive(bytes)? else { return Ok((bytes.len(), None)) };
        let proven = self.proven.as_ref().filter(|_| !received.frame.reject);
        let confirmation = proven.map(|proven| proven.check_reply(&mut received)).transpose()?;
        let frame = received.frame;
        let accepted =
            if frame.reject { None } else { Some(self.check(&frame)?.confirmed_by(confirmation)?) };
        Ok((used, Some(Reply { accepted, private_data: frame.private_data })))
    }

    fn check(&self, reply: &MpaFrame) -> Result<Negotiated, NegotiationError> {
        let offer = &self.offer;
        if reply.markers {
            return Err(NegotiationError::Markers);
        }
        if reply.revision != offer.revision {
            return Err(NegotiationError::OlderRevision(reply.revision));
        }
        let mut terms = Negotiated {
            role: Role::Initiator,
            crc: offer.crc || reply.crc,
            ird: offer.ird,
            ord: offer.ord,
            rtr: None,
            is_ferroce: reply.is_ferroce,
            confirmation: None,
        };
        let Some(words) = reply.enhanced else { return Ok(terms) };
        if words.ord != Enhanced::NOT_NEGOTIATED && words.ord > u16::from(offer.ird) {
            return Err(NegotiationError::Ird { ord: words.ord, ird: offer.ird });
        }
        terms.ord = lower(offer.ord, words.ird);
        if offer.rtr && words.peer_to_peer {
            terms.rtr = Some(match words.rtr {
                RtrKinds { write: true, .. } => Rtr::Write,
                RtrKinds { read: true, .. } => Rtr::Read,
                _ => return Err(NegotiationError::Rtr),
            });
        }
        Ok(terms)
    }
}
