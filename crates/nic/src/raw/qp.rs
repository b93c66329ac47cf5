//! Queue pairs for raw packets.

use super::flow::{Destination, Flow, FlowKind, FlowRule};
use super::frame::MIN_FRAME;
use super::port::RawPort;
use super::queue::{FrameMemory, Phase};
use crate::error::Error;
use crate::queues::CqCore;
use ferroce_os::lock::Mutex;
use ferroce_proto::qp::PostError;
use ferroce_proto::qp::state::ModifyError;
use ferroce_proto::verbs::{
    AttrMask, Completion, Payload, QpAttr, QpCap, QpState, RecvWr, SendFlags, SendOp, SendWr, Transport,
    WcOpcode, WcStatus,
};
use ferroce_proto::{PdId, Qpn};
use std::sync::Arc;

/// What a queue pair for frames is made with.
pub(crate) struct RawInit {
    pub(crate) port: Arc<RawPort>,
    pub(crate) memory: Arc<dyn FrameMemory>,
    pub(crate) pd: PdId,
    pub(crate) qpn: Qpn,
    pub(crate) send_cq: Arc<CqCore>,
    pub(crate) signal_all: bool,
}

/// The part of a queue pair that is about frames.
pub(crate) struct RawQp {
    init: RawInit,
    to: Destination,
    attr: Mutex<QpAttr>,
    /// A frame while it is put together.
    frame: Mutex<Vec<u8>>,
}

impl RawQp {
    pub(crate) fn new(init: RawInit, cap: QpCap, to: Destination) -> RawQp {
        let attr = Mutex::new(QpAttr { cap, ..QpAttr::default() });
        RawQp { init, to, attr, frame: Mutex::default() }
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
            self.init.send_cq.purge(self.init.qpn);
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
        let status = match self.check_send(wr)? {
            QpState::Err | QpState::Sqe => WcStatus::WrFlushErr,
            _ => self.transmit(&mut frame, &wr.payload),
        };
        let is_signalled = self.init.signal_all || wr.flags.contains(SendFlags::SIGNALED);
        if is_signalled || status != WcStatus::Success {
            let (wr_id, opcode, qpn) = (wr.wr_id, WcOpcode::Send, self.init.qpn);
            let completion = Completion { wr_id, status, opcode, qpn, ..Completion::default() };
            if self.init.send_cq.push(completion).is_err() {
                self.fail();
            }
        }
        if !matches!(status, WcStatus::Success | WcStatus::WrFlushErr) {
            self.fail();
        }
        Ok(())
    }

    /// Checks a request. Returns the state in which it is posted.
    #[cold] // as the caller
    pub(crate) fn check_send(&self, wr: &SendWr<'_>) -> Result<QpState, PostError> {
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
        match state {
            QpState::Rts | QpState::Sqd | QpState::Err | QpState::Sqe => Ok(state),
            _ => Err(PostError::WrongState(state)),
        }
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
                if self.init.memory.gather(self.init.pd, sges, frame).is_err() {
                    return WcStatus::LocProtErr;
                }
            }
        }
        match frame.len() >= MIN_FRAME && self.init.port.send(frame).is_ok() {
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
        self.init.port.add_rule(rule, self.to.clone())
    }
}
