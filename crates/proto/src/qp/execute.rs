//! Requests that execute while they are posted.
//!
//! Most requests find an empty queue. A single-packet message is then sent before it enters the send queue, which
//! shortens its latency. A one-sided request to a local peer executes in the peer's memory and never enters the queue.
//! Everything else waits for [`Qp::poll_requests`], which applies the same rules.

use super::flush::io;
use super::io::has_hello;
use super::post::{check_payload, signals};
use super::sq::{awaits_response, wc_opcode};
use super::{
    Attempt, Host, MAX_MESSAGE, Machine, OneSided, OneSidedKind, Qp, Segment, Side, Transmission, TxPayload,
};
use crate::Time;
use crate::ids::{PKey, Srqn};
use crate::verbs::{Completion, Payload, QpState, SendFlags, SendOp, SendWr, Sge, Transport};
use crate::wire::{PiggybackedAck, SendOnly};

impl Qp {
    /// Executes a request if it is the only one and no limit blocks it. If declined, the queue pair is unchanged.
    #[inline(always)] // the operation is often a constant of the caller
    pub fn try_post<'a, H: Host>(
        &mut self,
        wr: impl Fn() -> SendWr<'a>,
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Attempt {
        // Separate branch, so that a WRITE skips the checks of the other operations.
        if let SendOp::Write { .. } = wr().op {
            return self.try_direct(wr, host);
        }
        match wr().op {
            SendOp::Send | SendOp::SendImm(_) => self.try_send(wr, clock, host),
            SendOp::Read { .. } | SendOp::Atomic { .. } => self.try_direct(wr, host),
            _ => Attempt::Declined,
        }
    }

    /// Sends a single-packet message. The clock is read after the packet is sent, and only if the timer or an RTT sample
    /// needs it: a clock read takes as long as a third of a short message.
    #[inline(always)]
    fn try_send<'a, H: Host>(
        &mut self,
        wr: impl Fn() -> SendWr<'a>,
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Attempt {
        let Some((len, payload)) = self.data_of(&wr) else { return Attempt::Declined };
        let SendWr { op, flags, .. } = wr();
        let mtu = self.attr.path_mtu.bytes();
        let is_up = self.attr.state == QpState::Rts && self.id.transport == Transport::Rc;
        let Machine::Rc(rc) = &mut self.machine else { return Attempt::Declined };
        let (requester, responder) = &mut **rc;
        if !is_up || len > mtu {
            return Attempt::Declined;
        }
        let payload = if len == 0 { TxPayload::None } else { payload };
        let is_signaled = signals(flags, self.id.signal_all);
        let Some(plan) = requester.plan_only(flags, is_signaled, mtu, &self.sq, || host.coalesces()) else {
            return Attempt::Declined;
        };
        let may_carry = requester.peer_extends() && len as usize + PiggybackedAck::LEN <= mtu as usize;
        let headers = SendOnly {
            dest_qpn: self.attr.dest_qpn,
            pkey: PKey::DEFAULT,
            psn: plan.psn,
            ack_req: plan.ack_req,
            solicited: flags.contains(SendFlags::SOLICITED),
            hello: has_hello(self.id.transport, &self.attr, plan.psn),
            selective: false,
            imm: if let SendOp::SendImm(imm) = op { Some(imm) } else { None },
            piggybacked_ack: if may_carry { responder.piggybacked_ack() } else { None },
        };
        let mut io = io!(self, Time::default(), host);
        let (transmission, is_acknowledged) = (Transmission::First, true);
        let segment = Segment { headers: &headers, payload, count: 1, transmission, is_acknowledged };
        if io.send(&segment).is_err() {
            return Attempt::Declined;
        }
        // The packet is sent; the rest is off the latency path.
        // A copy of the whole operation would wait for the stores of its fields, which wait behind the stores of the packet.
        let op = if let SendOp::SendImm(imm) = op { SendOp::SendImm(imm) } else { SendOp::Send };
        let wqe = self.sq.push(&SendWr { op, ud: None, srq: None, ..wr() }, len, io.id.signal_all);
        (wqe.segment, wqe.packets) = (mtu, 1);
        io.now = if requester.needs_time_to_send() { clock() } else { requester.last_time() };
        requester.on_posted(&plan, len, &mut io);
        if headers.piggybacked_ack.is_some() {
            responder.on_piggybacked(&mut io);
        }
        Attempt::Done
    }

