//! What verbs and the connection manager do to a queue pair over a stream, on the caller's own thread.

use super::StreamEnd;
use super::end::{Connected, Unsent};
use crate::engine::host::NicHost;
use crate::engine::{Engine, QpCore};
use crate::error::Error;
use crate::link::{StreamSocket, now};
use crate::memory::settle_stopped;
use ferroce_os::epoll::Interest;
use ferroce_os::lock::lock_within;
use ferroce_proto::iwarp::StreamQp;
use ferroce_proto::iwarp::negotiation::{Negotiated, Role};
use ferroce_proto::iwarp::wire::largest_ulpdu;
use ferroce_proto::qp::{HistoryEvent, PostError};
use ferroce_proto::verbs::{AttrMask, QpAttr, QpState, RecvWr, SendWr};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

/// Longest ULPDU between two ferroce ends. TCP cuts it into segments; in a capture it fits one.
const LONG_ULPDU: u16 = 65_480;

/// A stream that a queue pair gets.
pub(crate) struct NewStream<'a> {
    pub(crate) socket: StreamSocket,
    /// The connection manager's number of the connection.
    pub(crate) connection: u64,
    pub(crate) peer: IpAddr,
    pub(crate) terms: Negotiated,
    /// Bytes to send first.
    pub(crate) reply: &'a [u8],
    /// Bytes that arrived behind the negotiation.
    pub(crate) received: &'a [u8],
}

impl Engine {
    /// Posts a send, which leaves before the call returns if the stream takes it. `host` belongs to the queue pair.
    pub(in crate::engine) fn post_stream(
        &self,
        qp: &QpCore,
        stream: &StreamEnd,
        wr: &SendWr<'_>,
        host: &mut NicHost<'_, '_>,
    ) -> Result<(), PostError> {
        let (mut machine, now) = (stream.machine.lock(), now());
        machine.post_send(wr, now, host)?;
        self.finish_stream(qp, stream, &mut machine, host, now);
        Ok(())
    }

    /// Posts receives.
    pub(crate) fn post_stream_recv<R>(
        &self,
        qp: &QpCore,
        stream: &StreamEnd,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        let (mut machine, now) = (stream.machine.lock(), now());
        let mut host = NicHost::alone(self, qp);
        fill(&mut |wr| machine.post_recv(wr, now, &mut host))
    }

    /// Changes attributes and state.
    pub(crate) fn modify_stream(
        &self,
        qp: &QpCore,
        stream: &StreamEnd,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), Error> {
        self.with_stream(qp, stream, |machine, host| Ok(machine.modify(attr, mask, now(), host)?))
    }

    /// Ends the connection. A message that is partially sent is finished first.
    pub(crate) fn disconnect_stream(&self, qp: &QpCore, stream: &StreamEnd) {
        self.with_stream(qp, stream, |machine, host| machine.disconnect(now(), host));
    }

    /// The same, but gives up if another thread holds the lock for longer than `max_wait`: at the exit of the process it may no longer run.
    pub(crate) fn disconnect_stream_within(&self, qp: &QpCore, stream: &StreamEnd, max_wait: Duration) {
        if let Some(mut machine) = lock_within(&stream.machine, max_wait) {
            self.with_locked_stream(qp, stream, &mut machine, |machine, host| {
                machine.disconnect(now(), host);
            });
        }
    }

    /// Repeats the RTR message for a peer that may have missed it. Returns whether that may be necessary again.
    pub(crate) fn repeat_rtr(&self, qp: &QpCore, stream: &StreamEnd) -> bool {
        self.with_stream(qp, stream, |machine, _| machine.repeat_rtr())
    }

    /// Lets a responder send although the initiator has sent nothing, once the peer has acknowledged the reply. Returns whether that
    /// acknowledgement is missing.
    pub(crate) fn send_first(&self, qp: &QpCore, stream: &StreamEnd) -> bool {
        self.with_stream(qp, stream, |machine, _| {
            let awaits_reply =
                stream.socket.lock().connected.as_ref().is_some_and(|end| end.socket.unacknowledged() > 0);
            if !awaits_reply {
                machine.send_first();
            }
            awaits_reply
        })
    }

