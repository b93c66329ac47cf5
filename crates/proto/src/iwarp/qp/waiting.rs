//! What a queue pair over a stream waits for: the explanation of a hang.

use super::StreamQp;
use crate::ids::Qpn;
use crate::qp::SendWqe;
use crate::verbs::QpState;
use core::fmt;

/// Why a queue pair has unfinished work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The stream takes no bytes.
    FullBuffer,
    /// A responder must not send before the initiator's first FPDU.
    FirstFpdu,
    /// This many READs and atomics have no answer.
    Answers(usize),
}

/// Unfinished work of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct StreamWaiting {
    qpn: Qpn,
    /// The oldest request. `None` if only responses to the peer wait.
    request: Option<SendWqe>,
    cause: Cause,
    /// Requests completed, bytes taken by the stream, response bytes placed.
    progress: (u64, u64, u32),
}

impl StreamQp {
    /// What the queue pair waits for, if it has work that depends on the peer.
    pub fn waiting(&self) -> Option<StreamWaiting> {
        let request = self.sq.oldest().copied();
        let cause = match self.current {
            _ if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) => return None,
            Some(_) => Cause::FullBuffer,
            None if !self.may_send && request.is_some() => Cause::FirstFpdu,
            None if !self.awaited.is_empty() => Cause::Answers(self.awaited.len()),
            None => return None,
        };
        let taken = self.counters.tx_bytes + self.current.map_or(0, |current| current.taken as u64);
        let progress = (self.sq.head(), taken, self.placed);
        Some(StreamWaiting { qpn: self.id.qpn, request, cause, progress })
    }
}

impl StreamWaiting {
    /// Whether there was no progress since `earlier`.
    pub fn is_stalled_since(&self, earlier: &StreamWaiting) -> bool {
        (self.cause, self.progress) == (earlier.cause, earlier.progress)
    }
}

impl fmt::Display for StreamWaiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {}: ", self.qpn)?;
        match &self.request {
            Some(request) => write!(f, "{request}")?,
            None => f.write_str("an answer to a READ of the peer")?,
        }
        match self.cause {
            Cause::FullBuffer => f.write_str(
                " waits: the send buffer of TCP is full, because the peer has stopped reading; check that its process runs and that the network \
                 between the hosts works",
            ),
            Cause::FirstFpdu => f.write_str(
                " waits: this end accepted the connection, and the end that connected must send first (RFC 5044); let it send a message",
            ),
            Cause::Answers(count) => write!(
                f,
                " waits: the peer has answered none of {count} READs and atomics; check that its process runs and that the network between the \
                 hosts works"
            ),
        }
    }
}