    /// Executes a one-sided request in the peer's memory and completes it.
    #[inline(always)]
    fn try_direct<'a, H: Host>(&mut self, wr: impl Fn() -> SendWr<'a>, host: &mut H) -> Attempt {
        // `wr` is called for each field: a request read as a whole is copied to the stack.
        // Unsupported operations are refused when they are queued.
        let is_first = match self.id.transport {
            Transport::Rc => self.is_alone(),
            Transport::XrcIni => wr().srq.is_some() && self.is_alone(),
            Transport::Uc => matches!(wr().op, SendOp::Write { .. }) && self.has_drained(host),
            Transport::Ud | Transport::XrcTgt => false,
        };
        if !is_first {
            return Attempt::Declined;
        }
        let Some((len, data)) = self.data_of(&wr) else { return Attempt::Declined };
        let sges = if let Payload::Sges(sges) = wr().payload { sges } else { &[] };
        let Some(request) = one_sided(&wr().op, wr().srq, data, sges, len, self.attr.max_rd_atomic) else {
            return Attempt::Declined;
        };
        if !host.try_direct(self.id.pd, &request).is_done() {
            return Attempt::Declined;
        }
        self.counters.performed += 1;
        if signals(wr().flags, self.id.signal_all) {
            let (opcode, byte_len) = (wc_opcode(&wr().op), if awaits_response(&wr().op) { len } else { 0 });
            let completion =
                Completion { wr_id: wr().wr_id, opcode, byte_len, qpn: self.id.qpn, ..Completion::default() };
            host.complete(Side::Send, completion);
        }
        Attempt::Done
    }

    /// Returns length and data of a request if [`check_payload`] accepts them.
    #[inline(always)]
    fn data_of<'a>(&self, wr: impl Fn() -> SendWr<'a>) -> Option<(u32, TxPayload<'a>)> {
        let cap = &self.attr.cap;
        let payload = wr().payload;
        let may_be_inline = !matches!(wr().op, SendOp::Read { .. } | SendOp::Atomic { .. });
        let len = match payload {
            // Nearly all requests have one SGE, so no sum is needed.
            Payload::Sges([sge]) if cap.max_send_sge > 0 && sge.len <= MAX_MESSAGE => sge.len,
            Payload::Inline(bytes) if may_be_inline && bytes.len() <= cap.max_inline_data as usize => {
                bytes.len() as u32
            }
            _ => check_payload(cap, &wr()).ok()?,
        };
        let data = match payload {
            Payload::Sges(sges) => TxPayload::Local { pd: self.id.pd, sges, offset: 0, len },
            Payload::Inline(bytes) => TxPayload::Bytes(bytes),
        };
        Some((len, data))
    }

    /// Whether a request posted now would be the only outstanding one (RC and XRC).
    #[inline(always)]
    fn is_alone(&self) -> bool {
        match &self.machine {
            Machine::Rc(rc) => {
                self.attr.state == QpState::Rts && self.sq.is_idle() && rc.0.is_alone(&self.sq)
            }
            _ => false,
        }
    }

    /// The same for UC, which has no ACKs: the host must report that nothing is in flight.
    #[inline(never)]
    fn has_drained<H: Host>(&mut self, host: &mut H) -> bool {
        match &mut self.machine {
            Machine::Uc(uc) => self.attr.state == QpState::Rts && self.sq.is_idle() && uc.0.is_alone(host),
            _ => false,
        }
    }

    /// Whether a request waits for [`Qp::poll_requests`].
    #[inline]
    pub fn has_unsent(&self) -> bool {
        match &self.machine {
            Machine::Rc(rc) => rc.0.has_unsent(&self.sq),
            _ => !self.sq.is_empty(),
        }
    }

    /// Whether the requests that wait for [`Qp::poll_requests`] may wait for more, to leave in one batch: they are short and
    /// few, and the peer is about to acknowledge earlier packets.
    pub fn may_coalesce<H: Host>(&self, host: &mut H) -> bool {
        match &self.machine {
            Machine::Rc(rc) if self.attr.state == QpState::Rts => {
                rc.0.may_coalesce(&self.sq) && host.coalesces()
            }
            _ => false,
        }
    }

    /// Whether neither a request nor a reply waits to be sent.
    pub fn is_quiet(&self) -> bool {
        self.sq.is_empty() && !self.has_replies()
    }
}

/// Converts a one-sided request for direct execution. Returns `None` for a READ or atomic if `max_rd_atomic` is 0; the
/// requester then fails it with [`Reason::NoReadResources`](super::Reason::NoReadResources).
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
