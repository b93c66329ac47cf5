//! Proof that the peer holds the shared key, at the end of the private data. A ferroce option, as in the [communication manager](crate::cm);
//! off without a key.
//!
//! ```text
//!   request   ... private data | nonce, 16 bytes | time, 4 bytes | MAC, 16 bytes   MAC over label, addresses, ports and the frame
//!   reply     ... private data | nonce, 16 bytes                 | MAC, 16 bytes   ... and the MAC of the request
//!   RTR       an empty WRITE, whose STag and offset are a MAC of 12 bytes            MAC over label, addresses, ports and the MAC of the reply
//! ```
//!
//! The nonce makes each request unique. Its MAC is stored while its time is acceptable, to refuse a replay. The nonce of the reply is the
//! responder's challenge. Only the RTR message of an initiator with the key answers it, and the responder receives nothing else before. So a
//! replayed request makes no connection, even if its MAC is not stored. A reply that refuses has no proof: it ends a connection that does not
//! exist yet.

use super::super::wire::MpaFrame;
use super::{NegotiationError, ReceivedFrame};
use crate::cm::{Binding, MAC_LEN, ReplayCheck, Replays, Secret};
use crate::ids::{Gid, RKey};
use alloc::vec::Vec;
use core::net::SocketAddr;

/// Prefix of the bytes that a MAC covers. Messages of RoCE's connection manager use the same key, and with it their MACs differ from those of frames.
const LABEL: &[u8] = b"ferroce MPA 1";
const NONCE_LEN: usize = 16;
const TIME_LEN: usize = 4;
/// Bytes of the proof in a request.
pub const REQUEST_PROOF_LEN: usize = NONCE_LEN + TIME_LEN + MAC_LEN;
/// Bytes of the proof in a reply.
pub const REPLY_PROOF_LEN: usize = NONCE_LEN + MAC_LEN;

/// The addresses of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamAddrs {
    /// Of the initiator.
    pub initiator: SocketAddr,
    /// Of the responder.
    pub responder: SocketAddr,
}

/// Data for the request of an initiator with a key.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// The key.
    pub secret: Secret,
    /// The connection.
    pub addrs: StreamAddrs,
    /// A random number.
    pub nonce: u128,
    /// The time of day in seconds.
    pub unix_s: u64,
}

/// STag and offset of the RTR message that proves the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmation {
    /// The STag.
    pub stag: RKey,
    /// The tagged offset.
    pub to: u64,
}

/// The proof of a request, which the reply must answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proven {
    secret: Secret,
    addrs: StreamAddrs,
    binding: Binding,
}

/// Which end sent a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Initiator,
    Responder,
}

impl StreamAddrs {
    /// Sender, receiver and the bytes that the MAC covers: the label, both ports, and the frame without its MAC.
    fn covered(&self, sender: Sender, frame: &[u8]) -> (Gid, Gid, Vec<u8>) {
        let (from, to) = match sender {
            Sender::Initiator => (self.initiator, self.responder),
            Sender::Responder => (self.responder, self.initiator),
        };
        let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()];
        let frame = &frame[..frame.len().saturating_sub(MAC_LEN)];
        (Gid::from_ip(from.ip()), Gid::from_ip(to.ip()), [LABEL, ports.as_flattened(), frame].concat())
    }
}

/// Writes the MAC behind the private data. Returns it.
fn sign(
    frame: &mut MpaFrame,
    (secret, addrs, sender): (&Secret, &StreamAddrs, Sender),
    binding: &Binding,
) -> Binding {
    let len = frame.private_data.len();
    frame.private_data.extend_from_slice(&[0; MAC_LEN]);
    let (from, to, covered) = addrs.covered(sender, &frame.to_bytes());
    let mac = secret.mac(from, to, binding, &covered).unwrap_or_default();
    frame.private_data[len..].copy_from_slice(&mac.0);
    mac
}

/// Checks the MAC at the end of a frame, over the bytes that arrived. Returns it if it is right.
fn verify(
    received: &ReceivedFrame,
    (secret, addrs, sender): (&Secret, &StreamAddrs, Sender),
    binding: &Binding,
) -> Option<Binding> {
    let mac = Binding(*received.frame.private_data.last_chunk()?);
    let (from, to, covered) = addrs.covered(sender, &received.bytes);
    secret.matches(from, to, binding, &covered, &mac.0).then_some(mac)
}

impl Proven {
    /// Adds the proof to a request.
    pub(super) fn sign_request(frame: &mut MpaFrame, key: &RequestKey) -> Proven {
        frame.private_data.extend_from_slice(&key.nonce.to_be_bytes());
        frame.private_data.extend_from_slice(&(key.unix_s as u32).to_be_bytes());
        let RequestKey { secret, addrs, .. } = key.clone();
        let binding = sign(frame, (&secret, &addrs, Sender::Initiator), &Binding::default());
        Proven { secret, addrs, binding }
    }

    /// Checks the proof of a request and removes it from the private data.
    pub(super) fn check_request(
        received: &mut ReceivedFrame,
        secret: &Secret,
        addrs: StreamAddrs,
        unix_s: u64,
        replays: &mut Replays,
    ) -> Result<Proven, NegotiationError> {
        let len = received.frame.private_data.len().checked_sub(REQUEST_PROOF_LEN);
        let len = len.ok_or(NegotiationError::Unproven)?;
        let verified = verify(received, (secret, &addrs, Sender::Initiator), &Binding::default());
        let binding = verified.ok_or(NegotiationError::Unproven)?;
        let private_data = &mut received.frame.private_data;
        let time = private_data.get(len + NONCE_LEN..).and_then(<[u8]>::first_chunk);
        match replays.check(binding, time.copied().map_or(0, u32::from_be_bytes), unix_s) {
            ReplayCheck::Fresh => replays.insert(binding, unix_s),
            ReplayCheck::Stale => return Err(NegotiationError::Replayed),
            ReplayCheck::ListFull => return Err(NegotiationError::TooManyRequests),
        }
        private_data.truncate(len);
        Ok(Proven { secret: secret.clone(), addrs, binding })
    }

    /// Adds the proof to the reply, with the responder's nonce. Returns STag and offset of the RTR message.
    pub(super) fn sign_reply(&self, frame: &mut MpaFrame, nonce: u128) -> Confirmation {
        frame.private_data.extend_from_slice(&nonce.to_be_bytes());
        let mac = sign(frame, (&self.secret, &self.addrs, Sender::Responder), &self.binding);
        self.confirmation(&mac)
    }

    /// Checks the proof of the reply and removes it from the private data. Returns STag and offset of the RTR message.
    pub(super) fn check_reply(&self, received: &mut ReceivedFrame) -> Result<Confirmation, NegotiationError> {
        let verified = verify(received, (&self.secret, &self.addrs, Sender::Responder), &self.binding);
        let mac = verified.ok_or(NegotiationError::Unproven)?;
        let private_data = &mut received.frame.private_data;
        let len = private_data.len().checked_sub(REPLY_PROOF_LEN).ok_or(NegotiationError::Unproven)?;
        private_data.truncate(len);
        Ok(self.confirmation(&mac))
    }

    /// The answer to a reply with this MAC.
    fn confirmation(&self, reply: &Binding) -> Confirmation {
        let (from, to, covered) = self.addrs.covered(Sender::Initiator, &[]);
        let Binding(mac) = self.secret.mac(from, to, reply, &covered).unwrap_or_default();
        let mac = u128::from_be_bytes(mac);
        Confirmation { stag: RKey((mac >> 96) as u32), to: (mac >> 32) as u64 }
    }
}
