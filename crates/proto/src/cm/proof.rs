//! Proof that a peer holds the shared key, carried at the end of the private data. A ferroce option; off without a key.
//!
//! ```text
//!   REQ, SIDR_REQ   ... private data | time, 4 bytes | MAC, 16 bytes      MAC over the message, nothing before it
//!   REP             ... private data                 | MAC, 16 bytes      ... and the MAC of the REQ
//!   RTU, DREQ       ... private data                 | MAC, 16 bytes      ... and the MAC of the REP
//!   SIDR_REP        ... private data                 | MAC, 16 bytes      ... and the MAC of the SIDR_REQ
//! ```
//!
//! The MAC is HMAC-SHA256, cut to 16 bytes. It covers both addresses, the MAC of the message that this one answers, and the
//! management datagram up to the MAC. The datagram contains transaction id, communication ids, queue pair, first sequence
//! number, service, addresses and port, and the application's private data. The random ids make each REQ unique, so its MAC is stored while
//! its time is acceptable, to refuse a replay. A REP answers one REQ, and an RTU one REP, whose random ids are the
//! passive side's challenge. REJ, MRA and DREP carry no proof: they can only end a connection that is not established
//! yet or has already ended.

use super::{Cm, CommId, ListenerId, MadAddressing};
use crate::ids::Gid;
use crate::time::Time;
use crate::wire::MAD_LEN;
use crate::wire::cm::{CmMad, CmMessage};
use alloc::collections::{BTreeSet, VecDeque};
use core::fmt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of the proof in a reply, and in a REQ.
pub(crate) const MAC_LEN: usize = 16;
pub(super) const REQ_PROOF_LEN: usize = 4 + MAC_LEN;
const MAC_AT: usize = MAD_LEN - MAC_LEN;
const TIME_AT: usize = MAC_AT - 4;

/// Maximum clock difference of two hosts, including the time that a REQ is retransmitted (69 seconds).
pub(crate) const WINDOW_S: u64 = 75;
/// Maximum number of stored proofs; only peers with the key can fill it. Further REQs are dropped.
pub(crate) const MAX_STORED: usize = 1 << 20;

const PURPOSE: &[u8] = b"ferroce connection set-up 1";

/// A key shared by both ends.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Minimum key length in bytes.
    pub const MIN_LEN: usize = 16;

    /// Creates a key from unpredictable bytes; `None` if there are fewer than [`Self::MIN_LEN`].
    pub fn new(key: &[u8]) -> Option<Secret> {
        if key.len() < Self::MIN_LEN {
            return None;
        }
        // The purpose is the key of this HMAC, so the same file gives another key for another use.
        let mut mac = Hmac::<Sha256>::new_from_slice(PURPOSE).ok()?;
        mac.update(key);
        Some(Secret(mac.finalize().into_bytes().into()))
    }

    fn hmac(&self, from: Gid, to: Gid, binding: &Binding, message: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(&from.0);
        mac.update(&to.0);
        mac.update(&binding.0);
        mac.update(message);
        Some(mac)
    }

    /// The MAC of a message that answers the one with `binding`.
    pub(crate) fn mac(&self, from: Gid, to: Gid, binding: &Binding, message: &[u8]) -> Option<Binding> {
        let mac = self.hmac(from, to, binding, message)?.finalize().into_bytes();
        mac.first_chunk().copied().map(Binding)
    }

    /// Whether `mac` is the MAC of this message.
    pub(crate) fn matches(
        &self,
        from: Gid,
        to: Gid,
        binding: &Binding,
        message: &[u8],
        mac: &[u8; MAC_LEN],
    ) -> bool {
        self.hmac(from, to, binding, message).is_some_and(|hmac| hmac.verify_truncated_left(mac).is_ok())
    }
}

/// Never shows the key.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// MAC of the message that the next one must answer; zeros for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Binding(pub(crate) [u8; MAC_LEN]);

impl Binding {
    /// The MAC at the end of a message.
    pub(crate) fn of(message: &[u8]) -> Binding {
        Binding(message.last_chunk().copied().unwrap_or_default())
    }

    /// A prefix that identifies it.
    fn short(self) -> u64 {
        u64::from_be_bytes(self.0.first_chunk().copied().unwrap_or_default())
    }
}

