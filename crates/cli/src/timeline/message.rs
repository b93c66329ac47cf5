//! A message: what one work request sent, from its first packet to its acknowledgement.

use ferroce_proto::Psn;
use ferroce_proto::wire::{NakCode, Operation};
use serde::Serialize;

/// What a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    Flush,
    AtomicWrite,
}

impl Kind {
    /// The kind of a request packet.
    pub(super) fn of(operation: Operation) -> Option<Kind> {
        Some(match operation {
            Operation::ReadRequest => Kind::Read,
            Operation::CompareSwap => Kind::CompareSwap,
            Operation::FetchAdd => Kind::FetchAdd,
            Operation::Flush => Kind::Flush,
            Operation::AtomicWrite => Kind::AtomicWrite,
            operation if operation.is_send() => Kind::Send,
            operation if operation.is_write() => Kind::Write,
            _ => return None,
        })
    }

    /// Its name in the specification.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Send => "SEND",
            Kind::Write => "RDMA WRITE",
            Kind::Read => "RDMA READ",
            Kind::CompareSwap => "compare and swap",
            Kind::FetchAdd => "fetch and add",
            Kind::Flush => "flush",
            Kind::AtomicWrite => "atomic write",
        }
    }

    /// The class of its colour, as in the report of `ferroce perf`.
    pub(super) fn class(self) -> &'static str {
        match self {
            Kind::Send => "send",
            Kind::Write => "write",
            Kind::Read => "read",
            _ => "atomic",
        }
    }
}

/// How a message ended, as far as the capture shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// No answer was captured.
    Unanswered,
    /// An acknowledgement, a READ response or an atomic acknowledgement completed it.
    Acknowledged,
    /// A NAK ended it.
    Refused(#[serde(serialize_with = "nak_name")] NakCode),
    /// The transport has no acknowledgements.
    Unreliable,
}

fn nak_name<S: serde::Serializer>(code: &NakCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(nak_reason(*code))
}

/// The reason of a NAK in the words of the specification.
pub(super) fn nak_reason(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequence => "PSN sequence error",
        NakCode::InvalidRequest => "invalid request",
        NakCode::RemoteAccess => "remote access error",
        NakCode::RemoteOperational => "remote operational error",
        NakCode::InvalidRdRequest => "invalid RD request",
    }
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// Number of the connection.
    pub(super) connection: usize,
    /// The end that requested it.
    pub(super) from: u8,
    pub(super) kind: Kind,
    pub(super) first_psn: Psn,
    /// PSN of its last packet, or of its last response packet; the last one seen while the message is not complete.
    pub(super) last_psn: Psn,
    /// Whether its last packet was captured.
    pub(super) has_end: bool,
    /// Whether its first packet was captured.
    pub(super) has_start: bool,
    /// Different packets of the message that were captured.
    pub(super) packets: u32,
    /// Payload: the length that the RETH names, else what was captured.
    pub(super) bytes: u64,
    pub(super) imm: Option<u32>,
    pub(super) start_ns: u64,
    /// When its last request packet was captured.
    pub(super) last_packet_ns: u64,
    /// When its answer was captured.
    pub(super) done_ns: Option<u64>,
    pub(super) outcome: Outcome,
    /// Packets of it that were sent again.
    pub(super) retransmitted: u32,
    /// RNR NAKs that it met.
    pub(super) rnr_naks: u32,
}

impl Message {
    /// From the first packet to the answer.
    pub(super) fn latency_ns(&self) -> Option<u64> {
        self.done_ns.map(|done| done.saturating_sub(self.start_ns)).filter(|_| self.has_start)
    }

    /// Whether a PSN belongs to it.
    pub(super) fn contains(&self, psn: Psn) -> bool {
        !psn.is_before(self.first_psn) && !psn.is_after(self.last_psn)
    }
}
