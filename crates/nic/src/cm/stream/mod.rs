//! Connection management of iWARP: TCP connections and the MPA negotiation on them, behind the same ids and events.
//!
//! | file | question |
//! |---|---|
//! | here | the table of sockets, and the delivery of events |
//! | `active` | connecting |
//! | `passive` | listening, accepting and rejecting |
//! | `established` | from the first FPDU to the end |
//! | `calls` | the calls of programs on ids |
//!
//! A port of the connection manager is the TCP port with the same number, so the system assigns it. All sockets are in the epoll set of the
//! engine, which calls this module when one is ready. A connection keeps one number from its first socket to its end.
//!
//! | bound | value |
//! |---|---|
//! | connections that have sent no whole request | 256 per NIC; then the oldest is closed if it is older than 0.5 s |
//! | time for the request | 5 s |
//! | time for TCP to connect, and for the reply | 10 s, or the id's response timeout |
//! | attempts to connect while nobody listens | 2, the second 0.2 s after the first |
//! | time for the first FPDU behind the reply | 10 s |
//! | time that a responder without RTR leaves the first FPDU to the initiator | 50 ms |
//! | repetitions of the RTR message for a foreign peer that sends nothing | `established::RTR_REPEATS_NS`, 1.6 s in all |
//! | time for a disconnect | 5 s, then the stream is reset |
//! | requests that wait for the program, and connections without one, per listener | the backlog; then the system holds further ones |
//! | refused requests whose sockets still close | 64 per NIC; then the oldest is closed |
//! | private data | 508 bytes; with a key 472 in a request and 476 in a reply |
//!
//! Locks, in the order in which they may be taken: an id's state, then the connections, then a queue pair or the list of accepted proofs.
//! Events are delivered while no lock except the state of their id is held.

mod active;
mod calls;
mod established;
mod passive;

use super::event::{CmEvent, CmEventKind, ConnParam};
use super::service::LOCK_PATIENCE;
use super::{CmId, CmService};
use crate::engine::{Engine, StreamEvent};
use crate::link::{StreamSocket, now};
use active::Connecting;
use established::Established;
use ferroce_os::epoll::Interest;
use ferroce_os::lock::{Mutex, MutexGuard, lock_within};
use ferroce_proto::Time;
use ferroce_proto::cm::{Replays, Secret};
use ferroce_proto::iwarp::negotiation::NegotiationError;
use ferroce_proto::iwarp::wire::{self, Enhanced};
use passive::{Listening, Requesting, Undecided};
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most private data of a program, in bytes. The enhanced words of MPA revision 2 occupy the rest of the field.
pub(super) const MAX_PROGRAM_DATA: usize = wire::MAX_PRIVATE_DATA - Enhanced::LEN;

/// The reason and remedy if the hard limit of descriptors does not suffice.
const NO_DESCRIPTOR: &str = "an iWARP connection needs a descriptor, and the process has as many as its hard limit allows (raise it: ulimit -Hn)";

/// Requests whose proof was accepted, by any NIC of the process: the port of a closed NIC can belong to the next one.
static REPLAYS: Mutex<Replays> = Mutex::new(Replays::new());

/// The connections of one NIC.
pub(in crate::cm) struct StreamCm {
    connections: Mutex<Connections>,
    /// Whether to request a CRC.
    crc: bool,
    /// The key of connections whose id has none.
    secret: Option<Secret>,
}

/// The connections and listeners, by number.
#[derive(Default)]
struct Connections {
    last: u64,
    entries: HashMap<u64, Entry>,
    /// When entries are due.
    deadlines: BTreeSet<(Time, u64)>,
    /// Numbers of the connections without a whole request, the oldest first.
    half_open: BTreeSet<u64>,
    /// Requests and replies without a valid proof.
    unproven: u64,
    /// Requests whose proof was used before or is too old.
    replayed: u64,
    /// Requests with a proof that did not fit into [`REPLAYS`].
    overload: u64,
    /// Events to deliver when the lock is released.
    events: Vec<Delivery>,
}

enum Entry {
    Listening(Listening),
    Requesting(Requesting),
    Undecided(Undecided),
    Connecting(Connecting),
    Established(Established),
}

impl Entry {
    fn deadline(&self) -> Option<Time> {
        match self {
            Entry::Listening(listening) => listening.resumes_at(),
            Entry::Requesting(requesting) => Some(requesting.deadline()),
            Entry::Undecided(_) => None,
            Entry::Connecting(connecting) => Some(connecting.due()),
            Entry::Established(established) => established.deadline(),
        }
    }
}

