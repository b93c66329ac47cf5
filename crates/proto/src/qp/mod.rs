//! The queue pair: a state machine. Its input is work requests, packets and time; its output is packets, completions and
//! deadlines.
//!
//! # How to drive a [`Qp`]
//! 1. **In:** [`Qp::modify`], [`Qp::post_send`], [`Qp::post_recv`], [`Qp::receive`] for every packet with this
//!    QP's number, [`Qp::handle_timeout`] when [`Qp::deadline`] has passed.
//! 2. **Out:** after each of these, call [`Qp::poll_replies`] and [`Qp::poll_requests`] until the host is full or they
//!    stop transmitting. Replies may be delayed briefly, so that an ACK can be piggybacked. Then read [`Qp::deadline`]
//!    again: every call can change it.
//!
//! Any of these calls may deliver completions and events through the [`Host`]. No call blocks, allocates on the data
//! path, or reads a clock.
//!
//! | module | question |
//! |---|---|
//! | [`state`] | which `modify` is allowed |
//! | `rc`, `uc`, `ud` | the transports |
//! | `inbound` | the checks on a SEND or WRITE coming in, shared by RC and UC |
//! | `view` | a packet as those checks read it |
//! | `segment` | cutting a message into packets; what the host receives |
//! | `local` | requests that execute locally |
//! | `sq`, `rq` | the queues |
//! | `post`, `execute`, `modify`, `receive`, `drive`, `flush` | the calls |
//! | `notification` | marked packets and congestion notifications |
//! | `reason`, `refusal` | why a completion failed, why a request was refused |
//! | `host` | the interface to the NIC |
//! | `history` | the events that the host may keep |

mod counters;
mod drive;
mod execute;
mod flush;
mod history;
mod host;
mod inbound;
mod io;
mod local;
mod modify;
mod notification;
mod post;
mod rc;
mod reason;
mod receive;
mod refusal;
mod reorder;
mod rq;
mod segment;
mod sq;
pub mod state;
mod uc;
mod ud;
mod view;
mod waiting;

pub use counters::QpCounters;
pub use history::HistoryEvent;
pub use host::{
    Attempt, DropReason, Egress, Events, Host, HostServices, JUMBO_SEGMENT, LARGE_SEGMENT, Memory, OneSided,
    OneSidedKind, Placement, Side, TxError, TxPayload,
};
pub use post::{PostError, Posted};
pub use rc::REPORT_LEN;
pub use reason::Reason;
pub use receive::{Arrival, Terms};
pub use refusal::RefusalReason;
pub use reorder::ReorderBudget;
pub use rq::{RecvQueue, RecvWqe};
pub use segment::{Segment, Transmission, WriteHeaders};
pub use waiting::Waiting;

use crate::cc::{Controller, FixedWindow};
use crate::ids::{PdId, Qpn};
use crate::verbs::{Access, Mtu, QpAttr, QpCap, QpState, Route, SendFlags, Transport};
use crate::wire::Service;
use alloc::boxed::Box;
use alloc::sync::Arc;
pub(crate) use flush::{flush_one, flush_queued_recvs, flush_queued_sends, io};
pub(crate) use inbound::{Inbound, Refusal};
pub(crate) use io::{Identity, Io};
pub(crate) use local::execute;
use notification::NotificationPoint;
pub(crate) use post::{check_payload, queue_recv};
pub(crate) use sq::{SendQueue, SendWqe};
pub(crate) use view::MessagePart;

pub use crate::wire::MAX_MESSAGE;

/// Parameters of a new queue pair.
#[derive(Debug)]
pub struct QpConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Transport service.
    pub transport: Transport,
    /// Protection domain.
    pub pd: PdId,
    /// Queue sizes.
    pub cap: QpCap,
    /// Whether every send generates a completion.
    pub signal_all: bool,
    /// Protection domain of the shared receive queue, if receives come from one. Their memory belongs to that domain.
    pub shared_recv: Option<PdId>,
    /// Largest datagram: the active MTU of the port, even if a path carries more.
    pub port_mtu: Mtu,
    /// Congestion control of the requester.
    pub congestion: Controller,
    /// Memory for out-of-order packets, shared by the queue pairs of a NIC.
    pub reorder: Arc<ReorderBudget>,
    /// Whether packets through shared memory may be longer than the path MTU.
    pub takes_large: bool,
    /// Whether packets of the wire may be longer than the path MTU, in both directions, if the peer and the path allow it and
    /// the queue pair's path MTU is that of the port.
    pub takes_jumbo: bool,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    id: Identity,
    attr: QpAttr,
    route: Route,
    sq: SendQueue,
    rq: RecvQueue,
    machine: Machine,
    counters: QpCounters,
    /// Whether a packet arrived in RTR; the first one raises an event.
    has_received: bool,
    drain_reported: bool,
}