/// Requests with a proof that were accepted within their time window.
#[derive(Debug, Default)]
pub struct Replays {
    seen: BTreeSet<u64>,
    order: VecDeque<(u64, u64)>,
}

/// Whether a request with a valid MAC may be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayCheck {
    Fresh,
    /// It was accepted before, or its time differs too much from the current time.
    Stale,
    /// The list of accepted ones is full.
    ListFull,
}

impl Replays {
    /// Creates an empty list.
    pub const fn new() -> Replays {
        Replays { seen: BTreeSet::new(), order: VecDeque::new() }
    }

    /// Checks a request that was sent at the low 32 bits of this time.
    pub(crate) fn check(&mut self, mac: Binding, sent_s: u32, now_s: u64) -> ReplayCheck {
        // Compare differences, so that the 32-bit time may wrap in 2106.
        let apart_s = i64::from((now_s as u32).wrapping_sub(sent_s) as i32).unsigned_abs();
        self.forget_old(now_s);
        if apart_s > WINDOW_S || self.seen.contains(&mac.short()) {
            ReplayCheck::Stale
        } else if self.seen.len() < MAX_STORED {
            ReplayCheck::Fresh
        } else {
            ReplayCheck::ListFull
        }
    }

    fn forget_old(&mut self, now_s: u64) {
        // The sender's clock may be ahead by the window, and the REQ is acceptable for another window after that.
        while self.order.front().is_some_and(|(at, _)| at + 2 * WINDOW_S < now_s) {
            if let Some((_, mac)) = self.order.pop_front() {
                self.seen.remove(&mac);
            }
        }
    }

    /// Stores a request that was accepted.
    pub(crate) fn insert(&mut self, mac: Binding, now_s: u64) {
        self.forget_old(now_s);
        if self.seen.insert(mac.short()) {
            self.order.push_back((now_s, mac.short()));
        }
    }
}

/// The result of checking a REQ.
pub(super) enum ReqProof {
    /// No key is required.
    Open,
    /// The key is proven, with this MAC.
    Proven(Secret, Binding),
    /// The proof is missing, wrong, too old or replayed.
    Unproven,
    /// The proof is valid, but the replay list is full.
    ListFull,
}

impl Cm {
    /// Requires this key for every connection, except where a listener or a REQ has its own.
    pub fn set_secret(&mut self, secret: Option<Secret>) {
        self.secret = secret;
    }

    /// Requires this key for REQs to this listener.
    pub fn set_listener_secret(&mut self, listener: ListenerId, secret: Secret) {
        self.listener_secrets.insert(listener, secret);
    }

    /// Whether any key is in use, so that [`Self::set_unix_time`] matters.
    pub fn has_secrets(&self) -> bool {
        self.uses_secrets || self.secret.is_some() || !self.listener_secrets.is_empty()
    }

    /// Sets the time of day, which [`Time`] does not contain.
    pub fn set_unix_time(&mut self, unix_ns: u64, now: Time) {
        self.at(now);
        self.unix_offset_ns = unix_ns.wrapping_sub(now.0);
    }

    /// Whether connection `id` has a key. Then the passive side must block packets to its queue pair until
    /// [`super::Event::Established`].
    pub fn is_secured(&self, id: CommId) -> bool {
        self.connections.get(&id).is_some_and(|c| c.secret.is_some())
    }

    fn unix_s(&self) -> u64 {
        self.unix_offset_ns.wrapping_add(self.clock.0) / 1_000_000_000
    }

    /// Writes the proof of a message that is about to be sent.
    pub(super) fn add_proof(&mut self, id: CommId, message: &CmMessage, mad: &mut [u8; MAD_LEN]) {
        let now_s = self.unix_s();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(secret) = &connection.secret else { return };
        let binding = match message {
            CmMessage::Req(_) | CmMessage::SidrReq(_) => {
                mad[TIME_AT..MAC_AT].copy_from_slice(&(now_s as u32).to_be_bytes());
                Binding::default()
            }
            CmMessage::Rep(_) | CmMessage::Rtu(_) | CmMessage::Dreq(_) | CmMessage::SidrRep(_) => {
                connection.binding
            }
            _ => return,
        };
        let Some(mac) = secret.mac(connection.path.sgid, connection.path.dgid, &binding, &mad[..MAC_AT])
        else {
            return;
        };
        mad[MAC_AT..].copy_from_slice(&mac.0);
        if !matches!(message, CmMessage::Rtu(_) | CmMessage::Dreq(_) | CmMessage::SidrRep(_)) {
            connection.binding = Binding::of(mad);
        }
    }

