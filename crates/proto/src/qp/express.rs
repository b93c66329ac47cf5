//! Messages of one packet and packets from the middle of WRITEs, in fewer steps, and messages whose bytes are fetched.
//!
//! Nothing here is another protocol: the packet is the same, and so is all that follows from it. A message that is in order, as
//! nearly all are, is sent while it is posted and placed without the detours that packets of every kind need; anything else is left to
//! [`Qp::poll_requests`] and [`Qp::handle_packet`], as if nobody had looked at it. A message that the peer named is taken if it is in order;
//! if not, its packets will come.

use super::flush::io;
use super::io::Io;
use super::post::signals;
use super::{Arrival, Host, Machine, Qp, TxPayload};
use crate::Time;
use crate::verbs::{Payload, QpState, SendFlags, SendOp, SendWr, Transport};
use crate::wire::{
    Bth, Headers, Names, Opcode, Operation, Packet, Rider, SendNamed, SendOnly, Service, WriteMiddle,
};

/// A message of data in one piece: what programs post one at a time while somebody waits for it.
#[derive(Clone, Copy, Debug)]
pub struct PlainSend<'a> {
    /// The caller's number for it.
    pub wr_id: u64,
    /// Modifiers.
    pub flags: SendFlags,
    /// Immediate data, in host order.
    pub imm: Option<u32>,
    /// Inline data, or one entry.
    pub data: Payload<'a>,
}

impl<'a> PlainSend<'a> {
    /// The request, if it is such a message. That its data is in one piece is looked at later.
    #[inline(always)]
    pub fn of(wr: &SendWr<'a>) -> Option<PlainSend<'a>> {
        let imm = match wr.op {
            SendOp::Send => None,
            SendOp::SendImm(imm) => Some(imm),
            _ => return None,
        };
        Some(PlainSend { wr_id: wr.wr_id, flags: wr.flags, imm, data: wr.payload })
    }
}

impl Qp {
    /// Posts a message and sends it, if it is one of one packet that nothing holds back, and the host has an express way: what
    /// [`Qp::post_send`] and [`Qp::send_express`] do, in another order. The peer waits for the packet and not for our books, so those are kept
    /// once it is out, and `now` is asked then. False: nothing was done.
    #[inline(always)] // one caller each, who knows most of the request
    pub fn send_at_once<H: Host>(
        &mut self,
        send: PlainSend<'_>,
        host: &mut H,
        now: impl FnOnce() -> Time,
    ) -> bool {
        let (len, payload) = match send.data {
            Payload::Sges(sges @ [sge]) if self.attr.cap.max_send_sge > 0 => {
                (sge.len, TxPayload::Local { pd: self.id.pd, sges, offset: 0, len: sge.len })
            }
            Payload::Inline(bytes) if bytes.len() <= self.attr.cap.max_inline_data as usize => {
                (bytes.len() as u32, TxPayload::Bytes(bytes))
            }
            _ => return false,
        };
        let (mtu, is_signaled) = (self.attr.path_mtu.bytes(), signals(send.flags, self.id.signal_all));
        let is_up = self.attr.state == QpState::Rts && self.id.transport == Transport::Rc;
        let Machine::Rc(rc) = &mut self.machine else { return false };
        let (requester, responder) = &mut **rc;
        if !is_up || len == 0 || len > mtu || !requester.may_send_at_once(send.flags, mtu, &self.sq) {
            return false;
        }
        let ack_req = is_signaled || requester.wants_ack_at_once(mtu, &self.sq);
        let may_carry = requester.may_carry() && len as usize + Rider::LEN <= mtu as usize;
        let rider = if may_carry { responder.rider() } else { None };
        let solicited = send.flags.contains(SendFlags::SOLICITED);
        let (dest_qpn, psn) = (self.attr.dest_qpn, requester.next_psn());
        let head = SendOnly { dest_qpn, psn, ack_req, solicited, imm: send.imm, rider };
        let (bytes, head_len) = head.to_bytes(len as usize);
        if !host.express(&self.route, &bytes[..head_len], payload) {
            return false;
        }
        // It is out; from here on nobody waits.
        let op = send.imm.map_or(SendOp::Send, SendOp::SendImm);
        let wr = SendWr { wr_id: send.wr_id, op, flags: send.flags, payload: send.data, ud: None, srq: None };
        let wqe = self.sq.push(&wr, len, self.id.signal_all);
        (wqe.segment, wqe.packets) = (mtu, 1);
        let mut io = io!(self, now(), host);
        requester.on_sent_at_once(len, ack_req, &mut io);
        if rider.is_some() {
            responder.on_ridden(&mut io);
        }
        true
    }

