//! A packet arrives: how it is read, and the checks that come before any transport (IBA 9.6.1).
//!
//! [`Qp::receive`] is the only entry. Most packets are of two kinds, and those have a [view](super::view) that is read faster
//! than all headers are. What follows is the same code for every view.

use super::flush::io;
use super::io::{Fatal, Io};
use super::view::View;
use super::{DropReason, Host, LARGE_SEGMENT, Machine, Qp};
use crate::Time;
use crate::ids::{Gid, PKey};
use crate::verbs::{EventKind, QpState, Transport};
use crate::wire::{Opcode, Packet, RendezvousSend, SendOnly, Service, WriteMiddle};

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Source address.
    pub sgid: Gid,
    /// Destination address.
    pub dgid: Gid,
    /// Traffic class (TOS).
    pub traffic_class: u8,
    /// Hop limit (TTL).
    pub hop_limit: u8,
    /// The slot of the process whose ring in shared memory carried the packet; `None` if a wire did.
    pub ring: Option<u8>,
}

/// Whether a packet changed what a local peer may do to the queue pair ([`Qp::terms`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Terms {
    /// They are as they were.
    Unchanged,
    /// They may differ: the state changed, or the connection was established.
    Changed,
}

impl Qp {
    /// Takes the bytes of a packet, from its BTH to its padding, that has this queue pair's number or that of a multicast group it is
    /// attached to. The clock is read only if the packet arms a timer or samples the round-trip time.
    #[inline(always)] // one caller, and then the view of small messages is never stored
    pub fn receive<H: Host>(
        &mut self,
        arrival: &Arrival,
        bytes: &[u8],
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Terms {
        match SendOnly::parse(bytes) {
            Some(view) => self.receive_request(arrival, &view, clock, host),
            None => self.receive_other(arrival, bytes, clock, host),
        }
    }

    /// Any packet but a SEND of one packet.
    #[inline(never)]
    fn receive_other<H: Host>(
        &mut self,
        arrival: &Arrival,
        bytes: &[u8],
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Terms {
        if let Some(view) = WriteMiddle::parse(bytes) {
            return self.receive_request(arrival, &view, clock, host);
        }
        if let Some(slot) = arrival.ring
            && let Some(view) = RendezvousSend::parse(bytes)
            && host.is_peer(slot)
        {
            let (packets, len) = (view.0.packets, view.1.message_len());
            if [self.attr.path_mtu.bytes(), LARGE_SEGMENT].iter().all(|&each| len.div_ceil(each) != packets) {
                let why = format_args!("QP {}: {len} bytes are not {packets} packets", self.id.qpn);
                host.dropped(DropReason::Malformed, why);
                return Terms::Unchanged;
            }
            return self.receive_request(arrival, &view, clock, host);
        }
        match Packet::parse(bytes) {
            Ok(packet) => self.receive_packet(arrival, &packet, clock, host),
            Err(malformed) => {
                let why = format_args!("malformed packet from {}: {malformed}", arrival.sgid);
                host.dropped(DropReason::Malformed, why);
                Terms::Unchanged
            }
        }
    }

    /// A packet that is no request of a reliable connection, or has no view of its own.
    fn receive_packet<H: Host>(
        &mut self,
        arrival: &Arrival,
        pkt: &Packet<'_>,
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Terms {
        let is_response = pkt.headers.bth.opcode.operation.is_response();
        if matches!(self.machine, Machine::Rc(_)) && !is_response {
            return self.receive_request(arrival, pkt, clock, host);
        }
        let Some(terms) = self.admit(arrival, pkt, host) else { return Terms::Unchanged };
        let now = clock();
        let mut io = io!(self, now, host);
        let outcome = match &mut self.machine {
            Machine::Rc(rc) => rc.0.handle_response(pkt, &mut self.sq, &mut io),
            Machine::Uc(uc) if pkt.headers.bth.opcode == Opcode::TAKEN => {
                uc.0.handle_answer(pkt, &mut io);
                Ok(())
            }
            Machine::Uc(uc) => uc.1.handle_packet(pkt, &mut self.rq, &mut io),
            Machine::Ud(ud) => ud.handle_packet(arrival, pkt, &mut self.rq, &mut io),
        };
        self.after_packet(outcome, terms, now, host)
    }

    /// A request of a reliable connection.
    #[inline(always)] // as `Inbound::accept`
    fn receive_request<V: View, H: Host>(
        &mut self,
        arrival: &Arrival,
        view: &V,
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Terms {
        let Some(terms) = self.admit(arrival, view, host) else { return Terms::Unchanged };
        let Machine::Rc(rc) = &mut self.machine else { return terms };
        let (requester, responder) = &mut **rc;
        let now = match view.piggybacked_ack() {
            Some(ack) if requester.needs_time(&ack) => clock(),
            _ => requester.last_time(),
        };
        let mut io = io!(self, now, host);
        io.may_be_large = arrival.ring.is_some() && io.id.transport == Transport::Rc;
        // A piggybacked acknowledgement answers what was sent before the request was posted.
        let outcome = match view.piggybacked_ack() {
            Some(ack) => requester.handle_ack(&ack.into(), &mut self.sq, &mut io),
            None => Ok(()),
        }
        .and_then(|()| responder.handle_request(view, &mut self.rq, &mut io));
        self.after_packet(outcome, terms, now, host)
    }

    /// What follows from a packet, whatever it was.
    #[inline(always)]
    fn after_packet<H: Host>(
        &mut self,
        outcome: Result<(), Fatal>,
        terms: Terms,
        now: Time,
        host: &mut H,
    ) -> Terms {
        if outcome.is_err() {
            // A failed receive ends the queue pair, whatever its transport.
            self.enter_error(now, host);
            return Terms::Changed;
        }
        self.report_drained(host);
        terms
    }

    /// Counts a packet if it may come in; drops it otherwise.
    #[inline(always)]
    fn admit<V: View, H: Host>(&mut self, arrival: &Arrival, view: &V, host: &mut H) -> Option<Terms> {
        if let Some(reason) = self.inadmissible(arrival, view) {
            self.drop_inadmissible(reason, arrival, &view.to_packet(), host);
            return None;
        }
        self.counters.rx_packets += u64::from(view.packets());
        self.counters.rx_bytes += view.len() as u64;
        if self.attr.state != QpState::Rtr || self.heard_peer || self.id.transport == Transport::Ud {
            return Some(Terms::Unchanged);
        }
        // The first packet of a connection tells that it is established.
        self.heard_peer = true;
        host.event(EventKind::CommEst);
        Some(Terms::Changed)
    }

    /// Why a packet may not come in, if it may not.
    #[inline(always)]
    fn inadmissible<V: View>(&self, arrival: &Arrival, view: &V) -> Option<DropReason> {
        let (opcode, transport) = (view.opcode(), self.id.transport);
        if !matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return Some(DropReason::WrongState);
        }
        let is_answer = opcode == Opcode::TAKEN && transport == Transport::Uc;
        if opcode.service != self.id.service && !is_answer {
            return Some(DropReason::WrongTransport);
        }
        if !PKey::DEFAULT.admits(view.pkey()) {
            return Some(DropReason::BadPkey);
        }
        // From here on the service of the packet is that of the queue pair, and the fast views know it.
        let is_for_initiator = opcode.operation.is_response();
        if opcode.service == Service::Xrc && is_for_initiator != (transport == Transport::XrcIni) {
            return Some(DropReason::UnexpectedOpcode);
        }
        let is_from_peer = arrival.sgid == self.route.dgid && arrival.dgid == self.route.sgid;
        (opcode.service != Service::Ud && !is_from_peer).then_some(DropReason::WrongAddress)
    }

    #[cold]
    #[inline(never)]
    fn drop_inadmissible<H: Host>(
        &self,
        reason: DropReason,
        arrival: &Arrival,
        pkt: &Packet<'_>,
        host: &mut H,
    ) {
        let (bth, qpn, transport) = (&pkt.headers.bth, self.id.qpn, self.id.transport);
        match reason {
            DropReason::WrongState => {
                let state = super::state::state_name(self.attr.state);
                host.dropped(reason, format_args!("QP {qpn} is in state {state}, it does not receive"));
            }
            DropReason::WrongTransport => host.dropped(
                reason,
                format_args!("QP {qpn} is {transport:?}, the packet is {:?}", bth.opcode.service),
            ),
            DropReason::BadPkey => host.dropped(
                reason,
                format_args!("QP {qpn}: partition key {} does not match {}", bth.pkey, PKey::DEFAULT),
            ),
            DropReason::UnexpectedOpcode => host.dropped(
                reason,
                format_args!("QP {qpn} is {transport:?}, {:?} is for the other end", bth.opcode.operation),
            ),
            _ => host.dropped(
                reason,
                format_args!(
                    "QP {qpn} is connected from {} to {}, the packet went from {} to {}",
                    self.route.sgid, self.route.dgid, arrival.sgid, arrival.dgid
                ),
            ),
        }
    }
}
