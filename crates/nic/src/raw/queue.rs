//! A receive queue for frames: that of a raw queue pair, or one on its own.

use crate::queues::{CqCore, SrqCore};
use ferroce_os::lock::Mutex;
use ferroce_proto::qp::{PostError, RecvQueue, RecvWqe};
use ferroce_proto::verbs::{Completion, MemoryFault, QpState, RecvWr, Sge, WcOpcode, WcStatus};
use ferroce_proto::{PdId, Qpn};
use std::sync::Arc;

/// Registered memory, as frames leave it and come to it.
pub(crate) trait FrameMemory: Send + Sync {
    /// Copies the bytes of the entries to `frame`, which is as long.
    fn gather(&self, pd: PdId, sges: &[Sge], frame: &mut [u8]) -> Result<(), MemoryFault>;
    /// Copies a frame into the entries.
    fn scatter(&self, pd: PdId, sges: &[Sge], frame: &[u8]) -> Result<(), MemoryFault>;
}

/// What may be done with the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
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
    memory: Arc<dyn FrameMemory>,
    pd: PdId,
    cq: Arc<CqCore>,
    srq: Option<Arc<SrqCore>>,
    /// What completions name.
    number: Qpn,
    state: Mutex<State>,
}

/// What a queue is made with.
pub(crate) struct QueueInit {
    pub(crate) memory: Arc<dyn FrameMemory>,
    pub(crate) pd: PdId,
    pub(crate) cq: Arc<CqCore>,
    pub(crate) srq: Option<Arc<SrqCore>>,
    pub(crate) number: Qpn,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
}

impl RawQueue {
    pub(crate) fn new(init: QueueInit) -> Arc<Self> {
        let QueueInit { memory, pd, cq, srq, number, max_wr, max_sge } = init;
        let queue = RecvQueue::new(max_wr, max_sge);
        let state = Mutex::new(State { queue, phase: Phase::Closed, wqe: RecvWqe::default() });
        Arc::new(RawQueue { memory, pd, cq, srq, number, state })
    }

    pub(crate) fn enter(&self, phase: Phase) {
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
        if self.cq.push(completion).is_err() {
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
            Some(srq) => srq.take(self.number, &mut state.wqe),
            None => self.pop(&mut state),
        };
        if !taken {
            return;
        }
        let len = frame.len() as u32;
        if state.wqe.capacity() < u64::from(len) {
            self.complete(&mut state, WcStatus::LocLenErr, len, tag);
        } else if self.memory.scatter(self.pd, &state.wqe.sges, frame).is_err() {
            self.complete(&mut state, WcStatus::LocProtErr, 0, tag);
        } else {
            return self.complete(&mut state, WcStatus::Success, len, tag);
        }
        state.phase = Phase::Broken;
        self.flush(&mut state);
    }

    /// Adds the receives that `fill` hands over, under one lock.
    pub(crate) fn post_each<R>(
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
