//! Counters of the communication manager.

use super::RejectReason;
use crate::wire::{BadMad, MAD_LEN};
use alloc::vec::Vec;

/// Number of message kinds.
const KINDS: usize = 11;
/// The first of them in the MAD header; the others follow.
const FIRST_KIND: u16 = 0x10;

/// Counts per kind of message, in the order of their numbers: REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP,
/// APR.
pub type ByKind = [u64; KINDS];

/// Reject reasons with their own counter; the last counter is for all others.
const REASONS: [RejectReason; 9] = [
    RejectReason::TIMEOUT,
    RejectReason::UNSUPPORTED,
    RejectReason::INVALID_COMM_ID,
    RejectReason::INVALID_SERVICE_ID,
    RejectReason::INVALID_TRANSPORT,
    RejectReason::STALE_CONNECTION,
    RejectReason::INVALID_MTU,
    RejectReason::CONSUMER,
    RejectReason::DUPLICATE_COMM_ID,
];

/// Counts per reason of a refusal.
pub type ByReason = [u64; REASONS.len() + 1];

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CmCounters {
    /// Messages received and understood.
    pub received: u64,
    /// The same by kind.
    pub received_by_kind: ByKind,
    /// Messages sent, repeats included.
    pub sent: u64,
    /// The same by kind.
    pub sent_by_kind: ByKind,
    /// Retransmissions, after a timeout or a duplicate.
    pub repeated: u64,
    /// The same by kind.
    pub repeated_by_kind: ByKind,
    /// Malformed messages.
    pub malformed: u64,
    /// Messages of other management classes; not counted as malformed.
    pub foreign: u64,
    /// Messages for unknown connections.
    pub strays: u64,
    /// Duplicate messages.
    pub duplicates: u64,
    /// Messages from another address than the connection's.
    pub wrong_address: u64,
    /// Messages that are invalid in the connection's state.
    pub unexpected: u64,
    /// REQs for services without a listener.
    pub no_listener: u64,
    /// REQs dropped because the backlog of the listener was full.
    pub backlog_full: u64,
    /// REQs dropped because of the limits on half-open or total connections, or on stored proofs.
    pub overload: u64,
    /// REQs from queue pairs that belonged to a stale connection.
    pub stale: u64,
    /// Rejects received.
    pub rejected: u64,
    /// The same by reason.
    pub rejected_by_reason: ByReason,
    /// Rejects sent.
    pub refused: u64,
    /// The same by reason; SIDR refusals have none.
    pub refused_by_reason: ByReason,
    /// Connections and SIDR requests that timed out.
    pub timed_out: u64,
    /// Connections that were established.
    pub established: u64,
    /// Connections that ended because the peer's process had died.
    pub peer_died: u64,
    /// Messages that were queued before they were sent.
    pub paced: u64,
    /// Messages without a valid proof.
    pub unproven: u64,
    /// REQs with a replayed or expired proof.
    pub replayed: u64,
}

impl CmCounters {
    pub(super) fn on_sent(&mut self, mad: &[u8; MAD_LEN]) {
        self.sent += 1;
        bump(&mut self.sent_by_kind, kind_of(mad));
    }

    pub(super) fn on_repeated(&mut self, mad: &[u8; MAD_LEN]) {
        self.repeated += 1;
        bump(&mut self.repeated_by_kind, kind_of(mad));
    }

    pub(super) fn on_received(&mut self, attr_id: u16) {
        self.received += 1;
        bump(&mut self.received_by_kind, attr_id);
    }

    pub(super) fn on_rejected(&mut self, reason: RejectReason) {
        self.rejected += 1;
        self.rejected_by_reason[index_of(reason)] += 1;
    }

    pub(super) fn on_refused(&mut self, reason: RejectReason) {
        self.refused += 1;
        self.refused_by_reason[index_of(reason)] += 1;
    }

    pub(super) fn on_bad(&mut self, bad: BadMad) {
        match bad {
            BadMad::Class(_) => self.foreign += 1,
            _ => self.malformed += 1,
        }
    }