#[derive(Debug)]
enum Machine {
    Rc(Box<(rc::Requester, rc::Responder)>),
    Uc(Box<(uc::Sender, uc::Receiver)>),
    Ud(ud::Datagrams),
}

impl Machine {
    fn new(transport: Transport, congestion: Controller) -> Machine {
        let notification = NotificationPoint::new(&congestion);
        match transport {
            Transport::Rc | Transport::XrcIni | Transport::XrcTgt => {
                Machine::Rc(Box::new((rc::Requester::new(congestion), rc::Responder::new(notification))))
            }
            Transport::Uc => {
                Machine::Uc(Box::new((uc::Sender::new(congestion), uc::Receiver::new(notification))))
            }
            Transport::Ud => Machine::Ud(ud::Datagrams::default()),
        }
    }

    /// The congestion control of the transports that have one.
    fn congestion(&mut self) -> Option<&mut Controller> {
        match self {
            Machine::Rc(rc) => Some(rc.0.congestion()),
            Machine::Uc(uc) => Some(uc.0.congestion()),
            Machine::Ud(_) => None,
        }
    }
}

impl Qp {
    /// A queue pair in RESET.
    pub fn new(config: QpConfig) -> Self {
        let id = Identity::new(&config);
        Qp {
            attr: QpAttr { cap: config.cap, path_mtu: config.port_mtu, ..QpAttr::default() },
            route: Route::default(),
            sq: SendQueue::new(&config.cap, config.transport),
            rq: RecvQueue::for_qp(&config.cap, config.shared_recv.is_some() || config.transport.is_xrc()),
            machine: Machine::new(config.transport, config.congestion),
            id,
            counters: QpCounters::default(),
            has_received: false,
            drain_reported: false,
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.id.qpn
    }
    /// Its transport.
    pub fn transport(&self) -> Transport {
        self.id.transport
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.attr.state
    }
    /// Whether every send generates a completion.
    pub fn signals_all(&self) -> bool {
        self.id.signal_all
    }
    /// Its attributes, as they were set.
    pub fn query(&self) -> QpAttr {
        let state = self.attr.state;
        let sq_draining = state == QpState::Sqd && !self.is_drained();
        QpAttr { cur_state: state, sq_draining, ..self.attr }
    }

    /// The sizes of its queues.
    pub fn cap(&self) -> &QpCap {
        &self.attr.cap
    }
    /// Route of its packets (connected transports).
    pub fn route(&self) -> &Route {
        &self.route
    }
    /// The peer of an active connection. `None` for an XRC target, which does not send.
    pub fn peer(&self) -> Option<Qpn> {
        let is_up = matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let may_send = matches!(self.id.transport, Transport::Rc | Transport::Uc | Transport::XrcIni);
        (is_up && may_send).then_some(self.attr.dest_qpn)
    }
    /// The service of its packets.
    pub fn service(&self) -> Service {
        self.id.service
    }
    /// Rights, domain and peer that a local peer needs to execute one-sided operations directly. `None` unless the
    /// connection accepts requests. In RTR, a packet must have arrived first.
    pub fn terms(&self) -> Option<(Access, PdId, Qpn)> {
        let takes = match self.attr.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => self.has_received,
            _ => false,
        };
        let takes = takes && matches!(self.id.transport, Transport::Rc | Transport::Uc | Transport::XrcTgt);
        takes.then_some((self.direct_access(), self.id.pd, self.attr.dest_qpn))
    }
    /// Rights that the peer may use directly. Without READ resources, READ and atomic rights are removed.
    fn direct_access(&self) -> Access {
        let answered = Access::REMOTE_READ.union(Access::REMOTE_ATOMIC);
        if self.attr.max_dest_rd_atomic > 0 {
            self.attr.access
        } else {
            self.attr.access.difference(answered)
        }
    }
    /// Its counters.
    pub fn counters(&self) -> &QpCounters {
        &self.counters
    }
    /// Its congestion control; `None` for datagrams.
    pub fn congestion(&self) -> Option<&Controller> {
        match &self.machine {
            Machine::Rc(rc) => Some(rc.0.cc()),
            Machine::Uc(uc) => Some(uc.0.cc()),
            Machine::Ud(_) => None,
        }
    }
    /// Replaces the congestion control. Returns `false` unless the queue pair is in RESET.
    pub fn set_congestion(&mut self, congestion: Controller) -> bool {
        let may_change = self.attr.state == QpState::Reset;
        if may_change {
            self.renew_machine(congestion);
        }
        may_change
    }
    /// A machine without history. The pacing credit stays: it depends on the host's clock, not on the connection.
    fn renew_machine(&mut self, congestion: Controller) {
        let mut renewed = Machine::new(self.id.transport, congestion);
        if let (Machine::Rc(old), Machine::Rc(new)) = (&self.machine, &mut renewed) {
            new.0.set_pacing_credit(old.0.pacing_credit_ns());
        }
        self.machine = renewed;
    }
    /// Sets how much unused sending time pacing may make up for, in nanoseconds. Threads wake up late; a simulated clock does not.
    pub fn set_pacing_credit(&mut self, credit_ns: u64) {
        if let Machine::Rc(rc) = &mut self.machine {
            rc.0.set_pacing_credit(credit_ns);
        }
    }
    /// Sends posted and not completed.
    #[inline]
    pub fn sends_outstanding(&self) -> usize {
        self.sq.outstanding()
    }
    /// Sends that can be posted before the queue is full.
    pub fn send_room(&self) -> usize {
        self.sq.depth() - self.sq.outstanding()
    }
    /// Those of them that generate a completion.
    pub fn signaled_outstanding(&self) -> usize {
        self.sq.iter().filter(|wqe| wqe.signaled).count()
    }
    /// Whether a request with these flags generates a completion.
    pub fn signals(&self, flags: SendFlags) -> bool {
        post::signals(flags, self.id.signal_all)
    }
    /// The congestion window in bytes and the packets in flight; zeros where there is no window.
    pub fn window(&self) -> (u32, u32) {
        match &self.machine {
            Machine::Rc(rc) if matches!(self.attr.state, QpState::Rts | QpState::Sqd) => {
                (rc.0.window_bytes(), rc.0.in_flight())
            }
            _ => (0, 0),
        }
    }
    /// Receives posted and not consumed.
    pub fn recvs_waiting(&self) -> usize {
        self.rq.len()
    }
    /// Heap bytes owned by this queue pair.
    pub fn memory_footprint(&self) -> usize {
        let machine = match &self.machine {
            Machine::Rc(m) => size_of_val(&**m) + m.1.heap_bytes(),
            Machine::Uc(m) => size_of_val(&**m),
            Machine::Ud(ud) => ud.heap_bytes(),
        };
        machine + self.sq.memory_footprint() + self.rq.memory_footprint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pacing_credit_survives_a_reset_and_another_congestion_control() {
        let congestion = || FixedWindow { bytes: 4096 }.into();
        let mut qp = Qp::new(QpConfig {
            qpn: Qpn::new(17),
            transport: Transport::Rc,
            pd: PdId::default(),
            cap: QpCap::default(),
            signal_all: false,
            shared_recv: None,
            port_mtu: Mtu::B1024,
            congestion: congestion(),
            reorder: ReorderBudget::new(0),
            takes_large: true,
            takes_jumbo: true,
        });
        let credit_ns = |qp: &Qp| match &qp.machine {
            Machine::Rc(rc) => rc.0.pacing_credit_ns(),
            _ => panic!("a reliable connection"),
        };
        qp.set_pacing_credit(7);
        qp.retire();
        assert_eq!(credit_ns(&qp), 7, "after a reset");
        assert!(qp.set_congestion(congestion()));
        assert_eq!(credit_ns(&qp), 7, "with another congestion control");
    }
}
