//! Strict mode: the queues of a queue pair are as deep as those of a NIC, which frees an entry when its completion is polled.

use super::QpCore;
use ferroce_proto::qp::{self, PostError};
use ferroce_proto::verbs::QpState;
use std::collections::VecDeque;

/// The entries of a send queue as a NIC counts them. A polled completion frees the entry of its request and those of all earlier ones;
/// requests without a completion stay until then.
#[derive(Default)]
pub(crate) struct SendLedger {
    /// Requests posted since RESET.
    posted: u64,
    /// Those of them whose entries are free again.
    freed: u64,
    /// For each request whose completion nobody has polled as far as we know: how many requests it frees, counted from RESET.
    signaled: VecDeque<u64>,
}

impl SendLedger {
    /// Whether the queue has an entry for one more request.
    pub(crate) fn check(&mut self, qp: &QpCore, machine: &qp::Qp) -> Result<(), PostError> {
        let depth = u64::from(machine.cap().max_send_wr);
        if self.posted - self.freed < depth {
            return Ok(());
        }
        // After an error every request completes, so the ledger does not know which completion belongs to which.
        if !matches!(machine.state(), QpState::Rts | QpState::Sqd) {
            *self = SendLedger::default();
            return Ok(());
        }
        let (unpolled, _) = qp.send_cq.unpolled_of(qp.qpn);
        let pending = unpolled + machine.signaled_outstanding();
        while self.signaled.len() > pending
            && let Some(freed) = self.signaled.pop_front()
        {
            self.freed = freed;
        }
        if self.posted - self.freed < depth {
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

/// Receives that can be posted before the queue of a NIC would be full, or why there are none.
pub(crate) struct RecvRoom {
    depth: usize,
    posted: usize,
    unpolled: usize,
}

impl RecvRoom {
    pub(crate) fn of(qp: &QpCore) -> RecvRoom {
        let machine = qp.machine.lock();
        let (_, unpolled) = qp.recv_cq.unpolled_of(qp.qpn);
        RecvRoom { depth: machine.cap().max_recv_wr as usize, posted: machine.recvs_waiting(), unpolled }
    }

    /// Checks that one more fits. Without completions that wait, or without a queue of its own, the queue pair checks it.
    pub(crate) fn take(&mut self) -> Result<(), PostError> {
        let RecvRoom { depth, posted, unpolled } = *self;
        if unpolled > 0 && depth > 0 && posted + unpolled >= depth {
            return Err(PostError::RecvNotPolled { depth, posted, unpolled });
        }
        self.posted += 1;
        Ok(())
    }
}