/// An event to deliver after the lock is released. It holds the id, whose last handle must not be dropped under the lock.
enum Delivery {
    Event { id: Arc<CmId>, kind: CmEventKind, status: i32, conn: ConnParam },
    Request { listener: Arc<CmId>, number: u64, local: SocketAddr, peer: SocketAddr, conn: ConnParam },
    Nothing { _id: Arc<CmId> },
}

impl Connections {
    fn insert(&mut self, entry: Entry) -> u64 {
        self.last += 1;
        self.put(self.last, entry);
        self.last
    }

    fn put(&mut self, number: u64, entry: Entry) {
        if let Some(at) = entry.deadline() {
            self.deadlines.insert((at, number));
        }
        if matches!(entry, Entry::Requesting(_)) {
            self.half_open.insert(number);
        }
        self.entries.insert(number, entry);
    }

    fn take(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        if let Some(at) = entry.deadline() {
            self.deadlines.remove(&(at, number));
        }
        self.half_open.remove(&number);
        Some(entry)
    }

    fn raise(&mut self, id: Option<Arc<CmId>>, kind: CmEventKind, status: i32, conn: ConnParam) {
        self.events.extend(id.map(|id| Delivery::Event { id, kind, status, conn }));
    }

    /// Keeps an id alive until the lock is released.
    fn keep(&mut self, id: &Option<Arc<CmId>>) {
        self.events.extend(id.clone().map(|id| Delivery::Nothing { _id: id }));
    }

    /// Counts a negotiation that failed because of the key.
    fn count_failure(&mut self, error: NegotiationError) {
        match error {
            NegotiationError::Unproven => self.unproven += 1,
            NegotiationError::Replayed => self.replayed += 1,
            NegotiationError::TooManyRequests => self.overload += 1,
            _ => {}
        }
    }

    fn named_counters(&self, refused: u64) -> Vec<(&'static str, u64)> {
        let count =
            |is_it: fn(&Entry) -> bool| self.entries.values().filter(|entry| is_it(entry)).count() as u64;
        vec![
            ("connections_now", count(|entry| matches!(entry, Entry::Established(_)))),
            ("half_open_now", self.half_open.len() as u64),
            ("pending_requests_now", count(|entry| matches!(entry, Entry::Undecided(_)))),
            ("refused_now", refused),
            ("unproven", self.unproven),
            ("replayed", self.replayed),
            ("overload", self.overload),
        ]
    }
}

impl StreamCm {
    pub(in crate::cm) fn new(crc: bool, secret: Option<Secret>) -> StreamCm {
        StreamCm { connections: Mutex::default(), crc, secret }
    }

    pub(in crate::cm) fn named_counters(&self, refused: u64) -> Vec<(&'static str, u64)> {
        lock_within(&self.connections, LOCK_PATIENCE).map_or_else(Vec::new, |c| c.named_counters(refused))
    }
}

impl CmService {
    /// Runs `work` on the connections, then delivers the events.
    fn with_connections<R>(&self, streams: &StreamCm, work: impl FnOnce(&mut Connections) -> R) -> R {
        let (result, events) = self.work_locked(streams.connections.lock(), work);
        self.deliver_stream_events(streams, events);
        result
    }

    /// Runs `work` on the connections and releases their lock. The caller delivers the events while it holds no state of an id.
    fn work_locked<R>(
        &self,
        mut connections: MutexGuard<'_, Connections>,
        work: impl FnOnce(&mut Connections) -> R,
    ) -> (R, Vec<Delivery>) {
        let result = work(&mut connections);
        let events = std::mem::take(&mut connections.events);
        let next_ns = connections.deadlines.first().map_or(u64::MAX, |(at, _)| at.0);
        self.engine.set_agent_deadline(next_ns);
        drop(connections);
        self.engine.activity.wake_before(next_ns);
        (result, events)
    }

    fn deliver_stream_events(&self, streams: &StreamCm, events: Vec<Delivery>) {
        events.into_iter().for_each(|event| self.deliver_stream_event(streams, event));
    }

    fn deliver_stream_event(&self, streams: &StreamCm, event: Delivery) {
        match event {
            Delivery::Event { id, kind, status, conn } => {
                let mut event = CmEvent::new(kind, status, id.clone());
                event.conn = conn;
                id.push_if_open(event);
            }
            Delivery::Request { listener, number, local, peer, conn } => {
                let id = CmId::from_stream(&listener, number, local, peer);
                if let Some(Entry::Undecided(undecided)) = streams.connections.lock().entries.get_mut(&number)
                {
                    undecided.id = Arc::downgrade(&id);
                }
                let mut event = CmEvent::new(CmEventKind::ConnectRequest, 0, id);
                event.listener = Some(Arc::downgrade(&listener));
                event.conn = conn;
                listener.push_if_open(event);
            }
            Delivery::Nothing { .. } => {}
        }
    }

