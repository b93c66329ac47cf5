//! Posting work.

use super::StreamQp;
use crate::Time;
use crate::qp::state::{may_post_recv, may_post_send};
use crate::qp::{HostServices, PostError, check_payload, queue_recv};
use crate::verbs::{QpState, RecvWr, SendOp, SendWr};

impl StreamQp {
    /// Queues a send. The caller then calls [`StreamQp::poll_transmit`].
    pub fn post_send<H: HostServices>(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), PostError> {
        let len = self.check_send(wr)?;
        if self.sq.is_full() {
            return Err(PostError::QueueFull { depth: self.sq.depth() });
        }
        self.sq.push(wr, len, self.id.signal_all);
        if self.attr.state == QpState::Err {
            self.flush(now, host);
        }
        Ok(())
    }

    /// Checks everything that [`StreamQp::post_send`] demands of a request except a free entry in the queue. Returns the length of its data.
    pub fn check_send(&self, wr: &SendWr<'_>) -> Result<u32, PostError> {
        if !may_post_send(self.attr.state) {
            return Err(PostError::WrongState(self.attr.state));
        }
        self.check_operation(&wr.op)?;
        check_payload(&self.attr.cap, wr)
    }

    /// Posts a receive.
    pub fn post_recv<H: HostServices>(
        &mut self,
        wr: &RecvWr<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), PostError> {
        if !may_post_recv(self.attr.state) {
            return Err(PostError::WrongState(self.attr.state));
        }
        queue_recv(&mut self.rq, self.id.shared_recv, wr)?;
        if self.attr.state == QpState::Err {
            self.flush(now, host);
        }
        Ok(())
    }

    /// Checks that RDMAP has the operation. Those of RFC 7306 require that both ends support it.
    fn check_operation(&self, op: &SendOp) -> Result<(), PostError> {
        let missing = match op {
            SendOp::WriteImm { .. } if !self.is_extended() => "immediate data with this peer",
            SendOp::Atomic { .. } if !self.is_extended() => "atomics with this peer",
            SendOp::SendImm(_) => "SEND with immediate data",
            SendOp::AtomicWrite { .. } => "atomic write",
            SendOp::Flush { .. } => "flush",
            _ => return Ok(()),
        };
        // In ERR every request is flushed, even one that the peer does not support.
        if self.attr.state == QpState::Err { Ok(()) } else { Err(PostError::NotOnThisWire(missing)) }
    }
}