    /// Sends the request that was just posted, if it is a message of one packet, nothing waits before it, and the host has an express
    /// way. Otherwise it waits for [`Qp::poll_requests`].
    #[inline]
    pub fn send_express<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.attr.state != QpState::Rts || self.id.transport != Transport::Rc {
            return;
        }
        let mut io = io!(self, now, host);
        let Machine::Rc(rc) = &mut self.machine else { return };
        let (requester, responder) = &mut **rc;
        let rider = if requester.may_carry() { responder.rider() } else { None };
        io.rider = rider;
        requester.send_express(&mut self.sq, &mut io);
        if io.rider != rider {
            responder.on_ridden(&mut io);
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

    /// Takes a message of one packet, if all about it is in order. False: it is as if it had not come, and [`Qp::handle_packet`] takes
    /// it. The time is asked for only if something is under way whose timer must be set.
    #[inline(always)] // one caller, and then its parts are one piece
    pub fn handle_send_only<H: Host>(
        &mut self,
        arrival: &Arrival,
        head: &SendOnly,
        payload: &[u8],
        now: impl FnOnce() -> Time,
        host: &mut H,
    ) -> bool {
        let is_ours = self.is_from_peer(arrival);
        let Machine::Rc(rc) = &mut self.machine else { return false };
        let (requester, responder) = &mut **rc;
        if !is_ours || !responder.is_next(head.psn) {
            return false;
        }
        let needs_time = head.rider.is_some_and(|rider| !requester.is_timeless(rider.psn));
        let now = if needs_time { now() } else { requester.last_time() };
        let mut io = io!(self, now, host);
        if let Some(rider) = head.rider
            && !requester.on_plain_ack(rider.psn, &mut self.sq, &mut io)
        {
            return false;
        }
        if !responder.on_send_only(head, payload, &mut self.rq, &mut io) {
            return false;
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += payload.len() as u64;
        true
    }

    /// Whether it is a reliable connection that is up, and the packet came from its peer.
    #[inline(always)]
    fn is_from_peer(&self, arrival: &Arrival) -> bool {
        self.hears_peer()
            && self.id.transport == Transport::Rc
            && arrival.sgid == self.route.dgid
            && arrival.dgid == self.route.sgid
    }

    /// Takes a packet from the middle of a WRITE, if all about it is in order. False: as with [`Qp::handle_send_only`].
    #[inline]
    pub fn handle_write_middle<H: Host>(
        &mut self,
        arrival: &Arrival,
        head: &WriteMiddle,
        payload: &[u8],
        now: Time,
        host: &mut H,
    ) -> bool {
        if !self.is_from_peer(arrival) {
            return false;
        }
        let Machine::Rc(rc) = &mut self.machine else { return false };
        if !rc.1.on_write_middle(head, payload, &mut io!(self, now, host)) {
            return false;
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += payload.len() as u64;
        true
    }

    /// Takes a message that the peer, which the caller knows to be the sender, named.
    pub fn handle_named<H: Host>(
        &mut self,
        arrival: &Arrival,
        head: &SendNamed,
        names: &Names,
        now: Time,
        host: &mut H,
    ) {
        let operation = if head.imm.is_some() { Operation::SendOnlyImm } else { Operation::SendOnly };
        let opcode = Opcode::new(Service::Rc, operation);
        let mut headers = Headers::new(Bth::new(opcode, head.dest_qpn, head.psn));
        headers.rider = head.rider;
        let pkt = Packet { headers, payload: &[] };
        if !self.admits(arrival, &pkt, host) {
            return;
        }
        self.hear_peer(host);
        let mut io = io!(self, now, host);
        let Machine::Rc(rc) = &mut self.machine else { return };
        let (requester, responder) = &mut **rc;
        let ridden = requester.handle_rider(&pkt, &mut self.sq, &mut io);
        let turn = ridden.and_then(|()| responder.handle_named(head, names, &pkt, &mut self.rq, &mut io));
        if turn.is_err() {
            self.enter_error(now, host);
        }
        self.report_drained(host);
    }
}
