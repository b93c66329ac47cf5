//! Congestion notification (RoCEv2 annex A17.9): a packet that a switch marked makes the receiver send a CNP to the
//! sender, and a CNP makes the sender slow down.

use super::flush::io;
use super::receive::{Arrival, Terms};
use super::{DropReason, Host, Qp, Segment, TxPayload};
use crate::Time;
use crate::cc::CongestionControl;
use crate::ids::Psn;
use crate::verbs::{QpState, Transport};
use crate::wire::{Bth, Headers, Opcode};

/// Bits of the traffic class that ECN uses, and their value in a packet that met congestion (RFC 3168).
const ECN_BITS: u8 = 3;
const CONGESTION_EXPERIENCED: u8 = 3;

/// Reserved bytes of a CNP behind the BTH.
const RESERVED: [u8; 16] = [0; 16];

/// The notification point of a queue pair.
#[derive(Debug, Default)]
pub(super) struct NotificationPoint {
    /// A marked packet arrived that no CNP has reported.
    is_due: bool,
    sent_at: Option<Time>,
}

impl NotificationPoint {
    /// Whether a CNP is to be sent, unless the last one was sent just before.
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
    /// Records an admitted packet that a switch marked. Datagrams have no connection to slow down.
    #[cold]
    #[inline(never)]
    pub(super) fn on_marked(&mut self) {
        self.counters.ecn_marked += 1;
        self.notification.is_due |= self.id.transport != Transport::Ud;
    }

    /// Sends the CNP that is due. Within the interval after the last one, the mark is forgotten: if the congestion lasts,
    /// there will be others.
    #[cold]
    #[inline(never)]
    pub(super) fn send_cnp<H: Host>(&mut self, now: Time, host: &mut H) {
        let interval_ns = self.machine.congestion().map_or(0, |congestion| congestion.cnp_interval_ns());
        if self.notification.sent_at.is_some_and(|at| now.since_ns(at) < interval_ns) {
            self.notification.is_due = false;
            return;
        }
        let headers = Headers::new(Bth {
            becn: true,
            mig_req: false,
            ..Bth::new(Opcode::CNP, self.attr.dest_qpn, Psn::default())
        });
        let segment = Segment::unacknowledged(&headers, TxPayload::Bytes(&RESERVED));
        if io!(self, now, host).send(&segment).is_ok() {
            (self.notification.is_due, self.notification.sent_at) = (false, Some(now));
            self.counters.cnps_sent += 1;
        }
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
