//! Operations that own their buffer until they complete.

use crate::cq::Cq;
use crate::error::{CompletionError, Error, Outcome};
use crate::in_flight::OutcomeCell;
use crate::macros::debug;
use crate::memory::Buffer;
use ferroce_proto::verbs::{Completion, WcFlags, WcOpcode, WcStatus};
use ferroce_proto::wire::Grh;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The `sl` of a completion whose datagram arrived over IPv4.
const NETWORK_IPV4: u8 = 2;

/// An outstanding operation. The NIC owns its buffer; [`wait`](Pending::wait) returns it.
///
/// Dropping this does not stop the operation. The buffer is freed when the operation completes.
#[must_use = "`wait` returns the buffer"]
pub struct Pending {
    pub(crate) outcome: Arc<OutcomeCell>,
    pub(crate) cq: Cq,
}

impl Pending {
    /// Waits until the operation completes. A failed operation returns an error and frees the buffer; [`Pending::settle`]
    /// returns the buffer in both cases.
    pub fn wait(self) -> Result<Done, Error> {
        Ok(self.settle()?.ok()?)
    }

    /// Waits until the operation completes, with success or failure, and returns the buffer in both cases.
    pub fn settle(self) -> Result<Done, Error> {
        self.cq.wait_for(None, || self.cq.poll_outcome(&self.outcome))
    }

    /// As [`Pending::settle`]. Returns [`Error::TimedOut`] after `timeout`; the operation continues.
    pub fn settle_timeout(&mut self, timeout: Duration) -> Result<Done, Error> {
        let deadline = Instant::now() + timeout;
        self.cq.wait_for(Some(deadline), || self.cq.poll_outcome(&self.outcome))
    }

    /// The outcome, if the operation is complete. Never blocks.
    pub fn try_settle(&mut self) -> Result<Option<Done>, Error> {
        self.cq.poll_outcome(&self.outcome)
    }

    /// The completion queue of the operation.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }
}

debug!(Pending, |this| "Pending(on {:?})", this.cq);

/// A completed operation with its buffer.
#[non_exhaustive]
#[derive(Debug)]
pub struct Done {
    /// The buffer. After a receive it has the length of the message.
    pub buffer: Buffer,
    /// The completion.
    pub completion: Completion,
}

impl Done {
    pub(crate) fn new(mut buffer: Buffer, completion: Completion) -> Self {
        match completion.opcode {
            _ if completion.status != WcStatus::Success => {}
            WcOpcode::Recv => buffer.received(completion.byte_len, completion.flags.contains(WcFlags::GRH)),
            // The peer wrote into a region; this receive carries the immediate data only.
            WcOpcode::RecvRdmaWithImm => buffer.received(0, false),
            _ => {}
        }
        Done { buffer, completion }
    }

    /// Returns a failure as an error.
    pub fn ok(self) -> Result<Done, CompletionError> {
        self.completion.ok()?;
        Ok(self)
    }

    /// Immediate data, if the message has any.
    pub fn imm(&self) -> Option<u32> {
        self.completion.flags.contains(WcFlags::WITH_IMM).then_some(self.completion.imm)
    }

    /// The source address of a datagram.
    pub fn source(&self) -> Option<IpAddr> {
        let grh = self.buffer.grh()?;
        if self.completion.sl == NETWORK_IPV4 {
            // The IPv4 header fills the last 20 bytes (IBA A17.4.5).
            return Some(Ipv4Addr::new(grh[32], grh[33], grh[34], grh[35]).into());
        }
        Grh::parse(grh).ok().map(|grh| grh.sgid.to_ip())
    }
}

/// A refused post, with the buffer of the caller.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    pub error: Box<Error>,
    /// The buffer, unchanged.
    pub buffer: Buffer,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        *refused.error
    }
}
