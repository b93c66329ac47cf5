//! Operations that own their buffer until they are done.

use crate::cq::Cq;
use crate::error::{CompletionError, Error, Outcome};
use crate::in_flight::OutcomeCell;
use crate::memory::Buffer;
use ferroce_proto::verbs::{Completion, WcFlags, WcOpcode, WcStatus};
use ferroce_proto::wire::Grh;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a completion's `sl` says that its datagram came over IPv4.
const NETWORK_IPV4: u8 = 2;

/// An operation under way. Its buffer belongs to the NIC; [`wait`](Pending::wait) brings it back.
///
/// Dropping this does not stop the operation. The buffer is freed when the NIC is done with it.
#[must_use = "the buffer comes back through `wait`"]
pub struct Pending {
    pub(crate) outcome: Arc<OutcomeCell>,
    pub(crate) cq: Cq,
}

impl Pending {
    /// Waits until the operation is done. A failed one is an error, and its buffer is freed;
    /// see [`Pending::settle`] for the other way.
    pub fn wait(self) -> Result<Done, Error> {
        Ok(self.settle()?.ok()?)
    }

    /// Waits until the operation is done, in success or failure, and returns the buffer in any case.
    pub fn settle(self) -> Result<Done, Error> {
        self.cq.wait_for(None, || self.cq.poll_outcome(&self.outcome))
    }

    /// As [`Pending::settle`], but not longer than `timeout`: then [`Error::TimedOut`], and the operation goes on.
    pub fn settle_timeout(&mut self, timeout: Duration) -> Result<Done, Error> {
        let deadline = Instant::now() + timeout;
        self.cq.wait_for(Some(deadline), || self.cq.poll_outcome(&self.outcome))
    }

    /// The outcome, if the operation is done.
    pub fn try_settle(&mut self) -> Result<Option<Done>, Error> {
        self.cq.poll_outcome(&self.outcome)
    }

    /// The completion queue that will tell.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending(on {:?})", self.cq)
    }
}

/// An operation that is done, with its buffer.
#[derive(Debug)]
pub struct Done {
    /// The buffer. After a receive it has the length of the message.
    pub buffer: Buffer,
    /// How it went.
    pub completion: Completion,
}

impl Done {
    pub(crate) fn new(mut buffer: Buffer, completion: Completion) -> Self {
        match completion.opcode {
            _ if completion.status != WcStatus::Success => {}
            WcOpcode::Recv => buffer.received(completion.byte_len, completion.flags.contains(WcFlags::GRH)),
            // The peer wrote elsewhere; this receive only carried the news.
            WcOpcode::RecvRdmaWithImm => buffer.received(0, false),
            _ => {}
        }
        Done { buffer, completion }
    }

    /// Success as success, failure as error.
    pub fn ok(self) -> Result<Done, CompletionError> {
        self.completion.ok()?;
        Ok(self)
    }

    /// Immediate data, if the message had some.
    pub fn imm(&self) -> Option<u32> {
        self.completion.flags.contains(WcFlags::WITH_IMM).then_some(self.completion.imm)
    }

    /// The address that a datagram came from.
    pub fn source(&self) -> Option<IpAddr> {
        let grh = self.buffer.grh()?;
        if self.completion.sl == NETWORK_IPV4 {
            // The IPv4 header fills the last 20 bytes (IBA A17.4.5).
            return Some(Ipv4Addr::new(grh[32], grh[33], grh[34], grh[35]).into());
        }
        Grh::parse(grh).ok().map(|grh| grh.sgid.to_ip())
    }
}

/// A post that was refused, and the buffer that it left with the caller.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    pub error: Box<Error>,
    /// The buffer, untouched.
    pub buffer: Buffer,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        *refused.error
    }
}
