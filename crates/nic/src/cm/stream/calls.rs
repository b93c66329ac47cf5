//! The calls of programs on ids of iWARP.

use super::active::{Connecting, Tries};
use super::passive::{Listening, MAX_HALF_OPEN};
use super::{Connections, Entry, MAX_PROGRAM_DATA, NO_DESCRIPTOR, StreamCm};
use crate::cm::CmId;
use crate::cm::event::{CmEvent, ConnParam};
use crate::cm::id::IdState;
use crate::error::{CmRefusal, Error};
use crate::link::{StreamSocket, now};
use ferroce_os::descriptors::{is_limit, reserve_above};
use ferroce_os::lock::MutexGuard;
use ferroce_proto::cm::{CmError, PortSpace, Secret};
use ferroce_proto::iwarp::negotiation::{Offer, REPLY_TIMEOUT_NS, REQUEST_PROOF_LEN};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// How long the peer may take to close its half of a stream, and to read what was sent.
const DISCONNECT_NS: u64 = 5_000_000_000;
/// RoCE's connection manager sends a request this many times, each with one response timeout. TCP gets the same time in total.
const ATTEMPTS: u64 = 16;

impl StreamCm {
    /// The key of an id: its own, or that of the device.
    fn secret_of(&self, state: &IdState) -> Option<Secret> {
        state.secret.clone().or_else(|| self.secret.clone())
    }

    fn offer(&self, param: &ConnParam) -> Offer {
        // Offer at least one READ: a READ from the peer would end a connection that answers none.
        let ird = param.responder_resources.max(1);
        Offer { crc: self.crc, ird, ord: param.initiator_depth, ..Offer::default() }
    }
}

/// Checks the private data of a frame whose proof of the key needs `proof_len` bytes.
fn check_private_data(private_data: &[u8], proof_len: usize) -> Result<(), Error> {
    let most = MAX_PROGRAM_DATA - proof_len;
    Error::check_limit("private_data_len", private_data.len() as u64, most as u64)
}

impl CmId {
    /// Binds a TCP socket to an address of the device.
    pub(in crate::cm) fn bind_stream(&self, state: &mut IdState, address: SocketAddr) -> Result<(), Error> {
        if self.space != PortSpace::Tcp {
            return Err(Error::NotOnThisWire { what: "port space but that of TCP" });
        }
        let Some(extras) = self.service.engine.stream_extras() else {
            return Err(Error::system("binding a TCP socket")(std::io::ErrorKind::Unsupported.into()));
        };
        let bound = StreamSocket::bind(address, state.options.af_only, extras)
            .and_then(|socket| socket.local_addr().map(|local| (socket, local)));
        let (socket, local) = bound.map_err(|error| {
            let what = if is_limit(&error) { NO_DESCRIPTOR } else { "binding a TCP socket" };
            Error::system(what)(error)
        })?;
        state.local = Some(local);
        state.socket = Some(socket);
        Ok(())
    }

    pub(in crate::cm) fn listen_stream(
        self: &Arc<Self>,
        streams: &StreamCm,
        state: &mut IdState,
        backlog: u32,
    ) -> Result<(), Error> {
        let Some(socket) = state.socket.take() else {
            return Err(CmRefusal::WrongState { why: "it is not bound" }.into());
        };
        let socket = socket.listen(backlog).map_err(|(socket, error)| {
            // The socket is still bound, so the caller may retry.
            state.socket = Some(socket);
            Error::system("listening on a TCP port")(error)
        })?;
        state.local = socket.local_addr().ok().or(state.local);
        let id = Arc::downgrade(self);
        let secret = streams.secret_of(state);
        let backlog = backlog as usize;
        reserve_above(socket.as_fd(), backlog.min(MAX_HALF_OPEN));
        let listening = Listening { socket, id, secret, backlog, undecided: 0, paused_until: None };
        state.stream = Some(self.service.with_connections(streams, |connections| {
            connections.last += 1;
            let number = connections.last;
            self.service.resume(connections, number, listening);
            number
        }));
        Ok(())
    }