    /// A socket of this module is ready.
    pub(super) fn stream_socket_ready(&self, streams: &StreamCm, number: u64, now: Time) {
        self.with_connections(streams, |connections| match connections.take(number) {
            Some(Entry::Listening(listening)) => self.accept_waiting(connections, number, listening, now),
            Some(Entry::Requesting(requesting)) => self.read_request(connections, number, requesting),
            Some(Entry::Connecting(connecting)) => self.advance(connections, number, connecting),
            Some(other) => connections.put(number, other),
            None => {}
        });
    }

    pub(super) fn on_stream_events(&self, streams: &StreamCm, events: &[(u64, StreamEvent)]) {
        self.with_connections(streams, |connections| {
            events.iter().for_each(|(number, event)| established::on_event(connections, *number, *event));
        });
    }

    pub(super) fn handle_stream_timeout(&self, streams: &StreamCm, now: Time) {
        self.with_connections(streams, |connections| {
            while let Some(&(at, number)) = connections.deadlines.first()
                && at <= now
            {
                connections.deadlines.pop_first();
                match connections.take(number) {
                    Some(Entry::Listening(listening)) => self.resume(connections, number, listening),
                    Some(Entry::Requesting(requesting)) => self.unwatch(requesting.socket()),
                    Some(Entry::Connecting(connecting)) => {
                        self.on_connecting_due(connections, number, connecting);
                    }
                    Some(Entry::Established(established)) => {
                        self.on_due(connections, number, established);
                    }
                    Some(undecided @ Entry::Undecided(_)) => connections.put(number, undecided),
                    None => {}
                }
            }
        });
    }

    /// Ends every connection: the device is about to close.
    pub(super) fn close_streams(&self, streams: &StreamCm) {
        // One time limit for all locks together, as for RoCE.
        let start = Instant::now();
        let Some(connections) = lock_within(&streams.connections, LOCK_PATIENCE) else { return };
        let ((), events) = self.work_locked(connections, |connections| {
            let numbers: Vec<u64> = connections.entries.keys().copied().collect();
            for number in numbers {
                let left = LOCK_PATIENCE.saturating_sub(start.elapsed());
                self.release_within(connections, number, Some(left));
            }
        });
        self.deliver_stream_events(streams, events);
    }

    /// Ends the connection or listener with this number. No event follows.
    fn release_entry(&self, connections: &mut Connections, number: u64) {
        self.release_within(connections, number, None);
    }

    /// The same. Waits at most for `max_wait`, if given, for the lock of the queue pair.
    fn release_within(&self, connections: &mut Connections, number: u64, max_wait: Option<Duration>) {
        match connections.take(number) {
            Some(Entry::Listening(listening)) => self.stop_listening(connections, number, &listening),
            Some(Entry::Requesting(requesting)) => self.unwatch(requesting.socket()),
            Some(Entry::Undecided(undecided)) => self.refuse(connections, undecided, &[]),
            Some(Entry::Connecting(connecting)) => self.unwatch(&connecting.socket),
            Some(Entry::Established(established)) => {
                if let Some((engine, qp)) = self.engine.device.find_qp(established.qpn)
                    && let Some(stream) = qp.stream()
                {
                    match max_wait {
                        Some(max_wait) => engine.disconnect_stream_within(&qp, stream, max_wait),
                        None => engine.disconnect_stream(&qp, stream),
                    }
                }
            }
            None => {}
        }
    }

    /// Watches a socket of the entry with this number.
    fn watch(&self, fd: BorrowedFd<'_>, interest: Interest, number: u64) -> std::io::Result<()> {
        match self.engine.sockets() {
            Some(sockets) => sockets.watch(fd, interest, Engine::agent_token(number)),
            None => Err(std::io::ErrorKind::Unsupported.into()),
        }
    }

    fn unwatch(&self, socket: &impl std::os::fd::AsFd) {
        self.engine.sockets().into_iter().for_each(|sockets| sockets.remove(socket.as_fd()));
    }

    /// Sends a last frame, and closes after it.
    fn send_last(&self, socket: StreamSocket, frame: &[u8]) {
        // The buffer of a new socket takes a frame of some hundred bytes. If this fails, the peer gets the end of the stream.
        let _ = socket.send_frame(frame);
        self.engine.close_socket(socket, now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_key_are_counted_by_reason() {
        let mut connections = Connections::default();
        connections.count_failure(NegotiationError::Unproven);
        (0..2).for_each(|_| connections.count_failure(NegotiationError::Replayed));
        (0..3).for_each(|_| connections.count_failure(NegotiationError::TooManyRequests));
        let counters: HashMap<_, _> = connections.named_counters(0).into_iter().collect();
        assert_eq!(["unproven", "replayed", "overload"].map(|name| counters[name]), [1, 2, 3]);
    }
}
