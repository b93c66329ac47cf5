//! Listening: accepts TCP connections, reads their MPA requests, and accepts or rejects them for the program.

use super::{Connections, Delivery, Entry, Established, REPLAYS};
use crate::cm::event::{CmEventKind, ConnParam};
use crate::cm::{CmId, CmService};
use crate::engine::NewStream;
use crate::link::{StreamListener, StreamSocket};
use ferroce_os::clock::wall_clock_ns;
use ferroce_os::descriptors::reserve_above;
use ferroce_os::epoll::Interest;
use ferroce_os::log;
use ferroce_proto::cm::Secret;
use ferroce_proto::iwarp::negotiation::{
    Offer, REPLY_TIMEOUT_NS, REQUEST_TIMEOUT_NS, Request, Responder, StreamAddrs,
};
use ferroce_proto::iwarp::wire::MAX_PRIVATE_DATA;
use ferroce_proto::{Gid, Qpn, Time};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Weak;

/// Most connections without a whole request per NIC. A process may have 1024 descriptors by default.
pub(super) const MAX_HALF_OPEN: usize = 256;
/// The oldest connection without a request is closed in favour of waiting ones only from this age on. A request usually follows its
/// connection immediately.
const EVICTED_FROM_NS: u64 = 500_000_000;
/// How long a listener pauses that cannot close an old enough connection without a request.
const FULL_PAUSE_NS: u64 = 10_000_000;
/// Connections accepted in one poll.
const ACCEPTS: usize = 64;
/// How long a listener pauses after the system could not accept: it is out of descriptors or memory.
const FAILED_PAUSE_NS: u64 = 100_000_000;
/// Bytes of one read: a whole request, and a little of what follows.
const READ: usize = MAX_PRIVATE_DATA + 64;

/// A listener.
pub(super) struct Listening {
    pub(super) socket: StreamListener,
    pub(super) id: Weak<CmId>,
    /// The key that requests must prove.
    pub(super) secret: Option<Secret>,
    /// Most requests that wait for the program.
    pub(super) backlog: usize,
    pub(super) undecided: usize,
    pub(super) paused_until: Option<Time>,
}

impl Listening {
    pub(super) fn resumes_at(&self) -> Option<Time> {
        self.paused_until
    }
}

/// A connection whose request has not arrived.
pub(super) struct Requesting {
    socket: StreamSocket,
    responder: Responder,
    listener: u64,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Requesting {
    pub(super) fn deadline(&self) -> Time {
        self.responder.deadline()
    }
    pub(super) fn socket(&self) -> &StreamSocket {
        &self.socket
    }
}

/// A request that the program has not answered. Its socket is not watched.
pub(super) struct Undecided {
    socket: StreamSocket,
    request: Request,
    /// Bytes behind the request.
    received: Vec<u8>,
    listener: u64,
    peer: SocketAddr,
    pub(super) id: Weak<CmId>,
}

impl Undecided {
    /// Bytes of private data that the proof in the reply needs.
    pub(super) fn proof_len(&self) -> usize {
        self.request.proof_len()
    }
}

impl Connections {
    /// The connections of a listener without a request yet, the oldest first.
    fn half_open_of(&self, listener: u64) -> impl Iterator<Item = u64> {
        let is_its = move |entry: &Entry| matches!(entry, Entry::Requesting(r) if r.listener == listener);
        self.half_open.iter().copied().filter(move |number| self.entries.get(number).is_some_and(is_its))
    }
}

/// What the process or the system lacks to accept a connection, and the remedy.
fn shortage(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EMFILE => {
            Some("the process has as many descriptors as its soft limit allows (raise it: ulimit -n)")
        }
        libc::ENFILE => Some("the system has as many open files as it allows (raise it: sysctl fs.file-max)"),
        libc::ENOBUFS | libc::ENOMEM => Some("the system is short of memory"),
        _ => None,
    }
}

impl CmService {
    /// Starts to listen, or resumes.
    pub(super) fn resume(&self, connections: &mut Connections, number: u64, mut listening: Listening) {
        listening.paused_until = None;
        // Fails if the system is out of memory: try again later.
        if self.watch(listening.socket.as_fd(), Interest::Read, number).is_err() {
            listening.paused_until = Some(crate::link::now() + FAILED_PAUSE_NS);
        }
        connections.put(number, Entry::Listening(listening));
    }

