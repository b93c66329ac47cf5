//! Queue pairs for raw packets.

use super::flow::{Destination, Flow, FlowKind, FlowRule};
use super::frame::MIN_FRAME;
use super::port::RawPort;
use super::queue::{Phase, RawQueue, Size, WorkQueue};
use super::spread::{RxHash, Spread};
use crate::error::Error;
use crate::lock::Mutex;
use crate::objects::{Pd, Qp, QpInit};
use crate::queues::CqCore;
use ferroce_proto::Qpn;
use ferroce_proto::qp::PostError;
use ferroce_proto::qp::state::ModifyError;
use ferroce_proto::verbs::{
    AttrMask, Completion, Payload, QpAttr, QpCap, QpState, RecvWr, SendFlags, SendOp, SendWr, Transport,
    WcOpcode, WcStatus,
};
use std::sync::Arc;

/// The part of a queue pair that is about frames.
pub(crate) struct RawQp {
    port: Arc<RawPort>,
    pd: Arc<Pd>,
    qpn: Qpn,
    send_cq: Arc<CqCore>,
    signal_all: bool,
    to: Destination,
    attr: Mutex<QpAttr>,
    /// A frame while it is put together.
    frame: Mutex<Vec<u8>>,
}

impl Pd {
    /// Makes a queue pair for raw packets, in RESET; needs CAP_NET_RAW. It receives what its flows say.
    pub fn create_raw_qp(self: &Arc<Self>, init: &QpInit<'_>) -> Result<Qp, Error> {
        let (port, mut qp, cap) = self.raw_parts(init)?;
        let srq = init.srq.map(|srq| srq.core.clone());
        let size = Size { max_wr: cap.max_recv_wr, max_sge: cap.max_recv_sge };
        let queue = RawQueue::new(self, init.recv_cq.core.clone(), srq, qp.qpn(), &size);
        qp.raw = Some(RawQp::new(port, self, &qp, init, cap, Destination::Queue(queue)));
        Ok(qp)
    }

    /// Makes a queue pair that receives raw packets into the queues of a table. It cannot send; `init` is there for its
    /// completion queues, which are not used.
    pub fn create_spread_qp(
        self: &Arc<Self>,
        init: &QpInit<'_>,
        table: &[Arc<WorkQueue>],
        hash: RxHash,
    ) -> Result<Qp, Error> {
        let spread = Spread::new(table, hash)?;
        let (port, mut qp, _) = self.raw_parts(init)?;
        let to = Destination::Spread(Arc::new(spread));
        qp.raw = Some(RawQp::new(port, self, &qp, init, QpCap::default(), to));
        Ok(qp)
    }

    /// The socket, a number, and the sizes checked.
    fn raw_parts(self: &Arc<Self>, init: &QpInit<'_>) -> Result<(Arc<RawPort>, Qp, QpCap), Error> {
        self.nic.alive()?;
        let port = self.nic.raw_port()?;
        let none = QpInit { transport: Transport::Ud, ..*init };
        // A datagram queue pair that never leaves RESET keeps the number, and checks what every queue pair must be.
        let qp = self.create_qp(&none)?;
        let cap = qp.core.machine.lock().query().cap;
        Ok((port, qp, cap))
    }
}

impl RawQp {
    fn new(
        port: Arc<RawPort>,
        pd: &Arc<Pd>,
        qp: &Qp,
        init: &QpInit<'_>,
        cap: QpCap,
        to: Destination,
    ) -> RawQp {
        RawQp {
            port,
            pd: pd.clone(),
            qpn: qp.qpn(),
            send_cq: init.send_cq.core.clone(),
            signal_all: init.signal_all,
            to,
            attr: Mutex::new(QpAttr { cap, ..QpAttr::default() }),
            frame: Mutex::default(),
        }
    }

    pub(crate) fn query(&self) -> QpAttr {
        *self.attr.lock()
    }

