//! A packet arrives: the checks that come before any transport (IBA 9.6.1).

use super::flush::io;
use super::io::Io;
use super::{DropReason, Host, Machine, Qp};
use crate::Time;
use crate::ids::{Gid, PKey};
use crate::verbs::{EventKind, QpState, Transport};
use crate::wire::{Opcode, Packet};

/// What the outer headers of a packet said.
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
}

impl Qp {
    /// A packet with this queue pair's number, or one of a multicast group it is attached to.
    pub fn handle_packet<H: Host>(&mut self, arrival: &Arrival, pkt: &Packet<'_>, now: Time, host: &mut H) {
        if !self.admits(arrival, pkt, host) {
            return;
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += pkt.payload.len() as u64;
        self.hear_peer(host);
        let mut io = io!(self, now, host);
        let turn = match &mut self.machine {
            Machine::Rc(rc) if pkt.headers.rider.is_some() => {
                // The acknowledgement is of what was sent before the request came about.
                let ridden = rc.0.handle_rider(pkt, &mut self.sq, &mut io);
                ridden.and_then(|()| rc.1.handle_request(pkt, &mut self.rq, &mut io))
            }
            Machine::Rc(rc) if pkt.headers.bth.opcode.operation.is_response() => {
                rc.0.handle_response(pkt, &mut self.sq, &mut io)
            }
            Machine::Rc(rc) => rc.1.handle_request(pkt, &mut self.rq, &mut io),
            Machine::Uc(uc) if pkt.headers.bth.opcode == Opcode::TAKEN => {
                uc.0.handle_answer(pkt, &mut io);
                Ok(())
            }
            Machine::Uc(uc) => uc.1.handle_packet(pkt, &mut self.rq, &mut io),
            Machine::Ud(ud) => ud.handle_packet(arrival, pkt, &mut self.rq, &mut io),
        };
        if turn.is_err() {
            // A failed receive ends the queue pair, whatever its transport.
            self.enter_error(now, host);
        }
        self.report_drained(host);
    }

    /// Whether it receives, and nothing is new about that: the first packet in RTR raises an event.
    #[inline]
    pub(super) fn hears_peer(&self) -> bool {
        let state = self.attr.state;
        state == QpState::Rts || (state == QpState::Rtr && self.heard_peer)
    }

    /// The first packet of a connection tells that it is established.
    pub(super) fn hear_peer<H: Host>(&mut self, host: &mut H) {
        if self.attr.state == QpState::Rtr && !self.heard_peer && self.id.transport != Transport::Ud {
            self.heard_peer = true;
            host.event(EventKind::CommEst);
        }
    }

    pub(super) fn admits<H: Host>(&self, arrival: &Arrival, pkt: &Packet<'_>, host: &mut H) -> bool {
        let (bth, qpn) = (&pkt.headers.bth, self.id.qpn);
        let state = self.attr.state;
        if !matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            host.dropped(
                DropReason::WrongState,
                format_args!("QP {qpn} is in state {}, it does not receive", super::state::state_name(state)),
            );
            return false;
        }
        let is_answer = bth.opcode == Opcode::TAKEN && self.id.transport == Transport::Uc;
        if bth.opcode.service != self.id.service() && !is_answer {
            host.dropped(
                DropReason::WrongTransport,
                format_args!("QP {qpn} is {:?}, the packet is {:?}", self.id.transport, bth.opcode.service),
            );
            return false;
        }
        if !PKey::DEFAULT.admits(bth.pkey) {
            host.dropped(
                DropReason::BadPkey,
                format_args!("QP {qpn}: partition key {} does not match {}", bth.pkey, PKey::DEFAULT),
            );
            return false;
        }
        let response = bth.opcode.operation.is_response();
        let wrong_end = match self.id.transport {
            Transport::XrcIni => !response,
            Transport::XrcTgt => response,
            _ => false,
        };
        if wrong_end {
            host.dropped(
                DropReason::UnexpectedOpcode,
                format_args!(
                    "QP {qpn} is {:?}, {:?} is for the other end",
                    self.id.transport, bth.opcode.operation
                ),
            );
            return false;
        }
        let connected = self.id.transport != Transport::Ud;
        if connected && (arrival.sgid != self.route.dgid || arrival.dgid != self.route.sgid) {
            host.dropped(
                DropReason::WrongAddress,
                format_args!(
                    "QP {qpn} is connected from {} to {}, the packet went from {} to {}",
                    self.route.sgid, self.route.dgid, arrival.sgid, arrival.dgid
                ),
            );
            return false;
        }
        true
    }
}
