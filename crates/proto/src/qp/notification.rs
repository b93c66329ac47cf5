//! Congestion notification (RoCEv2 annex A17.9): a request that a switch marked makes the responder send a CNP to the
//! requester, and a CNP makes the requester slow down.

use super::receive::{Arrival, Terms};
use super::{DropReason, Host, Io, Machine, Qp, Segment, TxError, TxPayload};
use crate::Time;
use crate::cc::{CongestionControl, Controller};
use crate::ids::Psn;
use crate::verbs::{QpState, Transport};
use crate::wire::{Bth, ECN_BITS, ECN_CE, Headers, Opcode, Operation};

/// Reserved bytes of a CNP behind the BTH.
const RESERVED: [u8; 16] = [0; 16];

/// The notification point of a queue pair.
#[derive(Debug, Default)]
pub(super) struct NotificationPoint {
    interval_ns: u64,
    sent_at: Option<Time>,
}

/// Time between two CNPs of a queue pair whose congestion control does not set one: the value of the DCQCN paper.
const INTERVAL_NS: u64 = 50_000;

impl NotificationPoint {
    pub(super) fn new(congestion: &Controller) -> NotificationPoint {
        let interval_ns = congestion.needs().cnp_interval_ns.unwrap_or(INTERVAL_NS);
        NotificationPoint { interval_ns, sent_at: None }
    }

    /// Whether a mark counts. Marks within the interval after the last counted one are ignored: congestion that lasts causes
    /// further marks.
    pub(super) fn counts(&self, now: Time) -> bool {
        self.sent_at.is_none_or(|at| now.since_ns(at) >= self.interval_ns)
    }

    /// A mark counted.
    pub(super) fn on_counted(&mut self, now: Time) {
        self.sent_at = Some(now);
    }

    /// Notifies the peer of a mark, if it counts.
    pub(super) fn notify<H: Host>(&mut self, io: &mut Io<'_, H>) -> Result<(), TxError> {
        if !self.counts(io.now) {
            return Ok(());
        }
        let bth = Bth::new(Opcode::CNP, io.attr.dest_qpn, Psn::default());
        let headers = Headers::new(Bth { becn: true, mig_req: false, ..bth });
        io.send(&Segment::unacknowledged(&headers, TxPayload::Bytes(&RESERVED)))?;
        self.on_counted(io.now);
        io.counters.cnps_sent += 1;
        Ok(())
    }
}

/// Whether a switch marked the packet.
#[inline(always)]
pub(super) fn is_marked(arrival: &Arrival) -> bool {
    arrival.traffic_class & ECN_BITS == ECN_CE
}

impl Qp {
    /// Records an admitted request that a switch marked, which is answered with a CNP. Datagrams have no connection to slow down.
    #[cold]
    #[inline(never)]
    pub(super) fn on_marked_request(&mut self) {
        self.counters.ecn_marked += 1;
        match &mut self.machine {
            Machine::Rc(rc) => rc.1.on_marked(),
            Machine::Uc(uc) => uc.1.on_marked(),
            Machine::Ud(_) => {}
        }
    }

    /// Records an admitted response that a switch marked. The requester itself decides how fast READ responses come: it requests
    /// them in parts, as its window and its rate allow. Marks on ACKs only count as statistics: ACKs are few.
    #[cold]
    #[inline(never)]
    pub(super) fn on_marked_response(&mut self, operation: Operation, now: Time) {
        self.counters.ecn_marked += 1;
        if let Machine::Rc(rc) = &mut self.machine
            && operation != Operation::Acknowledge
        {
            rc.0.on_marked_response(now);
        }
    }

    /// Handles a CNP. It has a service of its own and does not belong to the packet sequence. A forged CNP with the address of the peer
    /// slows this queue pair down, at worst to the minimum rate of its congestion control.
    pub(super) fn receive_cnp<H: Host>(&mut self, arrival: &Arrival, now: Time, host: &mut H) -> Terms {
        let qpn = self.id.qpn;
        let is_connected = self.id.transport != Transport::Ud
            && matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !is_connected {
            host.dropped(DropReason::WrongState, format_args!("QP {qpn}: a CNP, but there is no connection"));
        } else if !self.is_from_peer(arrival) {
            host.dropped(
                DropReason::WrongAddress,
                format_args!(
                    "QP {qpn}: a CNP from {}, the peer is {}",
                    arrival.sgid.to_ip(),
                    self.route.dgid.to_ip()
                ),
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