    pub(super) fn accept_waiting(
        &self,
        connections: &mut Connections,
        number: u64,
        mut listening: Listening,
        now: Time,
    ) {
        // Each connection without a request may become a pending request, one that the program has neither accepted nor rejected.
        let mut waiting = listening.undecided + connections.half_open_of(number).count();
        for _ in 0..ACCEPTS {
            if listening.undecided >= listening.backlog {
                // The listener resumes when the program decides about a request.
                self.unwatch(&listening.socket);
                break;
            }
            let is_full = waiting >= listening.backlog;
            let oldest = match is_full {
                true => connections.half_open_of(number).next(),
                false => connections.half_open.first().copied(),
            };
            let has_capacity = !is_full && connections.half_open.len() < MAX_HALF_OPEN;
            if !has_capacity && !self.evict_oldest(connections, oldest, now) {
                self.unwatch(&listening.socket);
                listening.paused_until = Some(now + FULL_PAUSE_NS);
                break;
            }
            match listening.socket.accept() {
                Ok(Some((socket, local, peer))) => {
                    self.begin_request(connections, number, (socket, local, peer), now);
                    waiting += 1;
                    // Evict again only in the next call, for a connection that certainly waits.
                    if !has_capacity {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    // Any other error means that the connection ended before it was accepted.
                    if let Some(why) = shortage(&error) {
                        log::refusal(format_args!("a connection waits to be accepted: {why}: {error}"));
                        self.unwatch(&listening.socket);
                        listening.paused_until = Some(now + FAILED_PAUSE_NS);
                        break;
                    }
                }
            }
        }
        connections.put(number, Entry::Listening(listening));
    }

    /// Closes the oldest connection without a request, unless it is young. Returns whether it did.
    fn evict_oldest(&self, connections: &mut Connections, oldest: Option<u64>, now: Time) -> bool {
        let is_old = |requesting: &Requesting| {
            requesting.deadline().since_ns(now) + EVICTED_FROM_NS <= REQUEST_TIMEOUT_NS
        };
        match oldest.and_then(|oldest| Some((oldest, connections.entries.get(&oldest)?))) {
            Some((oldest, Entry::Requesting(requesting))) if is_old(requesting) => {
                let peer = requesting.peer;
                self.unwatch(&requesting.socket);
                log::drop(format_args!("connection from {peer}: no MPA request, and others wait"));
                connections.take(oldest);
                true
            }
            _ => false,
        }
    }

    fn begin_request(
        &self,
        connections: &mut Connections,
        listener: u64,
        (socket, local, peer): (StreamSocket, SocketAddr, SocketAddr),
        now: Time,
    ) {
        // A listener on the wildcard address also receives connections to addresses that the device does not have.
        if self.addresses.find(Gid::from_ip(local.ip())).is_none() {
            return log::drop(format_args!(
                "connection from {peer} to {local}: not an address of this device"
            ));
        }
        let requesting = Requesting { socket, responder: Responder::new(now), listener, local, peer };
        let number = connections.insert(Entry::Requesting(requesting));
        let Some(Entry::Requesting(requesting)) = connections.entries.get(&number) else { return };
        if self.watch(requesting.socket.as_fd(), Interest::Read, number).is_err() {
            connections.take(number);
        }
    }

    /// Reads the request of a connection.
    pub(super) fn read_request(
        &self,
        connections: &mut Connections,
        number: u64,
        mut requesting: Requesting,
    ) {
        let mut buffer = [0; READ];
        loop {
            let count = match requesting.socket.receive(&mut buffer) {
                Ok(Some(count @ 1..)) => count,
                Ok(None) => return connections.put(number, Entry::Requesting(requesting)),
                _ => return self.unwatch(&requesting.socket),
            };
            match requesting.responder.receive(&buffer[..count]) {
                Ok((_, None)) => {}
                Ok((used, Some(request))) => {
                    return self.on_request(connections, number, requesting, request, &buffer[used..count]);
                }
                Err(error) => {
                    log::refusal(format_args!("connection from {}: {error}", requesting.peer));
                    return self.unwatch(&requesting.socket);
                }
            }
        }
    }

    fn on_request(
        &self,
        connections: &mut Connections,
        number: u64,
        requesting: Requesting,
        mut request: Request,
        received: &[u8],
    ) {
        let Requesting { socket, listener, local, peer, .. } = requesting;
        self.unwatch(&socket);
        if let Some(error) = request.unacceptable() {
            log::refusal(format_args!("connection from {peer}: {error}"));
            return self.send_last(socket, &request.reject(&[]));
        }
        let Some(Entry::Listening(listening)) = connections.entries.get_mut(&listener) else { return };
        if let Some(secret) = &listening.secret {
            let addrs = StreamAddrs { initiator: peer, responder: local };
            let time_and_nonce = (wall_clock_ns() / 1_000_000_000, ferroce_os::random::number());
            if let Err(error) = request.check_key(secret, addrs, time_and_nonce, &mut REPLAYS.lock()) {
                connections.count_failure(error);
                log::refusal(format_args!("connection from {peer}: {error}"));
                return self.send_last(socket, &request.reject(error.reject_text()));
            }
        }
        let Some(id) = listening.id.upgrade() else { return };
        listening.undecided += 1;
        // Without negotiated depths, the program's own depth applies.
        let depth = |depth: Option<u16>| depth.and_then(|depth| u8::try_from(depth).ok()).unwrap_or(u8::MAX);
        let (ird, ord) = request.depths();
        let conn = ConnParam {
            private_data: request.private_data().to_vec(),
            responder_resources: depth(ord),
            initiator_depth: depth(ird),
            ..ConnParam::default()
        };
        let received = received.to_vec();
        let undecided = Undecided { socket, request, received, listener, peer, id: Weak::new() };
        connections.put(number, Entry::Undecided(undecided));
        connections.events.push(Delivery::Request { listener: id, number, local, peer, conn });
    }

    /// Accepts a request.
    pub(super) fn accept_request(
        &self,
        connections: &mut Connections,
        number: u64,
        undecided: Undecided,
        (offer, qpn, private_data): (&Offer, Qpn, &[u8]),
        now: Time,
    ) -> io::Result<()> {
        let Undecided { socket, request, received, listener, peer, id } = undecided;
        self.decided(connections, listener);
        // Arriving connections do not raise the limit, so an accepted connection reserves descriptors for later ones.
        reserve_above(socket.as_fd(), MAX_HALF_OPEN);
        let invalid = |_| io::Error::from_raw_os_error(libc::EPROTO);
        let (terms, reply) = request.accept(offer, private_data).map_err(invalid)?;
        let (engine, qp) =
            self.engine.device.find_qp(qpn).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let new = NewStream {
            socket,
            connection: number,
            peer: peer.ip(),
            terms,
            reply: &reply,
            received: &received,
        };
        engine.connect_stream(&qp, new).map_err(|(socket, error)| {
            self.unwatch(&socket);
            error
        })?;
        let strong = id.upgrade();
        // A connection without RTR is reported to its program immediately, as by siw.
        if terms.rtr.is_none() {
            connections.put(number, Entry::Established(Established::without_rtr(id, qpn, now)));
            connections.raise(strong, CmEventKind::Established, 0, ConnParam::default());
        } else {
            let first_by = Some(now + REPLY_TIMEOUT_NS);
            connections.put(number, Entry::Established(Established::new(id, qpn, first_by)));
            connections.keep(&strong);
        }
        Ok(())
    }

    /// Refuses a request.
    pub(super) fn refuse(&self, connections: &mut Connections, undecided: Undecided, private_data: &[u8]) {
        let Undecided { socket, request, listener, .. } = undecided;
        self.decided(connections, listener);
        self.send_last(socket, &request.reject(private_data));
    }

    /// The program decided about a request: the listener may accept another connection.
    fn decided(&self, connections: &mut Connections, listener: u64) {
        let Some(Entry::Listening(listening)) = connections.entries.get_mut(&listener) else { return };
        let was_full = listening.undecided >= listening.backlog;
        listening.undecided -= 1;
        if was_full
            && listening.paused_until.is_none()
            && let Some(Entry::Listening(listening)) = connections.take(listener)
        {
            self.resume(connections, listener, listening);
        }
    }

    /// Ends a listener and its connections without a request.
    pub(super) fn stop_listening(&self, connections: &mut Connections, number: u64, listening: &Listening) {
        self.unwatch(&listening.socket);
        let half_open: Vec<u64> = connections.half_open_of(number).collect();
        for other in half_open {
            if let Some(Entry::Requesting(requesting)) = connections.take(other) {
                self.unwatch(&requesting.socket);
            }
        }
    }
}
