//! The error state: outstanding requests are flushed in posting order (IBA 10.8.3).

use super::io::Io;
use super::sq::SendQueue;
use super::{HistoryEvent, Host, HostServices, Machine, Qp, Reason, RecvQueue, RecvWqe, Side};
use crate::Time;
use crate::verbs::{EventKind, QpState, WcOpcode, WcStatus};

macro_rules! io {
    ($qp:expr, $now:expr, $host:expr) => {
        $crate::qp::Io {
            host: $host,
            id: &$qp.id,
            pd: $qp.id.pd,
            attr: &$qp.attr,
            route: &$qp.route,
            counters: &mut $qp.counters,
            now: $now,
            piggybacked_ack: None,
            is_large: false,
            is_jumbo: false,
        }
    };
}
pub(crate) use io;

/// Completes one request as flushed.
pub(crate) fn flush_one<H: HostServices>(io: &mut Io<'_, H>, side: Side, wr_id: u64, opcode: WcOpcode) {
    io.complete_failed(side, wr_id, opcode, WcStatus::WrFlushErr, Reason::Flushed);
}

/// Flushes all posted sends.
pub(crate) fn flush_queued_sends<H: HostServices>(sq: &mut SendQueue, io: &mut Io<'_, H>) {
    while let Some(wqe) = sq.pop() {
        flush_one(io, Side::Send, wqe.wr_id, wqe.wc_opcode());
    }
}

/// Flushes all receives that no message has taken.
pub(crate) fn flush_queued_recvs<H: HostServices>(rq: &mut RecvQueue, io: &mut Io<'_, H>) {
    let mut wqe = RecvWqe::default();
    while rq.pop(&mut wqe) {
        flush_one(io, Side::Recv, wqe.wr_id, WcOpcode::Recv);
    }
}

impl Qp {
    /// Enters ERR and flushes both queues. A queued NAK is still sent.
    pub(super) fn enter_error<H: Host>(&mut self, now: Time, host: &mut H) {
        if matches!(self.attr.state, QpState::Err | QpState::Reset) {
            return;
        }
        self.attr.state = QpState::Err;
        host.record(HistoryEvent::State(QpState::Err), 1);
        self.flush_sends(now, host);
        self.flush_recvs(now, host);
        if self.id.shared_recv && self.id.transport.receives() {
            // From here on this QP takes no receives from the shared queue (IBA 10.2.9.3).
            host.event(EventKind::QpLastWqeReached);
        }
    }

    /// Stops the send queue after a local error; receives continue (UC and UD).
    pub(super) fn enter_send_error<H: Host>(&mut self, now: Time, host: &mut H) {
        self.attr.state = QpState::Sqe;
        host.record(HistoryEvent::State(QpState::Sqe), 1);
        self.flush_sends(now, host);
    }

    pub(super) fn flush_sends<H: Host>(&mut self, now: Time, host: &mut H) {
        flush_queued_sends(&mut self.sq, &mut io!(self, now, host));
        match &mut self.machine {
            Machine::Rc(rc) => rc.0.halt(&self.sq),
            Machine::Uc(uc) => uc.0.halt(&self.sq),
            Machine::Ud(_) => {}
        }
    }

    pub(super) fn flush_recvs<H: Host>(&mut self, now: Time, host: &mut H) {
        let mut io = io!(self, now, host);
        let current = match &mut self.machine {
            Machine::Rc(rc) => {
                rc.1.halt();
                rc.1.inbound().take_recv()
            }
            Machine::Uc(uc) => uc.1.inbound().take_recv(),
            Machine::Ud(ud) => ud.take_recv().map(|wr_id| (Side::Recv, wr_id)),
        };
        if let Some((side, wr_id)) = current {
            flush_one(&mut io, side, wr_id, WcOpcode::Recv);
        }
        flush_queued_recvs(&mut self.rq, &mut io);
    }

    /// Moves the queue pair to ERR after a device error such as a completion queue overflow. Raises `kind` if the QP
    /// was operational.
    pub fn fail<H: Host>(&mut self, kind: EventKind, now: Time, host: &mut H) {
        if !matches!(self.attr.state, QpState::Err | QpState::Reset) {
            host.event(kind);
            self.enter_error(now, host);
        }
    }
}
