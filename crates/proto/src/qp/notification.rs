//! Congestion notification (RoCEv2 annex A17.9): a packet that a switch marked makes the receiver send a CNP to the
//! sender, and a CNP makes the sender slow down.

use super::flush::io;
use super::receive::{Arrival, Terms};
use super::{DropReason, Host, Machine, Qp, Segment, TxPayload};
use crate::Time;
use crate::cc::CongestionControl;
use crate::ids::Psn;
use crate::verbs::{QpState, Transport};
use crate::wire::{Bth, Headers, Opcode, Operation};

/// Bits of the traffic class that ECN uses, and their value in a packet that met congestion (RFC 3168).
const ECN_BITS: u8 = 3;
const CONGESTION_EXPERIENCED: u8 = 3;

/// Reserved bytes of a CNP behind the BTH.
const RESERVED: [u8; 16] = [0; 16];

/// The notification point of a queue pair.
#[derive(Debug, Default)]
pub(super) struct NotificationPoint {
    /// A marked packet arrived that was not reported.
    is_due: bool,
    /// It was a response, whose rate is that of the requests.
    is_of_response: bool,
    /// Time of the last report.
    reported_at: Option<Time>,
}

impl NotificationPoint {
    /// Whether [`Qp::report_mark`] is to be called.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }
}

/// Whether a switch marked the packet.
#[inline(always)]
pub(super) fn is_marked(arrival: &Arrival) -> bool {
    arrival.traffic_class & ECN_BITS == CONGESTION_EXPERIENCED
}

impl Qp {
    /// Records an admitted packet that a switch marked. Datagrams have no connection to slow down, and ACKs are few.
    #[cold]
    #[inline(never)]
    pub(super) fn on_marked(&mut self, opcode: Opcode) {
        self.counters.ecn_marked += 1;
        if self.id.transport == Transport::Ud || opcode.operation == Operation::Acknowledge {
            return;
        }
        self.notification.is_due = true;
        self.notification.is_of_response = opcode.operation.is_response();
        if let Machine::Rc(rc) = &mut self.machine
            && !self.notification.is_of_response
        {
            rc.1.on_marked();
        }
    }

    /// Reports a mark: to the peer by a CNP, or to the own congestion control if that decides how fast the marked packets come. Within the
    /// interval after the last report the mark is forgotten: if the congestion lasts, there will be others.
    #[cold]
    #[inline(never)]
    pub(super) fn report_mark<H: Host>(&mut self, now: Time, host: &mut H) {
        let Some(congestion) = self.machine.congestion() else { return };
        let interval_ns = congestion.cnp_interval_ns();
        if self.notification.reported_at.is_some_and(|at| now.since_ns(at) < interval_ns) {
            self.notification.is_due = false;
            return;
        }
        if self.notification.is_of_response {
            // READs are requested in parts, as window and rate of this end allow.
            congestion.on_cnp(now);
        } else if !self.send_cnp(now, host) {
            return;
        }
        (self.notification.is_due, self.notification.reported_at) = (false, Some(now));
    }

    /// Sends a CNP. Returns whether the link took it.
    fn send_cnp<H: Host>(&mut self, now: Time, host: &mut H) -> bool {
        let bth = Bth::new(Opcode::CNP, self.attr.dest_qpn, Psn::default());
        let headers = Headers::new(Bth { becn: true, mig_req: false, ..bth });
        let segment = Segment::unacknowledged(&headers, TxPayload::Bytes(&RESERVED));
        let is_sent = io!(self, now, host).send(&segment).is_ok();
        self.counters.cnps_sent += u64::from(is_sent);
        is_sent
    }

    /// Handles a CNP. It has a service of its own and is no part of the packet sequence. Whoever forges the address of the peer can slow
    /// this queue pair down, to the minimum rate of its congestion control.
    pub(super) fn receive_cnp<H: Host>(&mut self, arrival: &Arrival, now: Time, host: &mut H) -> Terms {
        let qpn = self.id.qpn;
        let is_connected = self.id.transport != Transport::Ud
            && matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !is_connected {
            host.dropped(DropReason::WrongState, format_args!("QP {qpn}: a CNP, but there is no connection"));
        } else if !self.is_from_peer(arrival) {
            host.dropped(
                DropReason::WrongAddress,
                format_args!("QP {qpn}: a CNP from {}, the peer is {}", arrival.sgid, self.route.dgid),
            );
        } else {
            self.counters.rx_packets += 1;
            self.counters.cnps_received += 1;
            if let Some(congestion) = self.machine.congestion() {
                congestion.on_cnp(now);
            }
        }
        Terms::Unchanged
    }
}
