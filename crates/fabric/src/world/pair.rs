//! Flows over the queue pairs of `ferroce_proto::qp`, driven by simulated time and links.
//!
//! Each flow has two connected queue pairs. Its bytes are RDMA WRITEs, posted when the flow starts. The flow is finished
//! when the last WRITE completes at the requester. Windows, pacing, acknowledgements, CNPs and retransmissions are those of
//! the queue pairs. The NIC calls the requester when its port is free and accepts one packet per call, so that the flows
//! of a host share the port round robin.

use super::pair_host::{Frame, PairHost, Scratch};
use super::plan::entropy;
use super::{Event, World};
use crate::packet::{Kind, NONE, Packet, Slab};
use crate::workload::Flow;
use ferroce_proto::cc::{CongestionControl, Path};
use ferroce_proto::qp::state::AttrLimits;
use ferroce_proto::qp::{Arrival, MAX_MESSAGE, Qp, QpConfig, ReorderBudget};
use ferroce_proto::verbs::{
    Access, AddressVector, AttrMask as A, Mtu, Payload, QpAttr, QpCap, QpState, Route, SendFlags, SendOp,
    SendWr, Sge, Transport, WcStatus,
};
use ferroce_proto::wire::{ECN_CAPABLE, ECN_CE};
use ferroce_proto::{Gid, LKey, PdId, Psn, Qpn, RKey, Time};
use std::collections::VecDeque;
use std::sync::Arc;

/// Unused sending time that pacing compensates: the error of rounding times to nanoseconds.
const PACING_CREDIT_NS: u64 = 2;
/// Most packets that one received packet may cause: selective retransmissions, or acknowledgements and CNPs.
const MAX_REPAIRS: u32 = 1024;
/// `retry_cnt` and `rnr_retry` of the queue pairs.
const RETRIES: u8 = 7;

/// The flows over queue pairs, and their packets.
#[derive(Debug)]
pub(super) struct Pairs {
    list: Vec<Option<Box<Pair>>>,
    frames: Slab<Frame>,
    scratch: Scratch,
    reorder: Arc<ReorderBudget>,
    host: PairHost,
}

/// The two queue pairs of a flow.
#[derive(Debug)]
struct Pair {
    requester: Qp,
    responder: Qp,
    /// Bytes that the responder has received, up to the highest address written.
    delivered: u64,
    /// Selective retransmissions that wait for the port.
    repairs: VecDeque<Frame>,
    /// It is in the queue of its NIC.
    is_ready: bool,
    ect: bool,
    /// Time of the event for the deadline.
    deadline_at: u64,
    ideal_ps: u64,
}

impl Pairs {
    pub(super) fn new(flows: usize, mtu: u32) -> Pairs {
        Pairs {
            list: (0..flows).map(|_| None).collect(),
            frames: Slab::default(),
            scratch: Scratch::new(mtu),
            reorder: ReorderBudget::new(usize::MAX >> 1),
            host: PairHost::default(),
        }
    }

    /// Bytes of a flow that have arrived, while it runs.
    pub(super) fn delivered(&self, flow: u32) -> Option<u64> {
        self.list[flow as usize].as_ref().map(|pair| pair.delivered)
    }

    pub(super) fn free(&mut self, packet: &Packet) {
        self.frames.remove(packet.cause);
    }
}

/// The address of a host.
fn gid(host: u32) -> Gid {
    let [a, b, c, d] = host.to_be_bytes();
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a | 10, b, c, d])
}

/// The transport timer as the exponent of the verbs: the smallest whose time is at least `rto_ps`.
fn timeout_exponent(rto_ps: u64) -> u8 {
    (1..31).find(|exponent| 4_096_000 << exponent >= rto_ps).unwrap_or(31)
}

/// Moves a new queue pair to RTS.
fn connect(qp: &mut Qp, mtu: Mtu, timeout: u8, (from, to): (u32, u32), now: Time, host: &mut PairHost) {
    let attr = QpAttr {
        path_mtu: mtu,
        dest_qpn: qp.qpn(),
        access: Access::REMOTE_WRITE,
        av: AddressVector { dgid: gid(to), hop_limit: 64, port: 1, ..AddressVector::default() },
        port: 1,
        timeout,
        retry_cnt: RETRIES,
        rnr_retry: RETRIES,
        sq_psn: Psn::new(0),
        rq_psn: Psn::new(0),
        ..QpAttr::default()
    };
    let route = Route { sgid: gid(from), dgid: gid(to), hop_limit: 64, ..Route::default() };
    let rtr = A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER;
    let steps = [
        (QpState::Init, A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS),
        (QpState::Rtr, rtr),
        (QpState::Rts, A::SQ_PSN | A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC),
    ];
    for (state, mask) in steps {
        let route = mask.contains(A::AV).then_some(route);
        let done =
            qp.modify(&QpAttr { state, ..attr }, mask | A::STATE, route, &AttrLimits::default(), now, host);
        assert!(done.is_ok(), "a new queue pair enters {state:?}: {done:?}");
    }
}

