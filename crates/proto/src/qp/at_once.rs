//! One-sided requests that are done while they are posted, and never enter the queue.
//!
//! Where the peer's memory is within the host's reach, most requests find nothing before them. Queueing such a request only to
//! take it out again would cost more than the request itself.

use super::post::signals;
use super::sq::{awaits_response, wc_opcode};
use super::{Host, MAX_MESSAGE, Machine, OneSided, OneSidedKind, Qp, Side, TxPayload};
use crate::verbs::{Completion, Payload, QpState, SendOp, SendWr, Sge, Transport};

impl Qp {
    /// Does a request at once, completion and all, if it is one-sided, nothing is before it and the host can. False: nothing
    /// was done, and [`Qp::post_send`] takes it or says what is wrong with it.
    #[inline(always)]
    pub fn post_at_once<H: Host>(&mut self, wr: &SendWr<'_>, host: &mut H) -> bool {
        let is_message = matches!(wr.op, SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_));
        if is_message
            || self.attr.state != QpState::Rts
            || self.id.transport != Transport::Rc
            || !self.sq.is_idle()
        {
            return false;
        }
        let Machine::Rc(rc) = &self.machine else { return false };
        if !rc.0.is_alone(&self.sq) {
            return false;
        }
        let len = match wr.payload {
            // Nearly all have one entry, and then there is nothing to add up.
            Payload::Sges([sge]) if self.attr.cap.max_send_sge > 0 && sge.len <= MAX_MESSAGE => sge.len,
            _ => match self.check_payload(wr) {
                Ok(len) => len,
                Err(_) => return false,
            },
        };
        let (data, sges) = match wr.payload {
            Payload::Sges(sges) => (TxPayload::Local { pd: self.id.pd, sges, offset: 0, len }, sges),
            Payload::Inline(bytes) => (TxPayload::Bytes(bytes), &[][..]),
        };
        let Some(request) = one_sided(&wr.op, data, sges, len, self.attr.max_rd_atomic) else { return false };
        if !host.perform(self.id.pd, &request) {
            return false;
        }
        self.counters.performed += 1;
        if signals(wr, self.id.signal_all) {
            let byte_len = if awaits_response(&wr.op) { len } else { 0 };
            host.complete(
                Side::Send,
                Completion {
                    wr_id: wr.wr_id,
                    opcode: wc_opcode(&wr.op),
                    byte_len,
                    qpn: self.id.qpn,
                    ..Completion::default()
                },
            );
        }
        true
    }

    /// Whether nothing waits to be sent, neither request nor reply.
    pub fn is_quiet(&self) -> bool {
        self.sq.is_empty() && !self.has_replies()
    }
}

/// The request as a host may do it at once, if it is of that kind. `max_rd_atomic` is what the peer was promised: with none, packets find out.
#[inline(always)]
pub(super) fn one_sided<'a>(
    op: &SendOp,
    data: TxPayload<'a>,
    sges: &'a [Sge],
    len: u32,
    max_rd_atomic: u8,
) -> Option<OneSided<'a>> {
    let (rkey, addr, kind) = match *op {
        SendOp::Write { addr, rkey } => (rkey, addr, OneSidedKind::Write { data }),
        SendOp::Read { addr, rkey } if max_rd_atomic > 0 => (rkey, addr, OneSidedKind::Read { sges, len }),
        SendOp::Atomic { addr, rkey, op } if max_rd_atomic > 0 && len == 8 => {
            (rkey, addr, OneSidedKind::Atomic { op, sges })
        }
        _ => return None,
    };
    Some(OneSided { rkey, addr, kind })
}
