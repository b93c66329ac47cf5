//! Connecting: TCP, then the MPA request and its reply.

use super::{Connections, Entry, Established};
use crate::cm::event::{CmEventKind, ConnParam};
use crate::cm::{CmId, CmService};
use crate::engine::NewStream;
use crate::link::{StreamSocket, now};
use ferroce_os::epoll::Interest;
use ferroce_os::log;
use ferroce_proto::iwarp::negotiation::{Initiator, Negotiated, Offer};
use ferroce_proto::iwarp::wire::MAX_PRIVATE_DATA;
use ferroce_proto::{Qpn, Time};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Weak;

/// Bytes of one read: a whole reply, and a little of what follows.
const READ: usize = MAX_PRIVATE_DATA + 64;

/// An attempt to connect.
pub(super) struct Connecting {
    pub(super) socket: StreamSocket,
    pub(super) id: Weak<CmId>,
    pub(super) qpn: Qpn,
    pub(super) peer: SocketAddr,
    pub(super) offer: Offer,
    pub(super) private_data: Vec<u8>,
    /// From the moment that TCP is connected.
    pub(super) initiator: Option<Initiator>,
    pub(super) deadline: Time,
}

/// How an attempt failed.
struct Failure {
    kind: CmEventKind,
    /// A negative error number.
    status: i32,
    private_data: Vec<u8>,
}

impl Failure {
    fn new(kind: CmEventKind, errno: i32) -> Failure {
        Failure { kind, status: -errno, private_data: Vec::new() }
    }

    /// The event that Linux raises for an error of TCP.
    fn of(error: &io::Error) -> Failure {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        let kind = match errno {
            libc::ECONNREFUSED | libc::ECONNRESET | libc::EPIPE => CmEventKind::Rejected,
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => CmEventKind::Unreachable,
            _ => CmEventKind::ConnectError,
        };
        Failure::new(kind, if errno == libc::EPIPE { libc::ECONNRESET } else { errno })
    }
}

/// Where an attempt stands after a step.
enum Step {
    Waits,
    Accepted { terms: Negotiated, private_data: Vec<u8>, received: Vec<u8> },
    Failed(Failure),
}

impl CmService {
    /// The socket of an attempt is ready.
    pub(super) fn advance(&self, connections: &mut Connections, number: u64, mut connecting: Connecting) {
        let step = match &mut connecting.initiator {
            None => self.send_request(&mut connecting, number),
            Some(initiator) => read_reply(&connecting.socket, initiator, connecting.peer),
        };
        match step {
            Step::Waits => connections.put(number, Entry::Connecting(connecting)),
            Step::Accepted { terms, private_data, received } => {
                self.start_stream(connections, number, connecting, terms, private_data, &received);
            }
            Step::Failed(failure) => self.fail(connections, &connecting, failure),
        }
    }

    /// TCP is connected, or failed to.
    fn send_request(&self, connecting: &mut Connecting, number: u64) -> Step {
        let Connecting { socket, offer, private_data, .. } = &*connecting;
        let (initiator, request) = Initiator::new(*offer, private_data);
        let sent = socket.connected().and_then(|()| socket.send_frame(&request));
        let watched = sent.and_then(|()| self.watch(socket.as_fd(), Interest::Read, number));
        match watched {
            Ok(()) => {
                connecting.initiator = Some(initiator);
                Step::Waits
            }
            Err(error) => Step::Failed(Failure::of(&error)),
        }
    }

    /// The responder accepted: the queue pair gets the stream.
    fn start_stream(
        &self,
        connections: &mut Connections,
        number: u64,
        connecting: Connecting,
        terms: Negotiated,
        private_data: Vec<u8>,
        received: &[u8],
    ) {
        let Connecting { socket, id, qpn, peer, .. } = connecting;
        let connected = match self.engine.device.find_qp(qpn) {
            Some((engine, qp)) => {
                let new =
                    NewStream { socket, connection: number, peer: peer.ip(), terms, reply: &[], received };
                engine.connect_stream(&qp, new)
            }
            None => Err((socket, io::Error::from_raw_os_error(libc::EINVAL))),
        };
        if let Err((socket, error)) = connected {
            self.unwatch(&socket);
            log::refusal(format_args!("QP {qpn} cannot be connected to {peer}: {error}"));
            let status = -error.raw_os_error().unwrap_or(libc::EIO);
            return connections.raise(id.upgrade(), CmEventKind::ConnectError, status, ConnParam::default());
        }
        let conn = ConnParam {
            private_data,
            responder_resources: terms.ird,
            initiator_depth: terms.ord,
            ..ConnParam::default()
        };
        let strong = id.upgrade();
        let established = match terms.may_miss_rtr() {
            true => Established::after_rtr(id, qpn, now()),
            false => Established::new(id, qpn, None),
        };
        connections.put(number, Entry::Established(established));
        connections.raise(strong, CmEventKind::Established, 0, conn);
    }

    /// The time of an attempt is over.
    pub(super) fn give_up(&self, connections: &mut Connections, connecting: &Connecting) {
        let failure = Failure::new(CmEventKind::Unreachable, libc::ETIMEDOUT);
        self.fail(connections, connecting, failure);
    }

    /// An attempt failed before it began.
    pub(super) fn fail_connecting(
        &self,
        connections: &mut Connections,
        connecting: &Connecting,
        error: &io::Error,
    ) {
        self.fail(connections, connecting, Failure::of(error));
    }

    fn fail(&self, connections: &mut Connections, connecting: &Connecting, failure: Failure) {
        self.unwatch(&connecting.socket);
        let Failure { kind, status, private_data } = failure;
        let conn = ConnParam { private_data, ..ConnParam::default() };
        connections.raise(connecting.id.upgrade(), kind, status, conn);
    }
}

fn read_reply(socket: &StreamSocket, initiator: &mut Initiator, peer: SocketAddr) -> Step {
    let mut buffer = [0; READ];
    loop {
        let count = match socket.receive(&mut buffer) {
            Ok(Some(0)) => return Step::Failed(Failure::new(CmEventKind::Rejected, libc::ECONNRESET)),
            Ok(Some(count)) => count,
            Ok(None) => return Step::Waits,
            Err(error) => return Step::Failed(Failure::of(&error)),
        };
        match initiator.receive(&buffer[..count]) {
            Ok((_, None)) => {}
            Ok((used, Some(reply))) => {
                let private_data = reply.private_data;
                return match reply.accepted {
                    Some(terms) => {
                        Step::Accepted { terms, private_data, received: buffer[used..count].to_vec() }
                    }
                    None => Step::Failed(Failure {
                        private_data,
                        ..Failure::new(CmEventKind::Rejected, libc::ECONNRESET)
                    }),
                };
            }
            Err(error) => {
                log::refusal(format_args!("connecting to {peer}: {error}"));
                return Step::Failed(Failure::new(CmEventKind::ConnectError, libc::EPROTO));
            }
        }
    }
}