    /// All counters with their public names.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let mut all = alloc::vec![
            ("received", self.received),
            ("sent", self.sent),
            ("repeated", self.repeated),
            ("malformed", self.malformed),
            ("foreign", self.foreign),
            ("strays", self.strays),
            ("duplicates", self.duplicates),
            ("wrong_address", self.wrong_address),
            ("unexpected", self.unexpected),
            ("no_listener", self.no_listener),
            ("backlog_full", self.backlog_full),
            ("overload", self.overload),
            ("stale", self.stale),
            ("rejected", self.rejected),
            ("refused", self.refused),
            ("timed_out", self.timed_out),
            ("established", self.established),
            ("peer_died", self.peer_died),
            ("paced", self.paced),
            ("unproven", self.unproven),
            ("replayed", self.replayed),
        ];
        all.extend(SENT.into_iter().zip(self.sent_by_kind));
        all.extend(RECEIVED.into_iter().zip(self.received_by_kind));
        all.extend(REPEATED.into_iter().zip(self.repeated_by_kind));
        all.extend(REJECTED.into_iter().zip(self.rejected_by_reason));
        all.extend(REFUSED.into_iter().zip(self.refused_by_reason));
        all
    }
}

macro_rules! by_kind {
    ($prefix:literal) => {
        [
            concat!($prefix, "_req"),
            concat!($prefix, "_mra"),
            concat!($prefix, "_rej"),
            concat!($prefix, "_rep"),
            concat!($prefix, "_rtu"),
            concat!($prefix, "_dreq"),
            concat!($prefix, "_drep"),
            concat!($prefix, "_sidr_req"),
            concat!($prefix, "_sidr_rep"),
            concat!($prefix, "_lap"),
            concat!($prefix, "_apr"),
        ]
    };
}

macro_rules! by_reason {
    ($prefix:literal) => {
        [
            concat!($prefix, "_timeout"),
            concat!($prefix, "_unsupported"),
            concat!($prefix, "_invalid_comm_id"),
            concat!($prefix, "_invalid_service_id"),
            concat!($prefix, "_invalid_transport"),
            concat!($prefix, "_stale_connection"),
            concat!($prefix, "_invalid_mtu"),
            concat!($prefix, "_consumer"),
            concat!($prefix, "_duplicate_comm_id"),
            concat!($prefix, "_other"),
        ]
    };
}

const SENT: [&str; KINDS] = by_kind!("sent");
const RECEIVED: [&str; KINDS] = by_kind!("received");
const REPEATED: [&str; KINDS] = by_kind!("repeated");
const REJECTED: [&str; REASONS.len() + 1] = by_reason!("rejected");
const REFUSED: [&str; REASONS.len() + 1] = by_reason!("refused");

fn kind_of(mad: &[u8; MAD_LEN]) -> u16 {
    u16::from_be_bytes([mad[16], mad[17]])
}

fn bump(counts: &mut ByKind, attr_id: u16) {
    if let Some(count) = attr_id.checked_sub(FIRST_KIND).and_then(|at| counts.get_mut(usize::from(at))) {
        *count += 1;
    }
}

fn index_of(reason: RejectReason) -> usize {
    REASONS.iter().position(|known| *known == reason).unwrap_or(REASONS.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cm::{CmMad, CmMessage, Rej};

    #[test]
    fn each_count_has_its_name() {
        let mut counters = CmCounters::default();
        let rej = CmMessage::Rej(Rej::default());
        counters.on_sent(&CmMad { tid: 1, attr_mod: 0, message: rej }.to_bytes());
        counters.on_received(0x1a);
        counters.on_received(0xff);
        counters.on_rejected(RejectReason::CONSUMER);
        counters.on_refused(RejectReason(17));
        counters.on_bad(BadMad::Class(1));
        let named = counters.named();
        let of = |name: &str| named.iter().find(|(n, _)| *n == name).map(|(_, count)| *count);
        for name in ["sent", "sent_rej", "received_apr", "rejected_consumer", "refused_other", "foreign"] {
            assert_eq!(of(name), Some(1), "{name}");
        }
        assert_eq!((of("received"), of("malformed"), of("refused")), (Some(2), Some(0), Some(1)));
        let mut names: Vec<_> = named.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
