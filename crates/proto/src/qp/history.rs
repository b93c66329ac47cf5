//! Events of a queue pair other than data transfer. They explain why it is slow or has failed.

use super::state::state_name;
use super::{DropReason, Reason, RefusalReason};
use crate::verbs::{EventKind, QpState, WcStatus};
use crate::wire::NakCode;
use core::fmt;

/// An event that the host may keep. None of them happens per packet of an undisturbed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryEvent {
    /// It entered this state.
    State(QpState),
    /// Packets were retransmitted; the count is the number of packets.
    Retransmitted,
    /// The transport timer expired.
    Timeout,
    /// A probe for a lost tail was sent before the transport timer expired.
    Probe,
    /// The peer misses a packet.
    NakReceived,
    /// A NAK was sent.
    NakSent(NakCode),
    /// The peer has no receive posted.
    RnrReceived,
    /// No receive is posted here.
    RnrSent,
    /// A packet was dropped.
    Dropped(DropReason),
    /// A request was refused.
    Refused(RefusalReason),
    /// A work request failed.
    Failed {
        /// Status of the completion.
        status: WcStatus,
        /// Work request id of the program.
        wr_id: u64,
        /// The completion's `vendor_err`: a [`Reason`].
        vendor_err: u32,
    },
    /// A work request was flushed.
    Flushed,
    /// An asynchronous event was raised.
    Raised(EventKind),
}

impl fmt::Display for HistoryEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HistoryEvent::State(state) => write!(f, "enters {}", state_name(*state)),
            HistoryEvent::Retransmitted => f.write_str("packet retransmitted"),
            HistoryEvent::Timeout => f.write_str("transport timer expired"),
            HistoryEvent::Probe => f.write_str("probe for a lost tail sent"),
            HistoryEvent::NakReceived => f.write_str("sequence NAK received: the peer misses a packet"),
            HistoryEvent::NakSent(NakCode::PsnSequence) => {
                f.write_str("sequence NAK sent: a packet is missing")
            }
            HistoryEvent::NakSent(code) => write!(f, "NAK sent: {code:?}"),
            HistoryEvent::RnrReceived => f.write_str("RNR NAK received: the peer has no receive posted"),
            HistoryEvent::RnrSent => f.write_str("RNR NAK sent: no receive is posted"),
            HistoryEvent::Dropped(reason) => write!(f, "packet dropped: {}", reason.name()),
            HistoryEvent::Refused(reason) => write!(f, "request refused: {}", reason.text()),
            HistoryEvent::Failed { status, wr_id, vendor_err } => {
                write!(f, "completion of wr_id {wr_id:#x} failed: {status:?}")?;
                match Reason::from_code(*vendor_err) {
                    Some(reason) => write!(f, ", {}", reason.text()),
                    None => Ok(()),
                }
            }
            HistoryEvent::Flushed => f.write_str("work request flushed"),
            HistoryEvent::Raised(kind) => write!(f, "asynchronous event {kind:?}"),
        }
    }
}
