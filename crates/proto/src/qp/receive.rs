//! The receive path: parsing, and the checks common to all transports (IBA 9.6.1).
//!
//! [`Qp::receive`] is the only entry point. The three most frequent packet kinds have a fast [view](super::view). The
//! code after parsing is generic over the view.

use super::flush::io;
use super::io::{Fatal, Io};
use super::notification::is_marked;
use super::rc::Requester;
use super::sq::SendQueue;
use super::view::View;
use super::{DropReason, Host, LARGE_SEGMENT, Machine, Qp};
use crate::Time;
use crate::ids::{Gid, PKey};
use crate::verbs::{EventKind, QpState, Transport};
use crate::wire::{AckOnly, Opcode, Packet, RendezvousSend, SendOnly, Service, Syndrome, WriteMiddle};

/// Addressing of a received packet.
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
    /// Slot of the process whose shared memory ring carried the packet; `None` for a network packet.
    pub ring: Option<u8>,
    /// Time from the arrival at this host to now, in nanoseconds; 0 where the link does not measure it. The RTT
    /// for congestion control excludes it: during this time the packet waited for this thread to run.
    pub age_ns: u32,
}

/// Whether a packet changed the rights of a local peer ([`Qp::terms`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Terms {
    /// The terms are unchanged.
    Unchanged,
    /// The terms may differ: the state changed, or the connection was established.
    Changed,
}