    /// Whether a message of connection `id` proves the key or needs no proof. A proven REP becomes the predecessor of
    /// the next message.
    pub(super) fn is_proven(&mut self, id: CommId, inbound: &MadAddressing, mad: &CmMad) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let Some(secret) = &connection.secret else { return true };
        let bytes = mad.to_bytes();
        let proven = matches(secret, inbound, &connection.binding, &bytes);
        if !proven {
            self.counters.unproven += 1;
        } else if matches!(mad.message, CmMessage::Rep(_)) {
            connection.binding = Binding::of(&bytes);
        }
        proven
    }

    /// Checks the proof of a REQ to `listener`.
    pub(super) fn check_req_proof(
        &mut self,
        listener: Option<ListenerId>,
        inbound: &MadAddressing,
        mad: &CmMad,
    ) -> ReqProof {
        let own = listener.and_then(|id| self.listener_secrets.get(&id));
        let Some(secret) = own.or(self.secret.as_ref()).cloned() else { return ReqProof::Open };
        let (bytes, now_s) = (mad.to_bytes(), self.unix_s());
        if !matches(&secret, inbound, &Binding::default(), &bytes) {
            self.counters.unproven += 1;
            return ReqProof::Unproven;
        }
        let sent_s = bytes[TIME_AT..MAC_AT].try_into().map_or(0, u32::from_be_bytes);
        let mac = Binding::of(&bytes);
        match self.replays.check(mac, sent_s, now_s) {
            ReplayCheck::Fresh => ReqProof::Proven(secret, mac),
            ReplayCheck::ListFull => ReqProof::ListFull,
            ReplayCheck::Stale => {
                self.counters.replayed += 1;
                ReqProof::Unproven
            }
        }
    }

    /// Records an accepted REQ to refuse its replay.
    pub(super) fn record_req_proof(&mut self, mac: Binding) {
        let now_s = self.unix_s();
        self.replays.insert(mac, now_s);
    }
}

fn matches(secret: &Secret, inbound: &MadAddressing, binding: &Binding, bytes: &[u8; MAD_LEN]) -> bool {
    let (message, mac) = (&bytes[..MAC_AT], Binding::of(bytes));
    secret.matches(inbound.sgid, inbound.dgid, binding, message, &mac.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_long_enough_and_never_shown() {
        assert_eq!(Secret::new(&[7; Secret::MIN_LEN - 1]), None);
        let secret = Secret::new(&[7; Secret::MIN_LEN]).unwrap();
        assert_ne!(Some(&secret), Secret::new(&[8; Secret::MIN_LEN]).as_ref());
        assert_eq!(alloc::format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn proofs_are_stored_while_they_are_valid() {
        let mut replays = Replays::default();
        let mac = |n: u8| Binding([n; MAC_LEN]);
        replays.insert(mac(1), 100);
        replays.insert(mac(1), 101);
        replays.insert(mac(2), 100 + WINDOW_S);
        replays.forget_old(100 + 2 * WINDOW_S);
        assert!(replays.seen.contains(&mac(1).short()));
        replays.forget_old(101 + 2 * WINDOW_S);
        assert!(!replays.seen.contains(&mac(1).short()) && replays.seen.contains(&mac(2).short()));
        assert_eq!((replays.seen.len(), replays.order.len()), (1, 1));
    }

    #[test]
    fn a_full_list_is_no_replay() {
        let (fresh, old) = (Binding([0xff; MAC_LEN]), Binding([0; MAC_LEN]));
        let mut replays = Replays { seen: (0..MAX_STORED as u64).collect(), order: VecDeque::new() };
        assert_eq!(replays.check(fresh, 100, 100), ReplayCheck::ListFull);
        assert_eq!(replays.check(old, 100, 100), ReplayCheck::Stale);
    }
}