    /// Ends the connection immediately: the peer missed a deadline.
    pub(crate) fn abort_stream(&self, qp: &QpCore, stream: &StreamEnd) {
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        let _ = self.modify_stream(qp, stream, &attr, AttrMask::STATE);
    }

    fn with_stream<R>(
        &self,
        qp: &QpCore,
        stream: &StreamEnd,
        work: impl FnOnce(&mut StreamQp, &mut NicHost<'_, '_>) -> R,
    ) -> R {
        self.with_locked_stream(qp, stream, &mut stream.machine.lock(), work)
    }

    fn with_locked_stream<R>(
        &self,
        qp: &QpCore,
        stream: &StreamEnd,
        machine: &mut StreamQp,
        work: impl FnOnce(&mut StreamQp, &mut NicHost<'_, '_>) -> R,
    ) -> R {
        let mut host = NicHost::alone(self, qp);
        let result = work(machine, &mut host);
        self.finish_stream(qp, stream, machine, &mut host, now());
        result
    }

    /// Connects a queue pair, which must be in INIT. Returns the socket if that fails.
    pub(crate) fn connect_stream(
        &self,
        qp: &QpCore,
        new: NewStream<'_>,
    ) -> Result<(), (StreamSocket, io::Error)> {
        let NewStream { socket, connection, peer, terms, reply, received } = new;
        let (Some(streams), Some(stream)) = (&self.streams, qp.stream()) else {
            return Err((socket, io::ErrorKind::Unsupported.into()));
        };
        let (mut machine, now) = (stream.machine.lock(), now());
        if machine.state() != QpState::Init {
            return Err((socket, io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let token = qp.qpn.value().into();
        let watched = streams.sockets.watch(socket.as_fd(), Interest::Read, token);
        if let Err(error) =
            watched.and_then(|()| if reply.is_empty() { Ok(()) } else { socket.send_frame(reply) })
        {
            return Err((socket, error));
        }
        let mulpdu = match terms.is_ferroce {
            true => LONG_ULPDU,
            false => largest_ulpdu(socket.segment_len()),
        };
        let access = machine.query().access;
        // It is in INIT, so it starts.
        let _ = machine.start(terms, access, mulpdu);
        qp.history.record(HistoryEvent::State(QpState::Rts), 1);
        *stream.peer.lock() = Some(peer);
        stream.socket.lock().connected = Some(Connected {
            socket,
            connection,
            unsent: Unsent::default(),
            interest: Interest::Read,
            awaits_writable: false,
            ends_records: !terms.is_ferroce,
            awaits_first: terms.role == Role::Responder && terms.rtr.is_some(),
            failed: None,
            has_ended: false,
        });
        let mut host = NicHost::alone(self, qp);
        machine.receive(received, now, &mut host);
        self.finish_stream(qp, stream, &mut machine, &mut host, now);
        Ok(())
    }

    /// Destroys a queue pair. Data that it has sent still reaches the peer. If a message is partially sent, the connection is reset.
    pub(in crate::engine) fn destroy_stream(&self, qp: &QpCore, stream: &StreamEnd) {
        let mut machine = stream.machine.lock();
        let (close, counters) = (machine.retire(), *machine.counters());
        settle_stopped(qp.address());
        let connected = stream.socket.lock().connected.take();
        self.retire(qp, 0, |retired| retired.add_stream(&counters));
        drop(machine);
        if let (Some(streams), Some(connected)) = (&self.streams, connected) {
            self.end_stream(streams, connected, close, now());
            self.wake_for_events(streams);
        }
        self.forget_recent();
        qp.send_cq.purge(qp.qpn);
        qp.recv_cq.purge(qp.qpn);
    }
}