impl Qp {
    /// Handles the bytes of a packet from its BTH to its padding, addressed to this queue pair or a multicast group of
    /// it. The clock is read only if the packet arms a timer or samples the RTT.
    #[inline(always)] // so that the fast views stay in registers
    pub fn receive<H: Host>(
        &mut self,
        arrival: &Arrival,
        bytes: &[u8],
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Terms {
        if let Some(view) = SendOnly::parse(bytes)
            && (view.0.piggybacked_ack.is_none() || self.peer_extends(view.0.opcode()))
        {
            self.receive_request(arrival, &view, clock, host)
        } else if let Some(view) = WriteMiddle::parse(bytes) {
            self.receive_request(arrival, &view, clock, host)
        } else if let Some(view) = AckOnly::parse(bytes) {
            self.receive_ack(arrival, &view, clock, host)
        } else {
            self.receive_other(arrival, bytes, clock, host)
        }
    }

    /// Handles a packet that no fast view parses.
    #[inline(never)]
    fn receive_other<H: Host>(
        &mut self,
        arrival: &Arrival,
        bytes: &[u8],
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Terms {
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
        match Packet::parse_from(bytes, |opcode| self.peer_extends(opcode)) {
            Ok(packet) => self.receive_packet(arrival, &packet, clock, host),
            Err(malformed) => {
                let why = format_args!("malformed packet from {}: {malformed}", arrival.sgid);
                host.dropped(DropReason::Malformed, why);
                Terms::Unchanged
            }
        }
    }

    /// Whether the extended bit of the peer's packets with this opcode is valid. A foreign end may set reserved bits too, and
    /// its payload must not be parsed as a header.
    #[inline(always)]
    fn peer_extends(&self, opcode: Opcode) -> bool {
        match &self.machine {
            Machine::Rc(rc) if opcode.operation.is_response() => rc.0.peer_extends(),
            Machine::Rc(rc) => rc.1.peer_extends(),
            _ => false,
        }
    }

    /// Whether the peer may send jumbo packets with this opcode.
    fn exchanges_jumbo(&self, opcode: Opcode) -> bool {
        match &self.machine {
            Machine::Rc(rc) if opcode.operation.is_response() => rc.0.exchanges_jumbo(),
            Machine::Rc(rc) => rc.1.exchanges_jumbo(),
            _ => false,
        }
    }

    /// Handles a packet with parsed headers.
    fn receive_packet<H: Host>(
        &mut self,
        arrival: &Arrival,
        pkt: &Packet<'_>,
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Terms {
        let is_foreign =
            || !self.exchanges_jumbo(pkt.headers.bth.opcode) && self.inadmissible(arrival, pkt).is_none();
        if pkt.headers.bth.has_partial_icrc() && is_foreign() {
            let (qpn, from) = (self.id.qpn, arrival.sgid);
            let why = format_args!(
                "QP {qpn}: the ICRC of a packet from {from} does not cover its payload, as only that of a ferroce peer on loopback may"
            );
            host.dropped(DropReason::Malformed, why);
            return Terms::Unchanged;
        }
        if pkt.headers.bth.opcode == Opcode::CNP {
            return self.receive_cnp(arrival, clock(), host);
        }
        let is_response = pkt.headers.bth.opcode.operation.is_response();
        if matches!(self.machine, Machine::Rc(_)) && !is_response {
            return self.receive_request(arrival, pkt, clock, host);
        }
        if matches!(self.machine, Machine::Rc(_)) {
            return self.receive_response(
                arrival,
                pkt,
                |_| clock(),
                host,
                |requester, sq, io| requester.handle_response(pkt, sq, io),
            );
        }
        let Some(terms) = self.admit(arrival, pkt, host) else { return Terms::Unchanged };
        let now = clock();
        let mut io = io!(self, now, host);
        let outcome = match &mut self.machine {
            Machine::Uc(uc) if pkt.headers.bth.opcode == Opcode::UC_ACK => {
                uc.0.handle_answer(pkt, &mut io);
                Ok(())
            }
            Machine::Uc(uc) => uc.1.handle_packet(pkt, &mut self.rq, &mut io),
            Machine::Ud(ud) => ud.handle_packet(arrival, pkt, &mut self.rq, &mut io),
            Machine::Rc(_) => Ok(()),
        };
        self.after_packet(outcome, terms, now, host)
    }

    /// Handles a positive ACK.
    #[inline(never)]
    fn receive_ack<H: Host>(
        &mut self,
        arrival: &Arrival,
        view: &AckOnly,
        clock: impl FnOnce() -> Time,
        host: &mut H,
    ) -> Terms {
        let syndrome = Syndrome::Ack { credit: view.credit };
        let time = |requester: &Requester| {
            if requester.needs_time(view.psn, syndrome) { clock() } else { requester.last_time() }
        };
        self.receive_response(arrival, view, time, host, |requester, sq, io| {
            requester.handle_ack(&view.into(), sq, io)
        })
    }

    /// Handles a response to a request of an RC connection. `handle` is the handler for its kind.
    #[inline(always)]
    fn receive_response<V: View, H: Host>(
        &mut self,
        arrival: &Arrival,
        view: &V,
        time: impl FnOnce(&Requester) -> Time,
        host: &mut H,
        handle: impl FnOnce(&mut Requester, &mut SendQueue, &mut Io<'_, H>) -> Result<(), Fatal>,
    ) -> Terms {
        let Some(terms) = self.admit(arrival, view, host) else { return Terms::Unchanged };
        let Machine::Rc(rc) = &mut self.machine else { return terms };
        let now = time(&rc.0);
        if is_marked(arrival) {
            self.on_marked_response(view.opcode().operation, now);
        }
        let Machine::Rc(rc) = &mut self.machine else { return terms };
        rc.0.set_response_age(arrival.age_ns);
        let outcome = handle(&mut rc.0, &mut self.sq, &mut io!(self, now, host));
        rc.0.set_response_age(0);
        self.after_packet(outcome, terms, now, host)
    }

    /// Handles an RC request.
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
        let ack_needs_time =
            view.piggybacked_ack().is_some_and(|ack| requester.needs_time(ack.psn, ack.aeth.syndrome));
        let needs_time = ack_needs_time || responder.needs_time(view.psn());
        let now = if needs_time { clock() } else { requester.last_time() };
        let mut io = io!(self, now, host);
        io.is_large = arrival.ring.is_some() && io.id.takes_large;
        // A piggybacked ACK covers packets sent before this request.
        let outcome = match view.piggybacked_ack() {
            Some(ack) => requester.handle_ack(&ack.into(), &mut self.sq, &mut io),
            None => Ok(()),
        }
        .and_then(|()| responder.handle_request(view, &mut self.rq, &mut io));
        self.after_packet(outcome, terms, now, host)
    }

    /// Completes the handling of any packet.
    #[inline(always)]
    fn after_packet<H: Host>(
        &mut self,
        outcome: Result<(), Fatal>,
        terms: Terms,
        now: Time,
        host: &mut H,
    ) -> Terms {
        if outcome.is_err() {
            // A failed receive ends the queue pair on every transport.
            self.enter_error(now, host);
            return Terms::Changed;
        }
        self.report_drained(host);
        terms
    }

    /// Admits and counts a packet, or drops it.
    #[inline(always)]
    fn admit<V: View, H: Host>(&mut self, arrival: &Arrival, view: &V, host: &mut H) -> Option<Terms> {
        if let Some(reason) = self.inadmissible(arrival, view) {
            self.drop_inadmissible(reason, arrival, &view.to_packet(), host);
            return None;
        }
        self.counters.rx_packets += u64::from(view.packets());
        self.counters.rx_bytes += view.len() as u64;
        if is_marked(arrival) && !view.opcode().operation.is_response() {
            self.on_marked_request();
        }
        if self.attr.state != QpState::Rtr || self.has_received || self.id.transport == Transport::Ud {
            return Some(Terms::Unchanged);
        }
        // The first packet in RTR establishes the connection.
        self.has_received = true;
        host.event(EventKind::CommEst);
        Some(Terms::Changed)
    }

    /// Returns why a packet is not admitted, if so.
    #[inline(always)]
    fn inadmissible<V: View>(&self, arrival: &Arrival, view: &V) -> Option<DropReason> {
        let (opcode, transport) = (view.opcode(), self.id.transport);
        if !matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return Some(DropReason::WrongState);
        }
        let is_answer = opcode == Opcode::UC_ACK && transport == Transport::Uc;
        if opcode.service != self.id.service && !is_answer {
            return Some(DropReason::WrongTransport);
        }
        if !PKey::DEFAULT.admits(view.pkey()) {
            return Some(DropReason::BadPkey);
        }
        // From here on the packet's service equals the queue pair's; the fast views rely on it.
        let is_for_initiator = opcode.operation.is_response();
        if opcode.service == Service::Xrc && is_for_initiator != (transport == Transport::XrcIni) {
            return Some(DropReason::UnexpectedOpcode);
        }
        (opcode.service != Service::Ud && !self.is_from_peer(arrival)).then_some(DropReason::WrongAddress)
    }

    /// Whether a packet has the addresses of the connection.
    #[inline(always)]
    pub(super) fn is_from_peer(&self, arrival: &Arrival) -> bool {
        arrival.sgid == self.route.dgid && arrival.dgid == self.route.sgid
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
                host.dropped(reason, format_args!("QP {qpn} is in state {state}, which receives nothing; it must be in RTR or RTS"));
            }
            DropReason::WrongTransport => host.dropped(
                reason,
                format_args!("QP {qpn} is {transport:?}, the packet is for {:?}; both ends must have the same type", bth.opcode.service),
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
                    "QP {qpn} is connected from {} to {}, the packet went from {} to {}: the ends name different addresses, or the sender another queue pair",
                    self.route.sgid.to_ip(), self.route.dgid.to_ip(), arrival.sgid.to_ip(), arrival.dgid.to_ip()
                ),
            ),
        }
    }
}
