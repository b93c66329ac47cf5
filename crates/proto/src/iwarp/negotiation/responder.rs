//! The end that listens.

use super::super::wire::{Enhanced, FrameKind, MpaFrame, RtrKinds};
use super::proof::{Confirmation, Proven, REPLY_PROOF_LEN, StreamAddrs};
use super::{
    FrameBuffer, Negotiated, NegotiationError, Offer, REQUEST_TIMEOUT_NS, ReceivedFrame, Role, Rtr, lower,
};
use crate::Time;
use crate::cm::{Replays, Secret};
use alloc::vec::Vec;

/// The responder: waits for a request, which its program then accepts or rejects.
#[derive(Debug)]
pub struct Responder {
    request: FrameBuffer,
    deadline: Time,
}

impl Responder {
    /// Starts to wait for the request of a TCP connection that was just accepted.
    pub fn new(now: Time) -> Responder {
        Responder { request: FrameBuffer::new(FrameKind::Request), deadline: now + REQUEST_TIMEOUT_NS }
    }

    /// When the request must have arrived.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Takes bytes of the stream. Returns the number of them that belong to the request, and the request once it is complete.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<Request>), NegotiationError> {
        let (used, received) = self.request.receive(bytes)?;
        Ok((used, received.map(|received| Request { received, proven: None })))
    }
}

/// A request to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    received: ReceivedFrame,
    /// The proof of the request, which the reply answers, and the nonce of the reply.
    proven: Option<(Proven, u128)>,
}

impl Request {
    /// The private data of the initiator's program.
    pub fn private_data(&self) -> &[u8] {
        &self.received.frame.private_data
    }

    /// Checks that the initiator holds the key. Then the reply proves it, too, and contains `nonce`, a random number. The initiator's RTR message must
    /// answer that.
    pub fn check_key(
        &mut self,
        secret: &Secret,
        addrs: StreamAddrs,
        (unix_s, nonce): (u64, u128),
        replays: &mut Replays,
    ) -> Result<(), NegotiationError> {
        let proven = Proven::check_request(&mut self.received, secret, addrs, unix_s, replays)?;
        self.proven = Some((proven, nonce));
        Ok(())
    }

    /// Bytes of private data that the proof in an accepting reply needs.
    pub fn proof_len(&self) -> usize {
        if self.proven.is_some() { REPLY_PROOF_LEN } else { 0 }
    }

    /// IRD and ORD of the initiator; `None` if it does not negotiate that.
    pub fn depths(&self) -> (Option<u16>, Option<u16>) {
        let negotiated = |depth: u16| (depth != Enhanced::NOT_NEGOTIATED).then_some(depth);
        self.received
            .frame
            .enhanced
            .map_or((None, None), |words| (negotiated(words.ird), negotiated(words.ord)))
    }

    /// Returns why the request must be refused before the program decides, if so.
    pub fn unacceptable(&self) -> Option<NegotiationError> {
        if self.received.frame.markers {
            return Some(NegotiationError::Markers);
        }
        let requests_rtr = self.received.frame.enhanced.filter(|words| words.peer_to_peer);
        requests_rtr.filter(|words| !words.rtr.write && !words.rtr.read).map(|_| NegotiationError::Rtr)
    }

    /// The reply that accepts, and the terms. A request that is [unacceptable](Self::unacceptable) returns the error.
    pub fn accept(
        &self,
        offer: &Offer,
        private_data: &[u8],
    ) -> Result<(Negotiated, Vec<u8>), NegotiationError> {
        if let Some(error) = self.unacceptable() {
            return Err(error);
        }
        let mut terms = Negotiated {
            role: Role::Responder,
            crc: offer.crc || self.received.frame.crc,
            ird: offer.ird,
            ord: offer.ord,
            rtr: None,
            is_ferroce: self.received.frame.is_ferroce,
            confirmation: None,
        };
        let revision = self.received.frame.revision.min(offer.revision);
        let enhanced = self.received.frame.enhanced.filter(|_| revision == 2).map(|words| {
            terms.ord = lower(offer.ord, words.ird);
            if words.peer_to_peer {
                terms.rtr = Some(if words.rtr.write { Rtr::Write } else { Rtr::Read });
            }
            Enhanced {
                ird: terms.ird.into(),
                ord: terms.ord.into(),
                peer_to_peer: words.peer_to_peer,
                rtr: RtrKinds {
                    send: false,
                    write: terms.rtr == Some(Rtr::Write),
                    read: terms.rtr == Some(Rtr::Read),
                },
            }
        });
        let reply = Reply { revision, crc: terms.crc, enhanced, reject: false };
        let (reply, confirmation) = self.reply(reply, private_data);
        Ok((terms.confirmed_by(confirmation)?, reply))
    }

    /// The reply that refuses.
    pub fn reject(&self, private_data: &[u8]) -> Vec<u8> {
        let MpaFrame { revision, crc, enhanced, .. } = self.received.frame;
        let enhanced = enhanced.map(|_| Enhanced::default());
        self.reply(Reply { revision, crc, enhanced, reject: true }, private_data).0
    }

    fn reply(&self, reply: Reply, private_data: &[u8]) -> (Vec<u8>, Option<Confirmation>) {
        let mut frame = MpaFrame {
            kind: FrameKind::Reply,
            revision: reply.revision,
            markers: false,
            crc: reply.crc,
            reject: reply.reject,
            is_ferroce: self.received.frame.is_ferroce,
            enhanced: reply.enhanced,
            private_data: private_data.to_vec(),
        };
        let proven = self.proven.as_ref().filter(|_| !frame.reject);
        let confirmation = proven.map(|(proven, nonce)| proven.sign_reply(&mut frame, *nonce));
        (frame.to_bytes(), confirmation)
    }
}

/// What differs between replies.
struct Reply {
    revision: u8,
    crc: bool,
    enhanced: Option<Enhanced>,
    reject: bool,
}
