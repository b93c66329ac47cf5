//! Connecting: TCP, then the MPA request and its reply.

use super::{Connections, Entry, Established};
use crate::cm::event::{CmEventKind, ConnParam};
use crate::cm::{CmId, CmService};
use crate::engine::NewStream;
use crate::link::{StreamSocket, now};
use ferroce_os::clock::wall_clock_ns;
use ferroce_os::epoll::Interest;
use ferroce_os::log;
use ferroce_proto::cm::{NOT_PROVEN, Secret};
use ferroce_proto::iwarp::negotiation::{
    Initiator, Negotiated, NegotiationError, Offer, RequestKey, StreamAddrs,
};
use ferroce_proto::iwarp::wire::MAX_PRIVATE_DATA;
use ferroce_proto::{Qpn, Time};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Weak;

/// Bytes of one read: a whole reply, and a little of what follows.
const READ: usize = MAX_PRIVATE_DATA + 64;

/// Time after which an attempt that TCP refused is repeated once. Programs sometimes connect just before their peer listens; RoCE retries
/// its request, too.
const AGAIN_NS: u64 = 200_000_000;

/// The number of attempts so far.
#[derive(Clone, Copy)]
pub(super) enum Tries {
    First,
    /// The second attempt starts at this time.
    SecondAt(Time),
    Second,
}

/// An attempt to connect.
pub(super) struct Connecting {
    pub(super) socket: StreamSocket,
    pub(super) id: Weak<CmId>,
    pub(super) qpn: Qpn,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: SocketAddr,
    pub(super) traffic_class: u8,
    pub(super) offer: Offer,
    pub(super) private_data: Vec<u8>,
    /// The key that both ends must prove.
    pub(super) secret: Option<Secret>,
    /// `Some` once TCP is connected.
    pub(super) initiator: Option<Initiator>,
    pub(super) tries: Tries,
    /// The end of the time for the whole attempt.
    pub(super) deadline: Time,
}

impl Connecting {
    /// When the next step is due.
    pub(super) fn due(&self) -> Time {
        match self.tries {
            Tries::SecondAt(at) => at.min(self.deadline),
            Tries::First | Tries::Second => self.deadline,
        }
    }

    /// Sends the request, if TCP is connected.
    fn request(&self) -> io::Result<Initiator> {
        let Connecting { socket, offer, private_data, peer, .. } = self;
        socket.connected()?;
        let addrs = StreamAddrs { initiator: socket.local_addr()?, responder: *peer };
        let key = self.secret.clone().map(|secret| {
            let nonce = ferroce_os::random::number();
            RequestKey { secret, addrs, nonce, unix_s: wall_clock_ns() / 1_000_000_000 }
        });
        let (initiator, request) = Initiator::with_key(*offer, private_data, key.as_ref());
        socket.send_frame(&request)?;
        Ok(initiator)
    }
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

/// The result of a step of an attempt.
enum Step {
    Waits,
    Accepted {
        terms: Negotiated,
        private_data: Vec<u8>,
        received: Vec<u8>,
    },
    /// The reply does not prove the key.
    Unproven,
    Failed(Failure),
}

impl CmService {
    /// Starts to connect.
    pub(super) fn begin(&self, connections: &mut Connections, number: u64, connecting: Connecting) {
        let Connecting { socket, peer, traffic_class, .. } = &connecting;
        socket.set_traffic_class(*traffic_class);
        let watched =
            socket.connect(*peer).and_then(|()| self.watch(socket.as_fd(), Interest::Write, number));
        match watched {
            Ok(()) => connections.put(number, Entry::Connecting(connecting)),
            // TCP can refuse immediately, for example without a route.
            Err(error) => self.on_failure(connections, number, connecting, Failure::of(&error)),
        }
    }

    /// The socket of an attempt is ready.
    pub(super) fn advance(&self, connections: &mut Connections, number: u64, mut connecting: Connecting) {
        if let Tries::SecondAt(_) = connecting.tries {
            // The event belongs to the first socket.
            return connections.put(number, Entry::Connecting(connecting));
        }
        let step = match &mut connecting.initiator {
            None => self.send_request(&mut connecting, number),
            Some(initiator) => read_reply(&connecting.socket, initiator, connecting.peer),
        };
        match step {
            Step::Waits => connections.put(number, Entry::Connecting(connecting)),
            Step::Accepted { terms, private_data, received } => {
                self.start_stream(connections, number, connecting, terms, private_data, &received);
            }
            Step::Unproven => {
                connections.count_failure(NegotiationError::Unproven);
                let failure = Failure::new(CmEventKind::Rejected, libc::ECONNRESET);
                let failure = Failure { private_data: NOT_PROVEN.to_vec(), ..failure };
                self.fail(connections, &connecting, failure);
            }
            Step::Failed(failure) => self.on_failure(connections, number, connecting, failure),
        }
    }

    /// Repeats the first attempt later if TCP refused it; otherwise reports the failure to the program.
    fn on_failure(
        &self,
        connections: &mut Connections,
        number: u64,
        connecting: Connecting,
        failure: Failure,
    ) {
        let again_at = now() + AGAIN_NS;
        let is_over = failure.status != -libc::ECONNREFUSED || again_at >= connecting.deadline;
        let socket = match (connecting.tries, connecting.local, self.engine.stream_extras()) {
            // A new socket with the same port, which belongs to the id.
            (Tries::First, Some(local), Some(extras)) if !is_over => {
                StreamSocket::bind(local, false, extras).ok()
            }
            _ => None,
        };
        let Some(socket) = socket else { return self.fail(connections, &connecting, failure) };
        self.unwatch(&connecting.socket);
        let tries = Tries::SecondAt(again_at);
        connections.put(number, Entry::Connecting(Connecting { socket, tries, ..connecting }));
    }

    /// TCP is connected, or failed to.
    fn send_request(&self, connecting: &mut Connecting, number: u64) -> Step {
        match connecting.request().and_then(|initiator| {
            self.watch(connecting.socket.as_fd(), Interest::Read, number)?;
            Ok(initiator)
        }) {
            Ok(initiator) => {
                connecting.initiator = Some(initiator);
                Step::Waits
            }
            Err(error) => Step::Failed(Failure::of(&error)),
        }
    }

    /// The responder accepted: passes the stream to the queue pair.
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

    /// The second attempt is due, or the time for all attempts is over.
    pub(super) fn on_connecting_due(
        &self,
        connections: &mut Connections,
        number: u64,
        connecting: Connecting,
    ) {
        match connecting.tries {
            Tries::SecondAt(_) => {
                self.begin(connections, number, Connecting { tries: Tries::Second, ..connecting });
            }
            Tries::First | Tries::Second => {
                let failure = Failure::new(CmEventKind::Unreachable, libc::ETIMEDOUT);
                self.fail(connections, &connecting, failure);
            }
        }
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
                return match error {
                    NegotiationError::Unproven => Step::Unproven,
                    _ => Step::Failed(Failure::new(CmEventKind::ConnectError, libc::EPROTO)),
                };
            }
        }
    }
}
