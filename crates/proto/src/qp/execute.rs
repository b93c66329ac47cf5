//! Requests that are executed while they are posted.
//!
//! Most requests find nothing before them. A message of one packet is then sent first and entered into the send queue afterwards,
//! because the peer waits for the packet and not for the bookkeeping. A one-sided request to a peer on the same host is executed
//! in the peer's memory and never enters the queue. Everything else waits in the queue for [`Qp::poll_requests`], which applies the
//! same rules.

use super::flush::io;
use super::io::Io;
use super::post::signals;
use super::sq::{awaits_response, wc_opcode};
use super::{
    Attempt, Host, MAX_MESSAGE, Machine, OneSided, OneSidedKind, Qp, Segment, Side, Transmission, TxPayload,
};
use crate::Time;
use crate::ids::{PKey, Srqn};
use crate::verbs::{Completion, Payload, QpState, SendFlags, SendOp, SendWr, Sge, Transport};
use crate::wire::{Rider, SendOnly};

impl Qp {
    /// Executes a request if nothing is before it and nothing holds it back. If it is declined, the queue pair is as it was.
    #[inline(always)] // the caller often knows the operation
    pub fn try_post<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Attempt {
        // By itself, so that a WRITE does not pass the checks that only the others need.
        if let SendOp::Write { .. } = wr.op {
            return self.try_direct(wr, host);
        }
        match wr.op {
            SendOp::Send | SendOp::SendImm(_) => self.try_send(wr, clock, host),
            SendOp::Read { .. } | SendOp::Atomic { .. } => self.try_direct(wr, host),
            _ => Attempt::Declined,
        }
    }

    /// Sends a message of one packet. The clock is read when the packet has left.
    #[inline(always)]
    fn try_send<H: Host>(&mut self, wr: &SendWr<'_>, clock: impl FnOnce() -> Time, host: &mut H) -> Attempt {
        let Some((len, payload)) = self.data_of(wr) else { return Attempt::Declined };
        let mtu = self.attr.path_mtu.bytes();
        let is_up = self.attr.state == QpState::Rts && self.id.transport == Transport::Rc;
        let Machine::Rc(rc) = &mut self.machine else { return Attempt::Declined };
        let (requester, responder) = &mut **rc;
        if !is_up || len > mtu {
            return Attempt::Declined;
        }
        let payload = if len == 0 { TxPayload::None } else { payload };
        let is_signaled = signals(wr.flags, self.id.signal_all);
        let Some(plan) = requester.plan_only(wr.flags, is_signaled, mtu, &self.sq) else {
            return Attempt::Declined;
        };
        let may_carry = requester.may_carry() && len as usize + Rider::LEN <= mtu as usize;
        let headers = SendOnly {
            dest_qpn: self.attr.dest_qpn,
            pkey: PKey::DEFAULT,
            psn: plan.psn,
            ack_req: plan.ack_req,
            solicited: wr.flags.contains(SendFlags::SOLICITED),
            selective: false,
            imm: if let SendOp::SendImm(imm) = wr.op { Some(imm) } else { None },
            rider: if may_carry { responder.rider() } else { None },
        };
        let mut io = io!(self, Time::default(), host);
        let (transmission, is_acknowledged) = (Transmission::First, true);
        let segment = Segment { headers: &headers, payload, count: 1, transmission, is_acknowledged };
        if io.send(&segment).is_err() {
            return Attempt::Declined;
        }
        // The packet has left; nobody waits for what follows.
        let wqe = self.sq.push(wr, len, io.id.signal_all);
        (wqe.segment, wqe.packets) = (mtu, 1);
        io.now = clock();
        requester.on_posted(&plan, len, &mut io);
        if headers.rider.is_some() {
            responder.on_ridden(&mut io);
        }
        Attempt::Done
    }

    /// Executes a one-sided request in the memory of the peer, completion and all.
    #[inline(always)]
    fn try_direct<H: Host>(&mut self, wr: &SendWr<'_>, host: &mut H) -> Attempt {
        // What the transport does not have is refused when it is queued.
        let is_first = match self.id.transport {
            Transport::Rc => self.is_alone(),
            Transport::XrcIni => wr.srq.is_some() && self.is_alone(),
            Transport::Uc => matches!(wr.op, SendOp::Write { .. }) && self.has_drained(host),
            Transport::Ud | Transport::XrcTgt => false,
        };
        if !is_first {
            return Attempt::Declined;
        }
        let Some((len, data)) = self.data_of(wr) else { return Attempt::Declined };
        let sges = if let Payload::Sges(sges) = wr.payload { sges } else { &[] };
        let Some(request) = one_sided(&wr.op, wr.srq, data, sges, len, self.attr.max_rd_atomic) else {
            return Attempt::Declined;
        };
        if !host.try_direct(self.id.pd, &request).is_done() {
            return Attempt::Declined;
        }
        self.counters.performed += 1;
        if signals(wr.flags, self.id.signal_all) {
            let (opcode, byte_len) = (wc_opcode(&wr.op), if awaits_response(&wr.op) { len } else { 0 });
            let completion =
                Completion { wr_id: wr.wr_id, opcode, byte_len, qpn: self.id.qpn, ..Completion::default() };
            host.complete(Side::Send, completion);
        }
        Attempt::Done
    }

    /// The length and the data of a request, if [`Self::check_payload`] accepts them.
    #[inline(always)]
    fn data_of<'a>(&self, wr: &SendWr<'a>) -> Option<(u32, TxPayload<'a>)> {
        let cap = &self.attr.cap;
        let may_be_inline = !matches!(wr.op, SendOp::Read { .. } | SendOp::Atomic { .. });
        let len = match wr.payload {
            // Nearly all requests have their data in one piece, and then there is nothing to sum.
            Payload::Sges([sge]) if cap.max_send_sge > 0 && sge.len <= MAX_MESSAGE => sge.len,
            Payload::Inline(bytes) if may_be_inline && bytes.len() <= cap.max_inline_data as usize => {
                bytes.len() as u32
            }
            _ => self.check_payload(wr).ok()?,
        };
        let data = match wr.payload {
            Payload::Sges(sges) => TxPayload::Local { pd: self.id.pd, sges, offset: 0, len },
            Payload::Inline(bytes) => TxPayload::Bytes(bytes),
        };
        Some((len, data))
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

    /// The same of an unreliable connection, where no acknowledgement tells what has arrived: the host must know.
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

    /// Whether nothing waits to be sent, neither request nor reply.
    pub fn is_quiet(&self) -> bool {
        self.sq.is_empty() && !self.has_replies()
    }
}

/// The request as a host may execute it directly, if it is one-sided. With a `max_rd_atomic` of 0, packets find out what the peer
/// makes of a READ or atomic.
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
