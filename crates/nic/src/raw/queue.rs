//! A receive queue for frames: that of a raw queue pair, or one on its own.

use crate::engine::Engine;
use crate::error::Error;
use crate::lock::Mutex;
use crate::nic::{MAX_QP_WR, MAX_SGE};
use crate::objects::{Cq, Pd};
use crate::queues::{CqCore, SrqCore};
use ferroce_proto::qp::{PostError, RecvQueue, RecvWqe};
use ferroce_proto::verbs::{Completion, QpState, RecvWr, WcOpcode, WcStatus};
use ferroce_proto::{PdId, Qpn};
use std::sync::Arc;

/// What may be done with the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing.
    Closed,
    /// Receives may be posted, and wait.
    Filling,
    /// Frames arrive.
    Open,
    /// Everything is flushed.
    Broken,
}

struct State {
    queue: RecvQueue,
    phase: Phase,
    /// Reused from frame to frame.
    wqe: RecvWqe,
}

/// A queue, of whomever.
pub(crate) struct RawQueue {
    engine: Arc<Engine>,
    pd: PdId,
    cq: Arc<CqCore>,
    srq: Option<Arc<SrqCore>>,
    /// What completions name.
    number: Qpn,
    state: Mutex<State>,
}

/// Sizes of a queue.
pub(super) struct Size {
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
}

impl RawQueue {
    pub(super) fn new(
        pd: &Pd,
        cq: Arc<CqCore>,
        srq: Option<Arc<SrqCore>>,
        number: Qpn,
        size: &Size,
    ) -> Arc<Self> {
        let queue = RecvQueue::new(size.max_wr, size.max_sge);
        let state = Mutex::new(State { queue, phase: Phase::Closed, wqe: RecvWqe::default() });
        Arc::new(RawQueue { engine: pd.nic.engine.clone(), pd: pd.id, cq, srq, number, state })
    }

    pub(super) fn enter(&self, phase: Phase) {
        let mut state = self.state.lock();
        state.phase = phase;
        match phase {
            Phase::Closed => {
                while self.pop(&mut state) {}
                drop(state);
                // A new life begins: completions of the old one would be taken for its own.
                self.cq.purge(self.number);
            }
            Phase::Broken => self.flush(&mut state),
            Phase::Filling | Phase::Open => {}
        }
    }

    /// Takes the oldest receive of its own queue.
    fn pop(&self, state: &mut State) -> bool {
        let State { queue, wqe, .. } = state;
        queue.pop(wqe)
    }

    fn flush(&self, state: &mut State) {
        while self.pop(state) {
            self.complete(state, WcStatus::WrFlushErr, 0, 0);
        }
    }

    fn complete(&self, state: &mut State, status: WcStatus, byte_len: u32, tag: u32) {
        let completion = Completion {
            wr_id: state.wqe.wr_id,
            status,
            opcode: WcOpcode::Recv,
            byte_len,
            imm: tag,
            qpn: self.number,
            ..Completion::default()
        };
        if !self.cq.push(completion) {
            state.phase = Phase::Broken;
        }
    }

    /// Places a frame. Without a receive it is lost, as on any wire.
    pub(super) fn deliver(&self, frame: &[u8], tag: u32) {
        let mut state = self.state.lock();
        if state.phase != Phase::Open {
            return;
        }
        let taken = match &self.srq {
            Some(srq) => srq.take(&mut state.wqe),
            None => self.pop(&mut state),
        };
        if !taken {
            return;
        }
        let len = frame.len() as u32;
        if state.wqe.capacity() < u64::from(len) {
            self.complete(&mut state, WcStatus::LocLenErr, len, tag);
        } else if self.engine.regions.scatter(self.pd, &state.wqe.sges, 0, frame).is_err() {
            self.complete(&mut state, WcStatus::LocProtErr, 0, tag);
        } else {
            return self.complete(&mut state, WcStatus::Success, len, tag);
        }
        state.phase = Phase::Broken;
        self.flush(&mut state);
    }

    /// Adds the receives that `fill` hands over, under one lock.
    pub(super) fn post_each<R>(
        &self,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        let mut state = self.state.lock();
        fill(&mut |wr| self.post(&mut state, wr))
    }

    fn post(&self, state: &mut State, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.srq.is_some() {
            return Err(PostError::HasSharedQueue);
        }
        if state.phase == Phase::Closed {
            return Err(PostError::WrongState(QpState::Reset));
        }
        let max = state.queue.max_sge();
        if wr.sges.len() > max {
            return Err(PostError::TooManySges { given: wr.sges.len(), max });
        }
        if !state.queue.push(wr) {
            return Err(PostError::QueueFull { depth: state.queue.depth() });
        }
        if state.phase == Phase::Broken {
            self.flush(state);
        }
        Ok(())
    }
}

/// State of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqState {
    /// Nothing may be posted.
    Reset,
    /// It works.
    Ready,
    /// Everything posted is flushed.
    Error,
}

/// A receive queue on its own: several of them stand behind one queue pair, which spreads frames over them.
pub struct WorkQueue {
    pub(super) queue: Arc<RawQueue>,
    pd: Arc<Pd>,
    state: Mutex<WqState>,
    number: u32,
}

impl Pd {
    /// Makes a work queue in RESET. Its completions go to `cq`.
    pub fn create_wq(self: &Arc<Self>, max_wr: u32, max_sge: u32, cq: &Cq) -> Result<WorkQueue, Error> {
        self.nic.alive()?;
        if max_wr == 0 {
            return Err(Error::Invalid { attribute: "max_wr", why: "a work queue needs at least one entry" });
        }
        Error::check_limit("max_wr", max_wr.into(), MAX_QP_WR.into())?;
        Error::check_limit("max_sge", max_sge.into(), MAX_SGE.into())?;
        if !cq.belongs_to(&self.nic) {
            return Err(Error::Invalid { attribute: "cq", why: "belongs to another device" });
        }
        let number = self.nic.next_id() & 0xff_ffff;
        let size = Size { max_wr, max_sge: max_sge.max(1) };
        let queue = RawQueue::new(self, cq.core.clone(), None, Qpn::new(number), &size);
        Ok(WorkQueue { queue, pd: self.clone(), state: Mutex::new(WqState::Reset), number })
    }
}

impl WorkQueue {
    /// Its number, which completions name.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its state.
    pub fn state(&self) -> WqState {
        *self.state.lock()
    }

    /// Changes its state: from RESET only to ready, from anywhere to RESET or error.
    pub fn modify(&self, to: WqState) -> Result<(), Error> {
        self.pd.nic.alive()?;
        let mut state = self.state.lock();
        if to == WqState::Ready && *state == WqState::Error {
            return Err(Error::Invalid {
                attribute: "wq_state",
                why: "from error the way leads through RESET",
            });
        }
        self.queue.enter(match to {
            WqState::Reset => Phase::Closed,
            WqState::Ready => Phase::Open,
            WqState::Error => Phase::Broken,
        });
        *state = to;
        Ok(())
    }

    /// Adds the receives that `fill` hands over, in order, under one lock.
    pub fn post_recv_each<R>(
        &self,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> Result<R, Error> {
        self.pd.nic.alive()?;
        Ok(self.queue.post_each(fill))
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        if self.pd.nic.alive().is_ok() {
            self.queue.enter(Phase::Closed);
        }
    }
}
