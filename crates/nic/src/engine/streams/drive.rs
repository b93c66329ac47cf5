//! One poll of the streams.

use super::end::{Connected, StreamEnd};
use super::{AGENT, CLOSING, StreamEvent, StreamPolling, Streams};
use crate::engine::host::NicHost;
use crate::engine::progress::Progress;
use crate::engine::{Engine, QpCore};
use crate::link::{Closing, now};
use ferroce_os::epoll::Interest;
use ferroce_proto::iwarp::{Close, Lost, StreamQp};
use ferroce_proto::verbs::{EventKind, QpState};
use ferroce_proto::{Qpn, Time};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// Bytes that one read takes.
pub(super) const BUFFER: usize = 64 * 1024;
/// Reads of one stream in one poll.
const READS: u32 = 16;
/// One in this many polls covers all sockets. The others read only the stream that had bytes last.
const QUICK_POLLS: u32 = 4;

/// What a poll of one stream found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    bytes: usize,
    completions: u32,
}

impl Engine {
    /// One poll. Returns whether there was something to do.
    pub(in crate::engine) fn run_streams(
        &self,
        streams: &Streams,
        progress: &mut Progress,
        thorough: bool,
    ) -> bool {
        let now = now();
        progress.completions = 0;
        progress.recent.refresh(self.qps.removals());
        let mut polling = streams.polling.lock();
        polling.buffer.resize(BUFFER, 0);
        let mut any = false;
        polling.quick_polls += 1;
        if let Some(recent) = polling.recent.filter(|_| !thorough && polling.quick_polls < QUICK_POLLS) {
            any = self.serve_number(recent, false, &mut polling, progress, now);
        } else {
            polling.quick_polls = 0;
            let ready = streams.sockets.ready(|token, is_writable| match token {
                _ if token & AGENT != 0 => {
                    if let Some(agent) = self.agent() {
                        agent.socket_ready(token & !AGENT, now);
                    }
                }
                _ if token & CLOSING != 0 => {
                    self.serve_closing(streams, token & !CLOSING, &mut polling.buffer);
                }
                qpn => {
                    let _ = self.serve_number(Qpn::new(qpn as u32), is_writable, &mut polling, progress, now);
                }
            });
            any |= ready > 0;
            self.expire_closing(streams, now);
        }
        drop(polling);
        let events = streams.take_events();
        if let Some(agent) = self.agent().filter(|_| !events.is_empty()) {
            agent.stream_events(&events, now);
        }
        self.run_management(now);
        progress.idle = if any { 0 } else { progress.idle.wrapping_add(1) };
        any
    }

    /// Serves the stream of the queue pair with this number. Returns whether bytes were there.
    fn serve_number(
        &self,
        qpn: Qpn,
        is_writable: bool,
        polling: &mut StreamPolling,
        progress: &mut Progress,
        now: Time,
    ) -> bool {
        let Some(qp) = progress.recent.find(qpn, &self.qps) else {
            polling.recent = None;
            return false;
        };
        let served = self.serve_stream(qp, is_writable, &mut polling.buffer, now);
        progress.completions += served.completions;
        if served.bytes > 0 {
            polling.recent = Some(qpn);
        }
        served.bytes > 0
    }

    /// Reads a stream, then sends replies and waiting requests.
    fn serve_stream(&self, qp: &QpCore, is_writable: bool, buffer: &mut [u8], now: Time) -> Served {
        let Some(stream) = qp.stream() else { return Served::default() };
        self.serve_locked(qp, stream, &mut stream.machine.lock(), is_writable, buffer, now)
    }

    /// The same with the lock of the queue pair.
    pub(super) fn serve_locked(
        &self,
        qp: &QpCore,
        stream: &StreamEnd,
        machine: &mut StreamQp,
        is_writable: bool,
        buffer: &mut [u8],
        now: Time,
    ) -> Served {
        let mut host = NicHost::alone(self, qp);
        let mut bytes = 0;
        for _ in 0..READS {
            let mut end = stream.socket.lock();
            let Some(connected) = &mut end.connected else { break };
            connected.awaits_writable &= !is_writable;
            let received = self.receive_stream(connected, qp, machine, buffer);
            let is_end = matches!(&received, Ok(Some(received)) if received.len() == 0);
            connected.has_ended = is_end || received.is_err();
            // The machine sends, which locks the socket.
            drop(end);
            match received {
                Ok(None) => break,
                Ok(Some(_)) if is_end => {
                    machine.lost(Lost::Closed, now, &mut host);
                    break;
                }
                Ok(Some(received)) => {
                    if received.in_place > 0 {
                        machine.received_in_place(received.in_place as u32, now, &mut host);
                    }
                    bytes += received.len();
                    machine.receive(&buffer[..received.buffered], now, &mut host);
                    if !received.is_full {
                        break;
                    }
                }
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    machine.lost(Lost::Failed(errno), now, &mut host);
                    break;
                }
            }
        }
        self.finish_stream(qp, stream, machine, &mut host, now);
        Served { bytes, completions: host.completions }
    }

    /// Sends what waits, then does the last steps before the lock of a queue pair is released: a CQ that overran, the end of the stream, what
    /// the socket is watched for, and events for the connection manager.
    pub(super) fn finish_stream(
        &self,
        qp: &QpCore,
        stream: &StreamEnd,
        machine: &mut StreamQp,
        host: &mut NicHost<'_, '_>,
        now: Time,
    ) {
        machine.poll_transmit(now, host);
        if qp.overrun.load(Ordering::Relaxed) {
            machine.fail(EventKind::QpFatal, now, host);
            machine.poll_transmit(now, host);
        }
        host.flush();
        let Some(streams) = &self.streams else { return };
        let mut end = stream.socket.lock();
        let Some(connected) = &mut end.connected else { return };
        let is_flushed = super::egress::flush(connected);
        if machine.is_ready() && std::mem::take(&mut connected.awaits_first) {
            streams.queue_event(connected.connection, StreamEvent::Ready);
        }
        // In ERR the machine waits for nothing: `keep_fpdu` takes its Terminate.
        let reset = (machine.state() == QpState::Err).then_some(Close::Reset);
        match machine.close().or(reset) {
            None => {
                let is_blocked = machine.is_blocked() || !is_flushed;
                let interest = if is_blocked { Interest::ReadWrite } else { Interest::Read };
                if interest != connected.interest
                    && streams
                        .sockets
                        .watch(connected.socket.as_fd(), interest, qp.qpn.value().into())
                        .is_ok()
                {
                    connected.interest = interest;
                }
                connected.awaits_writable = connected.interest == Interest::ReadWrite;
            }
            Some(close) => {
                if let Some(connected) = end.connected.take() {
                    self.end_stream(streams, connected, close, now);
                }
            }
        }
        self.wake_for_events(streams);
    }

    /// Takes the stream from its queue pair and ends it.
    pub(super) fn end_stream(&self, streams: &Streams, connected: Connected, close: Close, now: Time) {
        let Connected { socket, connection, unsent, has_ended, .. } = connected;
        if close == Close::Graceful && !has_ended {
            return self.close_stream(streams, socket, unsent, Some(connection), now);
        }
        streams.sockets.remove(socket.as_fd());
        if close == Close::Reset {
            socket.close(Closing::Reset);
        }
        streams.queue_event(connection, StreamEvent::Ended);
    }
}
