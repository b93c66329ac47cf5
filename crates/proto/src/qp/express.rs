//! Messages of one packet, in fewer steps, and messages whose bytes are fetched.
//!
//! Nothing here is another protocol: the packet is the same, and so is all that follows from it. A message that is in order, as
//! nearly all are, is sent while it is posted and placed without the detours that packets of every kind need; anything else is left to
//! [`Qp::poll_requests`] and [`Qp::handle_packet`], as if nobody had looked at it. A message that the peer named is taken if it is in order;
//! if not, its packets will come.

use super::flush::io;
use super::io::Io;
use super::{Arrival, Host, Machine, Qp};
use crate::Time;
use crate::verbs::{QpState, Transport};
use crate::wire::{Bth, Headers, Names, Opcode, Operation, Packet, SendNamed, SendOnly, Service};

impl Qp {
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
    /// it.
    #[inline]
    pub fn handle_send_only<H: Host>(
        &mut self,
        arrival: &Arrival,
        head: &SendOnly,
        payload: &[u8],
        now: Time,
        host: &mut H,
    ) -> bool {
        let is_ours = self.hears_peer()
            && self.id.transport == Transport::Rc
            && arrival.sgid == self.route.dgid
            && arrival.dgid == self.route.sgid;
        let Machine::Rc(rc) = &mut self.machine else { return false };
        let (requester, responder) = &mut **rc;
        if !is_ours || !responder.is_next(head.psn) {
            return false;
        }
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
