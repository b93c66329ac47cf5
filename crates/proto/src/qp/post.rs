//! Posting work.

use super::state::{may_post_recv, may_post_send, state_name};
use super::{Attempt, Host, MAX_MESSAGE, Qp, RecvQueue};
use crate::Time;
use crate::verbs::{Payload, QpCap, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, Transport};

/// Why a work request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue is full.
    #[error(
        "the queue is full: all {depth} work requests are outstanding; poll completions (an unsignalled send makes none) or create a \
         deeper queue"
    )]
    QueueFull {
        /// How many requests it holds.
        depth: usize,
    },
    /// Strict mode: the queue is full of requests whose completions nobody has polled.
    #[error(
        "the send queue is full: none of the last {depth} requests (max_send_wr {depth}, {unsignaled} of them unsignalled) is free again. A NIC \
         frees the entries of unsignalled requests only when a later signalled completion is polled, and {unpolled} wait to be polled; \
         set SIGNALED on at least one of {depth} requests and poll it, or create a deeper queue"
    )]
    NotPolled {
        /// How many requests it holds.
        depth: usize,
        /// Those of them that generate no completion.
        unsignaled: usize,
        /// Completions of sends of the queue pair that wait in the completion queue.
        unpolled: usize,
    },
    /// Strict mode: the receive queue is full of receives whose completions nobody has polled.
    #[error(
        "the receive queue is full: of max_recv_wr {depth}, {posted} receives are posted and {unpolled} completions of receives wait to be \
         polled. A NIC frees a receive only when its completion is polled; poll, or create a deeper queue"
    )]
    RecvNotPolled {
        /// How many receives it holds.
        depth: usize,
        /// Those that wait for a message.
        posted: usize,
        /// Completions of receives of the queue pair that wait in the completion queue.
        unpolled: usize,
    },
    /// Strict mode: the same for a shared receive queue.
    #[error(
        "the shared receive queue is full: of max_wr {depth}, {posted} receives are posted and {unpolled} completions of its receives wait to be \
         polled. A NIC frees a receive only when its completion is polled; poll, or create a deeper queue"
    )]
    SrqNotPolled {
        /// How many receives it holds.
        depth: usize,
        /// Those that wait for a message.
        posted: usize,
        /// Completions of its receives that wait in the completion queues of its queue pairs.
        unpolled: usize,
    },
    /// The state does not allow posting.
    #[error("this cannot be posted in state {}; receives need INIT, sends need RTS", state_name(*.0))]
    WrongState(QpState),
    /// More SGEs than the queue pair supports.
    #[error("{given} scatter/gather entries given, the queue was created with max_sge {max}")]
    TooManySges {
        /// Entries given.
        given: usize,
        /// Entries allowed.
        max: usize,
    },
    /// More inline data than the queue pair supports.
    #[error(
        "{given} bytes of inline data given, max_inline_data is {max}; create the queue pair with more, or post without INLINE"
    )]
    InlineTooLong {
        /// Bytes given.
        given: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// READs, atomics and binds have no data to send inline.
    #[error("a READ, atomic or bind cannot be inline: it has no data to send; post it without INLINE")]
    InlineNotAllowed,
    /// The transport does not support the operation.
    #[error(
        "a queue pair of transport {0:?} has no such operation: UD only sends, UC has neither READ nor atomics"
    )]
    NotOnThisTransport(Transport),
    /// The wire does not carry the operation.
    #[error("iWARP has no {0}")]
    NotOnThisWire(&'static str),
    /// A datagram needs a destination.
    #[error("a datagram needs an address handle")]
    NoDestination,
    /// An XRC request needs a shared receive queue of the peer.
    #[error("an XRC request needs the number of the peer's shared receive queue")]
    NoRemoteSrq,
    /// Longer than 2^31 bytes.
    #[error("a message of {bytes} bytes is longer than the {MAX_MESSAGE} that the transport carries")]
    MessageTooLong {
        /// Bytes given.
        bytes: u64,
    },
    /// Receives are posted to the shared queue.
    #[error("this queue pair takes its receives from a shared receive queue; post there")]
    HasSharedQueue,
}

/// Whether a request was executed while it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// It was sent, or executed in the peer's memory.
    Executed,
    /// It waits in the send queue.
    Queued,
}