    /// The table of states of raw packets is short: nothing but the port is ever set.
    pub(crate) fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        let mut now = self.attr.lock();
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != now.state {
            let (claimed, actual) = (attr.cur_state, now.state);
            return Err(ModifyError::WrongCurrentState { claimed, actual }.into());
        }
        let (from, to) = (now.state, if mask.contains(AttrMask::STATE) { attr.state } else { now.state });
        let needed = match (from, to) {
            (QpState::Reset, QpState::Init) => AttrMask::PORT,
            (QpState::Init, QpState::Init | QpState::Rtr)
            | (QpState::Rtr | QpState::Rts | QpState::Sqd, QpState::Rts)
            | (QpState::Rts | QpState::Sqd, QpState::Sqd)
            | (_, QpState::Reset | QpState::Err) => AttrMask::empty(),
            _ => return Err(ModifyError::NoSuchTransition { from, to }.into()),
        };
        let given = mask - (AttrMask::STATE | AttrMask::CUR_STATE);
        let allowed = if to == QpState::Init { AttrMask::PORT } else { AttrMask::empty() };
        if !given.contains(needed) {
            return Err(ModifyError::Missing(needed).into());
        }
        if !allowed.contains(given) {
            return Err(ModifyError::NotAllowed(given - allowed).into());
        }
        if given.contains(AttrMask::PORT) {
            if attr.port != 1 {
                let (attribute, value, limit) = ("port_num", attr.port.into(), 1);
                return Err(ModifyError::OutOfRange { attribute, value, limit }.into());
            }
            now.port = attr.port;
        }
        now.state = to;
        drop(now);
        self.follow(to);
        Ok(())
    }

    fn follow(&self, state: QpState) {
        if state == QpState::Reset {
            self.send_cq.purge(self.qpn);
        }
        let Destination::Queue(queue) = &self.to else { return };
        queue.enter(match state {
            QpState::Reset => Phase::Closed,
            QpState::Init => Phase::Filling,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe => Phase::Open,
            QpState::Err => Phase::Broken,
        });
    }

    pub(crate) fn post_recv_each<R>(
        &self,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        match &self.to {
            Destination::Queue(queue) => queue.post_each(fill),
            Destination::Spread(_) => fill(&mut |_| Err(PostError::HasSharedQueue)),
        }
    }

    /// Each frame is on its way, or lost, when this returns; so there is never one outstanding.
    #[cold] // beside the transports, which share its entry
    pub(crate) fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let mut frame = self.frame.lock();
        let (state, cap) = {
            let attr = self.attr.lock();
            (attr.state, attr.cap)
        };
        if wr.op != SendOp::Send || matches!(self.to, Destination::Spread(_)) {
            return Err(PostError::NotOnThisTransport(Transport::Ud));
        }
        let (given, max) = match wr.payload {
            Payload::Sges(sges) => (sges.len(), cap.max_send_sge as usize),
            Payload::Inline(bytes) => (bytes.len(), cap.max_inline_data as usize),
        };
        match wr.payload {
            Payload::Sges(_) if given > max => return Err(PostError::TooManySges { given, max }),
            Payload::Inline(_) if given > max => return Err(PostError::InlineTooLong { given, max }),
            _ => {}
        }
        let status = match state {
            QpState::Rts | QpState::Sqd => self.transmit(&mut frame, &wr.payload),
            QpState::Err | QpState::Sqe => WcStatus::WrFlushErr,
            _ => return Err(PostError::WrongState(state)),
        };
        let is_signalled = self.signal_all || wr.flags.contains(SendFlags::SIGNALED);
        if is_signalled || status != WcStatus::Success {
            let (wr_id, opcode, qpn) = (wr.wr_id, WcOpcode::Send, self.qpn);
            if !self.send_cq.push(Completion { wr_id, status, opcode, qpn, ..Completion::default() }) {
                self.fail();
            }
        }
        if !matches!(status, WcStatus::Success | WcStatus::WrFlushErr) {
            self.fail();
        }
        Ok(())
    }

    fn transmit(&self, frame: &mut Vec<u8>, payload: &Payload<'_>) -> WcStatus {
        frame.clear();
        match payload {
            Payload::Inline(bytes) => frame.extend_from_slice(bytes),
            Payload::Sges(sges) => {
                let len: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
                if len > u64::from(u16::MAX) + MIN_FRAME as u64 {
                    return WcStatus::LocLenErr;
                }
                frame.resize(len as usize, 0);
                if self.pd.nic.engine.regions.gather(self.pd.id, sges, 0, frame).is_err() {
                    return WcStatus::LocProtErr;
                }
            }
        }
        match frame.len() >= MIN_FRAME && self.port.send(frame).is_ok() {
            true => WcStatus::Success,
            false => WcStatus::LocLenErr,
        }
    }

    /// Flows that are still there find a closed queue.
    pub(crate) fn close(&self) {
        self.follow(QpState::Reset);
    }

    fn fail(&self) {
        self.attr.lock().state = QpState::Err;
        self.follow(QpState::Err);
    }

    /// Frames that the rule matches come to this queue pair from now on.
    pub(crate) fn create_flow(&self, rule: FlowRule) -> Result<Flow, Error> {
        let lengths_differ = rule.filters.iter().any(|filter| filter.value.len() != filter.mask.len());
        if lengths_differ || (rule.kind == FlowKind::Sniffer && !rule.filters.is_empty()) {
            return Err(Error::Invalid {
                attribute: "flow",
                why: "a mask of another length, or a sniffer that filters",
            });
        }
        self.port.add_rule(rule, self.to.clone())
    }
}
