//! One-sided requests that are done while they are posted, and never enter the queue.
//!
//! Where the peer's memory is within the host's reach, most requests find nothing before them. Queueing such a request only to
//! take it out again would cost more than the request itself.

use super::post::signals;
use super::sq::{awaits_response, wc_opcode};
use super::{Host, MAX_MESSAGE, Machine, OneSided, OneSidedKind, Qp, Side, TxPayload};
use crate::verbs::{Completion, Payload, QpState, SendFlags, SendOp, SendWr, Sge, Transport, WcOpcode};
use crate::{RKey, Srqn};

/// A WRITE of data in one piece: the request that programs post most, and often one at a time while somebody waits for it.
#[derive(Clone, Copy, Debug)]
pub struct PlainWrite<'a> {
    /// The caller's number for it.
    pub wr_id: u64,
    /// Modifiers.
    pub flags: SendFlags,
    /// Where.
    pub addr: u64,
    /// With which key.
    pub rkey: RKey,
    /// Inline data, or one entry.
    pub data: Payload<'a>,
}

impl Qp {
    /// Does a WRITE of a reliable connection at once as [`Qp::post_at_once`] does, if the host has all at hand that it takes. A short way to
    /// the same: all else is done after the bytes are where they belong. False: nothing was done.
    #[inline(always)]
    pub fn write_at_once<H: Host>(&mut self, write: PlainWrite<'_>, host: &mut H) -> bool {
        let is_fit = match write.data {
            Payload::Sges([sge]) => self.attr.cap.max_send_sge > 0 && sge.len <= MAX_MESSAGE,
            Payload::Sges(_) => false,
            Payload::Inline(bytes) => bytes.len() <= self.attr.cap.max_inline_data as usize,
        };
        let is_first = self.id.transport == Transport::Rc && self.is_alone();
        if !is_fit || !is_first || !host.write(self.id.pd, write.rkey, write.addr, write.data) {
            return false;
        }
        self.counters.performed += 1;
        if signals(write.flags, self.id.signal_all) {
            self.complete_at_once(write.wr_id, WcOpcode::RdmaWrite, 0, host);
        }
        true
    }

    /// Does a request at once, completion and all, if it is one-sided, nothing is before it and the host can. False: nothing
    /// was done, and [`Qp::post_send`] takes it or says what is wrong with it.
    #[inline(always)]
    pub fn post_at_once<H: Host>(&mut self, wr: &SendWr<'_>, host: &mut H) -> bool {
        let is_message = matches!(wr.op, SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_));
        // What the transport does not have is refused by `post_send`.
        let (is_first, srq) = match self.id.transport {
            Transport::Rc => (self.is_alone(), None),
            Transport::XrcIni => (wr.srq.is_some() && self.is_alone(), wr.srq),
            Transport::Uc => (matches!(wr.op, SendOp::Write { .. }) && self.has_caught_up(host), None),
            Transport::Ud | Transport::XrcTgt => (false, None),
        };
        if is_message || !is_first {
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
        let Some(request) = one_sided(&wr.op, srq, data, sges, len, self.attr.max_rd_atomic) else {
            return false;
        };
        if !host.perform(self.id.pd, &request) {
            return false;
        }
        self.counters.performed += 1;
        if signals(wr.flags, self.id.signal_all) {
            let byte_len = if awaits_response(&wr.op) { len } else { 0 };
            self.complete_at_once(wr.wr_id, wc_opcode(&wr.op), byte_len, host);
        }
        true
    }

    /// Whether a request that is posted now would be the only one. Of a reliable connection, plain or extended.
    #[inline(always)]
    fn is_alone(&self) -> bool {
        match &self.machine {
            Machine::Rc(rc) => {
                self.attr.state == QpState::Rts && self.sq.is_idle() && rc.0.is_alone(&self.sq)
            }
            _ => false,
        }
    }

    /// The same of an unreliable connection, where nobody says what has arrived: the host must know.
    #[inline(never)]
    fn has_caught_up<H: Host>(&mut self, host: &mut H) -> bool {
        match &mut self.machine {
            Machine::Uc(uc) => self.attr.state == QpState::Rts && self.sq.is_idle() && uc.0.is_alone(host),
            _ => false,
        }
    }

    #[inline(always)]
    fn complete_at_once<H: Host>(&self, wr_id: u64, opcode: WcOpcode, byte_len: u32, host: &mut H) {
        let completion = Completion { wr_id, opcode, byte_len, qpn: self.id.qpn, ..Completion::default() };
        host.complete(Side::Send, completion);
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
    srq: Option<Srqn>,
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
    Some(OneSided { srq, rkey, addr, kind })
}