impl Qp {
    /// Posts a send. After [`Posted::Queued`], the caller must call [`Qp::poll_requests`].
    ///
    /// Each call of `wr` reads the same request from the caller. So only a queued request is copied to memory; a request that executes
    /// immediately stays in registers.
    #[inline(always)] // as `Qp::try_post`
    pub fn post_send<'a, H: Host>(
        &mut self,
        wr: impl Fn() -> SendWr<'a>,
        mut clock: impl FnMut() -> Time,
        host: &mut H,
    ) -> Result<Posted, PostError> {
        match self.try_post(&wr, &mut clock, host) {
            Attempt::Done => Ok(Posted::Executed),
            Attempt::Declined => self.queue_send(&wr(), clock, host),
        }
    }

    /// Queues a send that must wait or that will fail.
    #[inline(never)]
    fn queue_send<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        mut clock: impl FnMut() -> Time,
        host: &mut H,
    ) -> Result<Posted, PostError> {
        let len = self.check_send(wr)?;
        if self.sq.is_full() {
            return Err(PostError::QueueFull { depth: self.sq.depth() });
        }
        self.sq.push(wr, len, self.id.signal_all);
        if matches!(self.attr.state, QpState::Err | QpState::Sqe) {
            self.flush_sends(clock(), host);
        }
        Ok(Posted::Queued)
    }

    /// Checks everything that [`Qp::post_send`] demands of a request except a free entry in the queue. Returns the length of its data.
    ///
    /// The answer holds until the next [`Qp::modify`]: no posted request and no packet changes it.
    #[inline]
    pub fn check_send(&self, wr: &SendWr<'_>) -> Result<u32, PostError> {
        if self.id.transport.sends() && !may_post_send(self.attr.state) {
            return Err(PostError::WrongState(self.attr.state));
        }
        check_operation(self.id.transport, wr)?;
        check_payload(&self.attr.cap, wr)
    }

    /// Posts a receive.
    pub fn post_recv<H: Host>(&mut self, wr: &RecvWr<'_>, now: Time, host: &mut H) -> Result<(), PostError> {
        if self.queue_recv(wr)? {
            self.flush_recvs(now, host);
        }
        Ok(())
    }

    /// Posts a receive without a [`Host`]. Returns whether [`Qp::flush_posted`] must follow.
    #[inline(always)] // every message needs one
    pub fn queue_recv(&mut self, wr: &RecvWr<'_>) -> Result<bool, PostError> {
        if !self.id.transport.receives() {
            return Err(PostError::NotOnThisTransport(self.id.transport));
        }
        if !may_post_recv(self.attr.state) {
            return Err(PostError::WrongState(self.attr.state));
        }
        queue_recv(&mut self.rq, self.id.shared_recv, wr)?;
        Ok(self.attr.state == QpState::Err)
    }

    /// Flushes receives that were posted in ERR.
    pub fn flush_posted<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.attr.state == QpState::Err {
            self.flush_recvs(now, host);
        }
    }
}

/// Adds a receive to a queue pair's own queue.
#[inline(always)] // as `Qp::queue_recv`
pub(crate) fn queue_recv(rq: &mut RecvQueue, is_shared: bool, wr: &RecvWr<'_>) -> Result<(), PostError> {
    if is_shared {
        return Err(PostError::HasSharedQueue);
    }
    let max = rq.max_sge();
    if wr.sges.len() > max {
        return Err(PostError::TooManySges { given: wr.sges.len(), max });
    }
    if !rq.push(wr) {
        return Err(PostError::QueueFull { depth: rq.depth() });
    }
    Ok(())
}

/// Checks the data of a send against the sizes of the queue. Returns its length.
#[inline]
pub(crate) fn check_payload(cap: &QpCap, wr: &SendWr<'_>) -> Result<u32, PostError> {
    match wr.payload {
        Payload::Sges(sges) => {
            let max = cap.max_send_sge as usize;
            if sges.len() > max {
                return Err(PostError::TooManySges { given: sges.len(), max });
            }
            let bytes = if has_no_data(&wr.op) { 0 } else { total_len(sges) };
            if bytes > u64::from(MAX_MESSAGE) {
                return Err(PostError::MessageTooLong { bytes });
            }
            Ok(bytes as u32)
        }
        Payload::Inline(bytes) => {
            let max = cap.max_inline_data as usize;
            if has_no_data(&wr.op) || matches!(wr.op, SendOp::Read { .. } | SendOp::Atomic { .. }) {
                return Err(PostError::InlineNotAllowed);
            }
            if bytes.len() > max {
                return Err(PostError::InlineTooLong { given: bytes.len(), max });
            }
            Ok(bytes.len() as u32)
        }
    }
}

/// Whether a request generates a completion.
#[inline]
pub(super) fn signals(flags: SendFlags, signal_all: bool) -> bool {
    signal_all || flags.contains(SendFlags::SIGNALED)
}

/// Whether an operation carries all its data in the request and uses no SGEs.
fn has_no_data(op: &SendOp) -> bool {
    matches!(op, SendOp::BindMw(_) | SendOp::AtomicWrite { .. } | SendOp::Flush { .. })
}

fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|s| u64::from(s.len)).sum()
}

/// Which operations each transport has (IBA table 35).
fn check_operation(transport: Transport, wr: &SendWr<'_>) -> Result<(), PostError> {
    let has = match (transport, wr.op) {
        (Transport::Rc, _) => true,
        (Transport::XrcIni, op) => !matches!(op, SendOp::AtomicWrite { .. } | SendOp::Flush { .. }),
        (Transport::XrcTgt, _) => false,
        (Transport::Uc, op) => {
            let answered = matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. });
            let placed = matches!(op, SendOp::AtomicWrite { .. } | SendOp::Flush { .. });
            !(answered || placed || matches!(op, SendOp::SendInv(_)))
        }
        (Transport::Ud, op) => matches!(op, SendOp::Send | SendOp::SendImm(_)),
    };
    if !has {
        return Err(PostError::NotOnThisTransport(transport));
    }
    if transport == Transport::Ud && wr.ud.is_none() {
        return Err(PostError::NoDestination);
    }
    if transport == Transport::XrcIni && wr.srq.is_none() {
        return Err(PostError::NoRemoteSrq);
    }
    Ok(())
}
