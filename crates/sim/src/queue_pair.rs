//! A handle to a queue pair, with the verbs on it.

use crate::host::SimHost;
use crate::node::{Cq, Node, Srq};
use crate::pair::{PairSetup, QKEY};
use crate::work::Wr;
use ferroce_proto::cc::{CongestionControl, Controller};
use ferroce_proto::qp::state::{AttrLimits, ModifyError};
use ferroce_proto::qp::{PostError, Qp, QpConfig, QpCounters, ReorderBudget};
use ferroce_proto::verbs::{AddressVector, AttrMask, Mtu, QpAttr, QpCap, QpState, RecvWr, Sge, Transport};
use ferroce_proto::{PdId, Psn, Qpn, Time};
use std::sync::Arc;

/// Parameters of a new queue pair.
pub struct QpSetup<'a> {
    /// Transport service.
    pub transport: Transport,
    /// Protection domain.
    pub pd: PdId,
    /// The send CQ.
    pub send_cq: &'a Cq,
    /// The receive CQ.
    pub recv_cq: &'a Cq,
    /// The shared receive queue, if any. For an XRC target: any queue of its XRC domain.
    pub srq: Option<&'a Srq>,
    /// Queue sizes.
    pub cap: QpCap,
    /// Whether every send generates a completion.
    pub signal_all: bool,
    /// Congestion window in bytes.
    pub window: u32,
    /// Largest datagram, and the path MTU below which there are no jumbo packets.
    pub port_mtu: Mtu,
    /// Whether it sends and accepts jumbo packets.
    pub takes_jumbo: bool,
}

impl QpSetup<'_> {
    pub(crate) fn build(&self, qpn: Qpn, congestion: Controller, reorder: Arc<ReorderBudget>) -> Qp {
        Qp::new(QpConfig {
            qpn,
            transport: self.transport,
            pd: self.pd,
            cap: self.cap,
            signal_all: self.signal_all,
            shared_recv: self.srq.as_ref().map(|_| self.pd),
            port_mtu: self.port_mtu,
            congestion,
            reorder,
            takes_large: true,
            takes_jumbo: self.takes_jumbo,
        })
    }
}

/// Limits of a simulated device.
pub const LIMITS: AttrLimits =
    AttrLimits { max_rd_atomic: 16, max_dest_rd_atomic: 16, pkeys: 1, gids: 1, active_mtu: Mtu::B4096 };

/// A queue pair of some node.
#[derive(Clone)]
pub struct QueuePair {
    pub(crate) node: Node,
    /// Its number.
    pub qpn: Qpn,
}

impl QueuePair {
    fn with<R>(&self, call: impl FnOnce(&mut Qp, Time, &mut SimHost<'_>) -> R) -> R {
        let mut inner = self.node.world.0.borrow_mut();
        let inner = &mut *inner;
        let now = inner.now;
        let nic = &mut inner.nics[self.node.id.0];
        nic.with_qp(now, self.qpn, &mut inner.journal, |qp, host| call(qp, now, host))
            .expect("the queue pair was destroyed")
    }

    /// Posts a send.
    pub fn post_send(&self, wr: &Wr) -> Result<(), PostError> {
        self.post_counting_clock_reads(wr).map(drop)
    }

    /// Posts a send. Returns how often that read the clock.
    pub fn post_counting_clock_reads(&self, wr: &Wr) -> Result<u32, PostError> {
        self.with(|qp, now, host| {
            let (sent, mut clock_reads) = (qp.counters().tx_packets, 0);
            let clock = || {
                clock_reads += 1;
                now
            };
            // The NIC's next step sends queued requests.
            let _ = qp.post_send(|| wr.borrow(), clock, host)?;
            if qp.counters().tx_packets > sent {
                // A request was sent: delayed ACKs need not wait any longer.
                qp.poll_replies(now, host);
            }
            Ok(clock_reads)
        })
    }

    /// Posts a send that must be accepted.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn post(&self, wr: Wr) {
        if let Err(refusal) = self.post_send(&wr) {
            panic!("post_send of {wr:?}: {refusal}");
        }
    }