impl World {
    /// Starts a flow over queue pairs. Returns `false` if the hosts of this world have none.
    pub(super) fn start_pair(&mut self, flow: u32, path: &Path, ideal_ps: u64) -> bool {
        let time = self.time();
        let Some(pairs) = &mut self.pairs else { return false };
        let Flow { from, to, bytes, .. } = self.flows[flow as usize];
        let mtu = Mtu::from_bytes(self.config.host.mtu).unwrap_or_default();
        let messages = bytes.div_ceil(u64::from(MAX_MESSAGE));
        let cap = QpCap { max_send_wr: messages as u32, max_send_sge: 1, ..QpCap::default() };
        let needs = self.config.control.build(path).needs();
        let mut build = |from, to| {
            let mut qp = Qp::new(QpConfig {
                qpn: Qpn::new(flow % 0xff_0000 + 16),
                transport: Transport::Rc,
                pd: PdId::default(),
                cap,
                signal_all: false,
                shared_recv: None,
                port_mtu: mtu,
                takes_large: true,
                takes_jumbo: false,
                congestion: self.config.control.build(path),
                reorder: pairs.reorder.clone(),
            });
            qp.set_pacing_credit(PACING_CREDIT_NS);
            connect(
                &mut qp,
                mtu,
                timeout_exponent(self.config.host.rto_ps),
                (from, to),
                time,
                &mut pairs.host,
            );
            qp
        };
        let mut pair = Box::new(Pair {
            requester: build(from, to),
            responder: build(to, from),
            delivered: 0,
            repairs: VecDeque::new(),
            is_ready: false,
            ect: needs.ecn_echo || needs.cnp_interval_ns.is_some(),
            deadline_at: u64::MAX,
            ideal_ps,
        });
        for message in 0..messages {
            let offset = message * u64::from(MAX_MESSAGE);
            let len = (bytes - offset).min(u64::from(MAX_MESSAGE)) as u32;
            let sges = [Sge { addr: offset, len, lkey: LKey(0) }];
            let flags = if message + 1 == messages { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = || SendWr {
                wr_id: message,
                op: SendOp::Write { addr: offset, rkey: RKey(0) },
                flags,
                payload: Payload::Sges(&sges),
                ud: None,
                srq: None,
            };
            let posted = pair.requester.post_send(wr, || time, &mut pairs.host);
            assert!(posted.is_ok(), "a new queue pair takes a WRITE: {posted:?}");
        }
        pairs.list[flow as usize] = Some(pair);
        self.ready_pair(flow);
        true
    }

    /// Puts a flow into the queue of its NIC.
    fn ready_pair(&mut self, flow: u32) {
        let Flow { from, .. } = self.flows[flow as usize];
        let Some(pair) = self.pairs.as_mut().and_then(|pairs| pairs.list[flow as usize].as_mut()) else {
            return;
        };
        if !std::mem::replace(&mut pair.is_ready, true) {
            self.hosts[from as usize].ready.push_back(flow);
        }
        self.kick_host(from);
    }

    /// The next packet of a flow, if it may send one. The port is free.
    pub(super) fn next_of_pair(&mut self, flow: u32) -> Option<u32> {
        let time = self.time();
        let Flow { from, to, priority, .. } = self.flows[flow as usize];
        let pairs = self.pairs.as_mut()?;
        let pair = pairs.list[flow as usize].as_mut()?;
        let (frame, has_more) = match pair.repairs.pop_front() {
            Some(frame) => (Some(frame), true),
            None => {
                pairs.host = std::mem::take(&mut pairs.host).with_space(1);
                pair.requester.poll_requests(time, &mut pairs.host);
                (pairs.host.frames.first().copied(), pairs.host.is_full)
            }
        };
        pair.is_ready = has_more;
        if has_more {
            self.hosts[from as usize].ready.push_back(flow);
        }
        let ect = pair.ect;
        self.arm_pair(flow);
        let frame = frame?;
        self.counters.data_packets += 1;
        self.counters.retransmissions += u64::from(frame.again);
        Some(self.insert_frame(flow, &frame, Packet { to, priority, ect, ..self.blank(flow, from) }))
    }

    /// A template for packets of a flow.
    fn blank(&self, flow: u32, from: u32) -> Packet {
        Packet {
            sent_ps: self.now,
            flow,
            seq: 0,
            cause: 0,
            to: 0,
            entropy: entropy(flow, from),
            port: 0,
            telemetry: NONE,
            bytes: 0,
            kind: Kind::Data,
            priority: 0,
            ect: false,
            ce: false,
            again: false,
        }
    }

    fn insert_frame(&mut self, flow: u32, frame: &Frame, packet: Packet) -> u32 {
        let bytes = frame.wire_bytes(self.config.host.header);
        let at = self.pairs.as_mut().map_or(NONE, |pairs| pairs.frames.insert(*frame));
        let packet = Packet { flow, cause: at, bytes, kind: frame.kind, again: frame.again, ..packet };
        self.packets.insert(packet)
    }

    /// Schedules an event for the deadline of a flow, unless an earlier one exists.
    fn arm_pair(&mut self, flow: u32) {
        let Some(pair) = self.pairs.as_mut().and_then(|pairs| pairs.list[flow as usize].as_mut()) else {
            return;
        };
        let deadlines = [pair.requester.deadline(), pair.responder.deadline()];
        let Some(at) = deadlines.into_iter().flatten().min() else { return };
        // The handler compares the deadline with the time of the event, which is never in the past.
        let (due, at) = (at.0.saturating_mul(1000), at.0.saturating_mul(1000).max(self.now));
        // A flow in the queue of its NIC whose pacing gap has passed needs no event: it sends when the port is free.
        if at < pair.deadline_at && (due > self.now || !pair.is_ready) {
            pair.deadline_at = at;
            self.events.push(at, Event::Deadline(flow));
        }
    }

    /// A deadline of a flow's queue pairs may have come.
    pub(super) fn handle_pair_deadline(&mut self, flow: u32) {
        let time = self.time();
        let Some(pairs) = &mut self.pairs else { return };
        let Some(pair) = &mut pairs.list[flow as usize] else { return };
        if pair.deadline_at != self.now {
            return; // stale: the deadline has changed
        }
        pair.deadline_at = u64::MAX;
        let is_due = pair.requester.deadline().is_some_and(|at| at <= time);
        pairs.host = std::mem::take(&mut pairs.host).with_space(0);
        pair.requester.handle_timeout(time, &mut pairs.host);
        pair.responder.handle_timeout(time, &mut pairs.host);
        self.counters.timeouts += u64::from(pairs.host.timeouts);
        if is_due {
            self.ready_pair(flow);
        }
        self.arm_pair(flow);
    }

    /// A packet of a flow over queue pairs has reached its host.
    pub(super) fn receive_frame(&mut self, host: u32, id: u32) {
        let packet = self.packets[id];
        let time = self.time();
        let Flow { from, to, bytes, then, .. } = self.flows[packet.flow as usize];
        let Some(pairs) = &mut self.pairs else { return };
        let Some(pair) = &mut pairs.list[packet.flow as usize] else {
            return self.free(id); // the flow is finished
        };
        let is_data = packet.kind == Kind::Data;
        let (here, there) = if is_data { (to, from) } else { (from, to) };
        let traffic_class = match (packet.ce, packet.ect) {
            (true, _) => ECN_CE,
            (false, ect) => {
                if ect {
                    ECN_CAPABLE
                } else {
                    0
                }
            }
        };
        let arrival = Arrival {
            sgid: gid(there),
            dgid: gid(here),
            traffic_class,
            hop_limit: 64,
            ring: None,
            age_ns: 0,
        };
        pairs.host = std::mem::take(&mut pairs.host).with_space(MAX_REPAIRS);
        let qp = if is_data { &mut pair.responder } else { &mut pair.requester };
        let bytes_of = pairs.scratch.packet(&pairs.frames[packet.cause]);
        let _ = qp.receive(&arrival, bytes_of, || time, &mut pairs.host); // the host grants every access
        if is_data && qp.has_replies() {
            qp.poll_replies(time, &mut pairs.host);
        }
        let was_complete = pair.delivered == bytes;
        pair.delivered = pair.delivered.max(pairs.host.written_to);
        let completes = !was_complete && pair.delivered == bytes;
        let completed = pairs.host.completed;
        if !is_data {
            pair.repairs.extend(pairs.host.frames.drain(..));
        }
        let ideal_ps = pair.ideal_ps;
        self.free(id);
        if is_data {
            self.send_answers(packet.flow, host, from);
        }
        match completed {
            Some(WcStatus::Success) => return self.finish(packet.flow, ideal_ps),
            Some(_) => {} // the flow stays unfinished
            None if !is_data => self.ready_pair(packet.flow),
            None => {}
        }
        self.arm_pair(packet.flow);
        if completes && then != NONE {
            self.start_flow(then);
        }
    }

    /// Sends the acknowledgements and CNPs of a responder's last call.
    fn send_answers(&mut self, flow: u32, host: u32, to: u32) {
        let priority = self.config.host.ack_priority;
        for at in 0.. {
            let frame = self.pairs.as_ref().and_then(|pairs| pairs.host.frames.get(at).copied());
            let Some(frame) = frame else { return };
            self.counters.nacks += u64::from(frame.kind == Kind::Nack);
            self.counters.cnps += u64::from(frame.kind == Kind::Cnp);
            let blank = self.blank(flow, to);
            let packet = Packet { to, priority, entropy: !blank.entropy, ..blank };
            let id = self.insert_frame(flow, &frame, packet);
            self.send_control(host, id);
        }
    }

    pub(super) fn end_pair(&mut self, flow: u32) {
        if let Some(pairs) = &mut self.pairs {
            pairs.list[flow as usize] = None;
        }
    }
}
