//! The end of a connection: ERR, flush, and closing the stream.

use super::super::wire::{Quoted, Terminate, TerminateCode};
use super::transmit::Source;
use super::{StreamHost, StreamQp};
use crate::Time;
use crate::qp::{
    HistoryEvent, HostServices, Inbound, Side, flush_one, flush_queued_recvs, flush_queued_sends, io,
};
use crate::verbs::{EventKind, QpState, WcOpcode};

/// How the stream must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// After the bytes that the stream has taken.
    Graceful,
    /// Immediately, with a reset: an FPDU is partially sent and cannot be completed.
    Reset,
}

/// How the stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The peer closed it.
    Closed,
    /// It failed, with this errno.
    Failed(i32),
}

impl StreamQp {
    /// Ends the connection, as `rdma_disconnect` does. Messages that are partially sent are finished; everything else is flushed.
    pub fn disconnect<H: HostServices>(&mut self, now: Time, host: &mut H) {
        match self.attr.state {
            QpState::Rts => {
                self.attr.state = QpState::Sqd;
                host.record(HistoryEvent::State(QpState::Sqd), 1);
                self.finish_disconnect(now, host);
            }
            QpState::Init => self.enter_error(now, host),
            _ => {}
        }
    }

    pub(super) fn finish_disconnect<H: HostServices>(&mut self, now: Time, host: &mut H) {
        let is_idle = self.current.is_none() && !self.in_request() && !self.in_response();
        if self.attr.state == QpState::Sqd && is_idle {
            self.enter_error(now, host);
        }
    }

    /// Moves the queue pair to ERR after a device error such as a completion queue overflow, and raises `kind`.
    pub fn fail<H: StreamHost>(&mut self, kind: EventKind, now: Time, host: &mut H) {
        if !matches!(self.attr.state, QpState::Err | QpState::Reset) {
            host.event(kind);
            self.terminate_with(TerminateCode::RDMAP_LOCAL, None, now, host);
        }
    }

    /// Reports the end of the stream. Between FPDUs a close is orderly; anything else raises `QpFatal`.
    pub fn lost<H: HostServices>(&mut self, how: Lost, now: Time, host: &mut H) {
        let was_up = matches!(self.attr.state, QpState::Rts | QpState::Sqd);
        if was_up && !(how == Lost::Closed && self.reader.is_between()) {
            let qpn = self.id.qpn;
            match how {
                Lost::Closed => {
                    host.explain(format_args!("QP {qpn}: the peer closed the stream inside an FPDU"));
                }
                Lost::Failed(errno) => {
                    host.explain(format_args!("QP {qpn}: the TCP connection failed with errno {errno}"));
                }
            }
            host.event(EventKind::QpFatal);
        }
        self.enter_error(now, host);
        (self.terminate, self.current) = (None, None);
    }

    /// Discards all work without completions: the queue pair is destroyed. Returns how the stream must be closed.
    pub fn retire(&mut self) -> Close {
        let is_between = self.current.is_none_or(|current| current.taken == 0);
        let close = if is_between && !self.in_request() && !self.in_response() {
            Close::Graceful
        } else {
            Close::Reset
        };
        self.attr.state = QpState::Reset;
        self.sq.clear();
        self.rq.clear();
        (self.inbound, self.current, self.terminate, self.rtr) = (Inbound::default(), None, None, None);
        self.awaited.clear();
        self.responses.clear();
        close
    }

    /// How the stream must be closed, once everything that must be sent was sent. `None` while the connection lives.
    pub fn close(&self) -> Option<Close> {
        let is_sent = self.terminate.is_none() && self.current.is_none();
        self.close.filter(|close| *close == Close::Reset || is_sent)
    }

    /// Enters ERR and sends a Terminate, behind the FPDU that is partially sent. Without a host that keeps the rest of it, the stream is
    /// reset.
    pub(super) fn terminate_with<H: StreamHost>(
        &mut self,
        code: TerminateCode,
        quoted: Option<Quoted>,
        now: Time,
        host: &mut H,
    ) {
        if self.attr.state == QpState::Err {
            return;
        }
        // A responder must not send before the initiator's first FPDU, so it closes without a Terminate.
        self.terminate = self.may_send.then_some(Terminate { code, quoted });
        // The rest of the FPDU is kept before the flush, which returns the memory to the program.
        if let Some(current) = self.current.filter(|current| current.taken > 0)
            && self.has_payload(&current)
            && host.keep_fpdu(&self.fpdu(&current), current.taken).is_ok()
        {
            self.current = None;
        }
        self.enter_error(now, host);
    }

    /// Enters ERR and flushes both queues.
    pub(super) fn enter_error<H: HostServices>(&mut self, now: Time, host: &mut H) {
        if self.attr.state == QpState::Err {
            return;
        }
        self.attr.state = QpState::Err;
        host.record(HistoryEvent::State(QpState::Err), 1);
        self.close = Some(Close::Graceful);
        match self.current {
            // The flush returns the memory to the program, so the rest of the payload must not be read.
            Some(current) if current.taken > 0 && current.len > 0 => {
                (self.close, self.terminate, self.current) = (Some(Close::Reset), None, None);
            }
            Some(current) if current.taken > 0 || current.source == Source::Terminate => {}
            _ => self.current = None,
        }
        self.awaited.clear();
        self.responses.clear();
        self.rtr = None;
        (self.sent, self.owes_immediate) = (0, false);
        self.flush(now, host);
        if self.id.shared_recv {
            host.event(EventKind::QpLastWqeReached);
        }
    }

    pub(super) fn flush<H: HostServices>(&mut self, now: Time, host: &mut H) {
        let mut io = io!(self, now, host);
        flush_queued_sends(&mut self.sq, &mut io);
        if let Some((side, wr_id)) = self.inbound.take_recv() {
            debug_assert_eq!(side, Side::Recv);
            flush_one(&mut io, side, wr_id, WcOpcode::Recv);
        }
        flush_queued_recvs(&mut self.rq, &mut io);
    }
}
