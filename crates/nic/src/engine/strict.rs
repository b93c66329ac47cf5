//! Strict mode: the queues of a queue pair are as deep as those of a NIC, which frees an entry when its completion is polled.

use super::QpCore;
use ferroce_proto::qp::{self, PostError};
use ferroce_proto::verbs::{QpCap, QpState, RecvWr};
use std::collections::VecDeque;

/// The entries of a send queue as a NIC counts them. A polled completion frees the entry of its request and those of all earlier ones;
/// requests without a completion stay until then.
#[derive(Default)]
pub(crate) struct SendQueueDepth {
    /// Requests posted since RESET.
    posted: u64,
    /// Those of them whose entries are free again.
    freed: u64,
    /// For each request whose completion is not yet counted as polled: how many requests it frees, counted from RESET.
    signaled: VecDeque<u64>,
}

impl SendQueueDepth {
    /// Checks that the queue has an entry for one more request after `ahead` others, which are not posted yet.
    pub(crate) fn check(&mut self, ahead: usize, qp: &QpCore, machine: &qp::Qp) -> Result<(), PostError> {
        let (depth, ahead) = (u64::from(machine.cap().max_send_wr), ahead as u64);
        if self.posted - self.freed + ahead < depth {
            return Ok(());
        }
        // After an error every request completes, so completions do not show which requests are freed.
        if !matches!(machine.state(), QpState::Rts | QpState::Sqd) {
            *self = SendQueueDepth::default();
            return Ok(());
        }
        let (unpolled, _) = qp.send_cq.unpolled_of(qp.qpn);
        let pending = unpolled + machine.signaled_outstanding();
        while self.signaled.len() > pending
            && let Some(freed) = self.signaled.pop_front()
        {
            self.freed = freed;
        }
        if self.posted - self.freed + ahead < depth {
            return Ok(());
        }
        let unsignaled = (self.posted - self.freed) as usize - self.signaled.len();
        Err(PostError::NotPolled { depth: depth as usize, unsignaled, unpolled })
    }

    /// Counts a request that was posted.
    pub(crate) fn count(&mut self, is_signaled: bool) {
        self.posted += 1;
        if is_signaled {
            self.signaled.push_back(self.posted);
        }
    }
}

/// The state of a receive queue as a NIC counts it: an entry is freed when its completion is polled.
pub(crate) struct RecvQueueDepth {
    depth: usize,
    max_sge: usize,
    posted: usize,
    unpolled: usize,
}

impl RecvQueueDepth {
    pub(crate) fn of(qp: &QpCore) -> RecvQueueDepth {
        let machine = qp.machine.lock();
        let QpCap { max_recv_wr, max_recv_sge, .. } = *machine.cap();
        // In RESET nothing may be posted. The queue pair itself reports that.
        let unpolled = if machine.state() == QpState::Reset { 0 } else { qp.recv_cq.unpolled_of(qp.qpn).1 };
        let posted = machine.recvs_waiting();
        RecvQueueDepth { depth: max_recv_wr as usize, max_sge: max_recv_sge as usize, posted, unpolled }
    }

    /// Checks that one more fits. The queue pair itself checks the other cases: a queue without unpolled completions, a queue pair without a
    /// queue of its own, and an invalid request.
    pub(crate) fn check(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let RecvQueueDepth { depth, max_sge, posted, unpolled } = *self;
        let has_queue = unpolled > 0 && depth > 0;
        if has_queue && wr.sges.len() <= max_sge && posted + unpolled >= depth {
            return Err(PostError::RecvNotPolled { depth, posted, unpolled });
        }
        Ok(())
    }

    /// Counts a receive that was posted.
    pub(crate) fn count(&mut self) {
        self.posted += 1;
    }
}
