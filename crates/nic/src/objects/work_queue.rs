//! Work queues, as programs hold them.

use super::cq::Cq;
use super::pd::Pd;
use crate::error::Error;
use crate::quota::Permit;
use crate::raw::{Phase, QueueInit, RawQueue};
use ferroce_os::lock::Mutex;
use ferroce_proto::Qpn;
use ferroce_proto::qp::PostError;
use ferroce_proto::verbs::RecvWr;
use std::sync::Arc;

/// State of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqState {
    /// Receives cannot be posted.
    Reset,
    /// Receives can be posted, and frames consume them.
    Ready,
    /// All posted receives are flushed.
    Error,
}

/// A separate receive queue. A queue pair spreads frames over several of them (RSS).
pub struct WorkQueue {
    pub(super) queue: Arc<RawQueue>,
    pd: Arc<Pd>,
    state: Mutex<WqState>,
    number: u32,
    _permit: Permit,
}

impl Pd {
    /// Creates a work queue in RESET. Its completions go to `cq`.
    pub fn create_wq(self: &Arc<Self>, max_wr: u32, max_sge: u32, cq: &Cq) -> Result<WorkQueue, Error> {
        self.nic.alive()?;
        if max_wr == 0 {
            return Err(Error::Invalid { attribute: "max_wr", why: "a work queue needs at least one entry" });
        }
        Error::check_limit("max_wr", max_wr.into(), self.nic.limits.max_qp_wr.into())?;
        Error::check_limit("max_sge", max_sge.into(), self.nic.limits.max_sge.into())?;
        if !cq.belongs_to(&self.nic) {
            return Err(Error::Invalid { attribute: "cq", why: "belongs to another device" });
        }
        let _permit = self.nic.quotas.work_queues.take()?;
        let number = self.nic.next_id() & 0xff_ffff;
        let queue = RawQueue::new(QueueInit {
            memory: self.nic.engine.clone(),
            pd: self.id,
            cq: cq.core.clone(),
            srq: None,
            number: Qpn::new(number),
            max_wr,
            max_sge: max_sge.max(1),
        });
        Ok(WorkQueue { queue, pd: self.clone(), state: Mutex::new(WqState::Reset), number, _permit })
    }
}

impl WorkQueue {
    /// Its number, which its completions contain.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its state.
    pub fn state(&self) -> WqState {
        *self.state.lock()
    }

    /// Changes its state: from every state to RESET or error, and from RESET to ready.
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

    /// Adds the receives that `fill` passes, in order, under one lock.
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