    /// Posts a receive.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.with(|qp, now, host| qp.post_recv(&RecvWr { wr_id, sges }, now, host))
    }

    /// Modifies it. An address vector in the mask is resolved to a route first, as a NIC does.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        let route = mask.contains(AttrMask::AV).then(|| self.node.route_to(attr.av.dgid));
        self.with(|qp, now, host| qp.modify(attr, mask, route, &LIMITS, now, host))
    }

    /// Changes only the state.
    pub fn set_state(&self, state: QpState) -> Result<(), ModifyError> {
        self.modify(&QpAttr { state, ..QpAttr::default() }, AttrMask::STATE)
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.with(|qp, _, _| qp.state())
    }

    /// Its attributes.
    pub fn query(&self) -> QpAttr {
        self.with(|qp, _, _| qp.query())
    }

    /// Its counters.
    pub fn counters(&self) -> QpCounters {
        self.with(|qp, _, _| *qp.counters())
    }

    /// Its congestion window in bytes.
    pub fn congestion_window(&self) -> Option<u32> {
        self.with(|qp, _, _| qp.congestion().map(|congestion| congestion.window()))
    }

    /// Heap bytes that it owns.
    pub fn memory_footprint(&self) -> usize {
        self.with(|qp, _, _| qp.memory_footprint())
    }

    /// Sends posted and not completed.
    pub fn sends_outstanding(&self) -> usize {
        self.with(|qp, _, _| qp.sends_outstanding())
    }

    /// Destroys it. Outstanding work is discarded.
    pub fn destroy(&self) {
        self.node.nic(|nic| nic.qps.remove(&self.qpn));
    }

    /// Moves it from RESET to RTS.
    ///
    /// # Panics
    /// When a step is refused.
    pub fn connect(&self, setup: &PairSetup, peer: &QueuePair, sq_psn: Psn, rq_psn: Psn) {
        let attr = setup.attributes(peer, sq_psn, rq_psn);
        let transport = self.with(|qp, _, _| qp.transport());
        for (state, mask) in steps_to_rts(transport) {
            self.modify(&QpAttr { state, ..attr }, mask).expect("connect");
        }
    }
}

/// The three steps from RESET to RTS, each with the attributes it requires.
pub fn steps_to_rts(transport: Transport) -> [(QpState, AttrMask); 3] {
    use AttrMask as A;
    let connected = A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
    let (init, rtr, rts) = match transport {
        Transport::Rc => (
            A::ACCESS_FLAGS,
            connected | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER,
            A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC,
        ),
        Transport::Uc => (A::ACCESS_FLAGS, connected, A::empty()),
        Transport::Ud => (A::QKEY, A::empty(), A::empty()),
        Transport::XrcIni => {
            (A::ACCESS_FLAGS, connected, A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC)
        }
        Transport::XrcTgt => {
            (A::ACCESS_FLAGS, connected | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER, A::TIMEOUT)
        }
    };
    [
        (QpState::Init, A::STATE | A::PKEY_INDEX | A::PORT | init),
        (QpState::Rtr, A::STATE | rtr),
        (QpState::Rts, A::STATE | A::SQ_PSN | rts),
    ]
}

impl PairSetup {
    /// The attributes of a queue pair that is connected to `peer`.
    pub fn attributes(&self, peer: &QueuePair, sq_psn: Psn, rq_psn: Psn) -> QpAttr {
        QpAttr {
            path_mtu: self.mtu,
            qkey: QKEY,
            rq_psn,
            sq_psn,
            dest_qpn: peer.qpn,
            access: self.access,
            av: AddressVector { dgid: peer.node.gid(), hop_limit: 64, port: 1, ..AddressVector::default() },
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            port: 1,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            ..QpAttr::default()
        }
    }
}