    /// Starts to connect. The outcome is an event: `Established`, `Rejected`, `Unreachable` or `ConnectError`.
    pub(in crate::cm) fn connect_stream(
        self: &Arc<Self>,
        streams: &StreamCm,
        mut state: MutexGuard<'_, IdState>,
        param: &ConnParam,
    ) -> Result<(), Error> {
        let secret = streams.secret_of(&state);
        let proof_len = if secret.is_some() { REQUEST_PROOF_LEN } else { 0 };
        check_private_data(&param.private_data, proof_len)?;
        let (Some(peer), None) = (self.peer_addr(), state.stream) else {
            return Err(CmRefusal::WrongState { why: "it is connected already" }.into());
        };
        if self.service.engine.device.find_qp(param.qpn).is_none_or(|(_, qp)| qp.stream().is_none()) {
            return Err(Error::Invalid { attribute: "qp_num", why: "is no queue pair of this device" });
        }
        let Some(socket) = state.socket.take() else {
            return Err(CmRefusal::WrongState { why: "it was connected before" }.into());
        };
        let exponent = state.options.response_timeout;
        let timeout_ns = exponent.map_or(REPLY_TIMEOUT_NS, |n| (4096_u64 << n.min(31)) * ATTEMPTS);
        let connecting = Connecting {
            socket,
            id: Arc::downgrade(self),
            qpn: param.qpn,
            local: state.local,
            peer,
            traffic_class: state.options.tos,
            offer: streams.offer(param),
            secret,
            private_data: param.private_data.clone(),
            initiator: None,
            tries: Tries::First,
            deadline: now() + timeout_ns,
        };
        let (number, events) = self.service.work_locked(streams.connections.lock(), |connections| {
            connections.last += 1;
            let number = connections.last;
            self.service.begin(connections, number, connecting);
            number
        });
        state.stream = Some(number);
        // Delivering an event of this id locks its state.
        drop(state);
        self.service.deliver_stream_events(streams, events);
        Ok(())
    }

    pub(in crate::cm) fn accept_stream(&self, streams: &StreamCm, param: &ConnParam) -> Result<(), Error> {
        let (number, offer) = (self.stream_number()?, streams.offer(param));
        let proof_len = match streams.connections.lock().entries.get(&number) {
            Some(Entry::Undecided(undecided)) => undecided.proof_len(),
            _ => 0,
        };
        check_private_data(&param.private_data, proof_len)?;
        let accepted = self.service.with_connections(streams, |connections| {
            match take_undecided(connections, number) {
                Ok(undecided) => {
                    let how = (&offer, param.qpn, &param.private_data[..]);
                    Ok(self.service.accept_request(connections, number, undecided, how, now()))
                }
                Err(refusal) => Err(refusal),
            }
        })?;
        accepted.map_err(Error::system("accepting the connection"))
    }

    pub(in crate::cm) fn reject_stream(&self, streams: &StreamCm, private_data: &[u8]) -> Result<(), Error> {
        check_private_data(private_data, 0)?;
        let number = self.stream_number()?;
        self.service.with_connections(streams, |connections| {
            let undecided = take_undecided(connections, number)?;
            self.service.refuse(connections, undecided, private_data);
            Ok::<_, CmRefusal>(())
        })?;
        Ok(())
    }

    /// Ends the connection: `Disconnected` follows, unless the peer was first.
    pub(in crate::cm) fn disconnect_stream(&self, streams: &StreamCm) -> Result<(), Error> {
        let number = self.stream_number()?;
        self.service.with_connections(streams, |connections| {
            let qpn = match connections.take(number) {
                Some(Entry::Established(mut established)) => {
                    established.ends_by(now() + DISCONNECT_NS);
                    let qpn = established.qpn;
                    connections.put(number, Entry::Established(established));
                    qpn
                }
                Some(other) => {
                    connections.put(number, other);
                    return Err(CmRefusal::WrongState { why: "it is not connected" });
                }
                // It has already ended, as the caller requested.
                None => return Ok(()),
            };
            if let Some((engine, qp)) = self.service.engine.device.find_qp(qpn)
                && let Some(stream) = qp.stream()
            {
                engine.disconnect_stream(&qp, stream);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Releases the id's connection, listener and socket. Returns whether it listened.
    pub(in crate::cm) fn release_stream(&self, streams: &StreamCm) -> bool {
        let (number, socket) = {
            let mut state = self.state.lock();
            (state.stream.take(), state.socket.take())
        };
        drop(socket);
        let Some(number) = number else { return false };
        self.service.with_connections(streams, |connections| {
            let listened = matches!(connections.entries.get(&number), Some(Entry::Listening(_)));
            self.service.release_entry(connections, number);
            listened
        })
    }

    fn stream_number(&self) -> Result<u64, CmRefusal> {
        self.state.lock().stream.ok_or(CmRefusal::WrongState { why: "it has no connection" })
    }

    /// Queues an event, unless the id was closed: nobody would read it.
    pub(in crate::cm) fn push_if_open(&self, event: CmEvent) {
        let state = self.state.lock();
        let is_open = !state.is_closed && !self.is_removed();
        let unread = if is_open { self.queue().push(event) } else { Some(event) };
        drop(state);
        drop(unread);
    }
}

fn take_undecided(
    connections: &mut Connections,
    number: u64,
) -> Result<super::passive::Undecided, CmRefusal> {
    match connections.take(number) {
        Some(Entry::Undecided(undecided)) => Ok(undecided),
        other => {
            other.into_iter().for_each(|entry| connections.put(number, entry));
            Err(CmRefusal::Protocol(CmError::WrongState))
        }
    }
}
