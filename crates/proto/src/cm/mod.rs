//! The communication manager (IBA chapter 12) as a state machine without I/O.
//!
//! One [`Cm`] serves one NIC. Its input is calls, messages and time; its output is messages and events:
//!
//! - **calls** of the program: [`Cm::listen`], [`Cm::connect`], [`Cm::accept`], [`Cm::reject`], [`Cm::establish`],
//!   [`Cm::disconnect`], [`Cm::query`], [`Cm::answer`], [`Cm::release`];
//! - [`Cm::handle_mad`] for each message that arrives, [`Cm::handle_timeout`] when [`Cm::deadline`] has passed, [`Cm::handle_death`] when
//!   the process of a peer has died;
//! - after each of them, [`Cm::poll_transmit`] and [`Cm::poll_event`] until they are empty.
//!
//! ```text
//!   active                                   passive
//!   connect     -- REQ ------------------->  Event::Request
//!               <------------------- REP --  accept            (or REJ: reject)
//!   Event::Response
//!   establish   -- RTU ------------------->  Event::Established
//!      ...                                      ...
//!   disconnect  -- DREQ ------------------>  Event::Disconnected
//!   Event::Disconnected  <---------- DREP --
//!   Event::TimewaitExit                      Event::TimewaitExit
//! ```
//!
//! A message is retransmitted until it is answered: first after [`Config::first_repeat_ns`], then at doubling intervals
//! up to the response time that the peers agreed on. It fails after `max_cm_retries + 1` response times, as the
//! specification requires; the earlier retransmissions are extra. A duplicate message receives the same answer as
//! before.
//!
//! | file | question |
//! |---|---|
//! | `params` | input and output types |
//! | `connection` | the state of one connection |
//! | `active`, `passive` | the two halves of the handshake |
//! | `refuse` | REJ and MRA |
//! | `proof` | whether the peer holds the shared key, if one is set |
//! | `teardown` | DREQ, DREP, TIMEWAIT, release |
//! | `sidr` | service resolution for datagrams |
//! | `listeners` | listeners by service and address |
//! | `half_open` | the limit on half-open connections |
//! | `dispatch` | the handler of a message, and messages without a connection |
//! | `pacing` | the limit on messages in flight |
//! | `timing` | retransmission and timeouts |
//! | `attributes` | the attributes of the queue pair |

mod active;
mod attributes;
mod connection;
mod counters;
mod dispatch;
mod half_open;
mod listeners;
mod pacing;
mod params;
mod passive;
mod proof;
mod refuse;
mod sidr;
mod teardown;
mod timing;

pub use crate::wire::cm::{CmTransport, CommId, IpHeader, PortSpace, RejectReason, ServiceId, SidrStatus};
pub use counters::{ByKind, ByReason, CmCounters};
pub use listeners::{ListenerId, ListenerOptions, Scope};
pub use params::{
    Accept, Answer, CmError, Config, Connect, Ece, Event, MadAddressing, Path, Query, Request, Response,
    Transmit,
};
pub(crate) use proof::{Binding, MAC_LEN, MAX_STORED, ReplayCheck, WINDOW_S};
pub use proof::{Replays, Secret};
pub use refuse::NOT_PROVEN;

use crate::ids::{Gid, Qpn};
use crate::time::Time;
use crate::wire::cm::{CmMad, CmMessage};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use connection::{Connection, State};
use half_open::HalfOpen;
use listeners::Listeners;

/// The peer's ids of connections and of SIDR requests are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Connection,
    Datagram,
}

/// The communication manager of one NIC. The module page describes how to drive it.
pub struct Cm {
    config: Config,
    random: Box<dyn FnMut() -> u64 + Send>,
    connections: BTreeMap<CommId, Box<Connection>>,
    /// By the peer's address and id: finds duplicate REQs.
    by_peer: BTreeMap<(Gid, Kind, CommId), CommId>,
    /// By the peer's address and queue pair: finds stale connections.
    by_qpn: BTreeMap<(Gid, Qpn), CommId>,
    listeners: Listeners,
    deadlines: BTreeSet<(Time, CommId)>,
    /// Time of the last call that passed it.
    clock: Time,
    /// Connections whose message waits to be sent; some may have ended.
    waiting: VecDeque<CommId>,
    in_flight: usize,
    out: VecDeque<Transmit>,
    events: VecDeque<Event>,
    counters: CmCounters,
    /// Undecided REQs and SIDR_REQs of peers.
    pending: usize,
    /// Half-open connections of peers, by address.
    half_open: HalfOpen,
    /// The default key.
    secret: Option<Secret>,
    listener_secrets: BTreeMap<ListenerId, Secret>,
    /// A connection has had its own key.
    uses_secrets: bool,
    replays: Replays,
    /// Time of day at time 0.
    unix_offset_ns: u64,
}

impl Cm {
    /// A manager without connections. `random` must be unpredictable: ids and starting PSNs derive from it.
    pub fn new(config: Config, random: Box<dyn FnMut() -> u64 + Send>) -> Cm {
        Cm {
            config,
            random,
            connections: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            listeners: Listeners::default(),
            deadlines: BTreeSet::new(),
            clock: Time(0),
            waiting: VecDeque::new(),
            in_flight: 0,
            out: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
            pending: 0,
            half_open: HalfOpen::default(),
            secret: None,
            listener_secrets: BTreeMap::new(),
            uses_secrets: false,
            replays: Replays::default(),
            unix_offset_ns: 0,
        }
    }

    /// Returns the next message to send. This may change [`Self::deadline`]: the response timer starts when a message
    /// is sent.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let next = self.out.pop_front().or_else(|| self.send_waiting())?;
        self.counters.on_sent(&next.mad);
        Some(next)
    }

    /// Returns the next event for the application.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The counters.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Number of connections, including those in TIMEWAIT.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Ids of the connections that the application has not released.
    pub fn held(&self) -> alloc::vec::Vec<CommId> {
        self.connections.iter().filter(|(_, c)| c.is_held).map(|(id, _)| *id).collect()
    }

    /// Undecided REQs and SIDR_REQs of peers.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Adds a listener for at most `backlog` undecided REQs.
    pub fn listen(&mut self, service: ServiceId, scope: Scope, backlog: u32) -> Result<ListenerId, CmError> {
        self.listeners.add(service, scope, backlog.clamp(1, self.config.max_pending as u32))
    }

    /// Sets the kind of requests that the listener accepts, where the port space leaves it open: [`PortSpace::Ib`] is
    /// for connections and datagrams.
    pub fn set_listener_options(&mut self, listener: ListenerId, options: ListenerOptions) {
        self.listeners.set_options(listener, options);
    }

    /// Removes a listener. Its undecided REQs stay until they are decided or released.
    pub fn unlisten(&mut self, listener: ListenerId, now: Time) {
        self.listeners.remove(listener, now);
        self.listener_secrets.remove(&listener);
    }

    /// Whether a listener for `service` exists at `address`.
    pub fn is_listening(&self, service: ServiceId, address: Gid) -> bool {
        self.listeners.find(service, address).is_some()
    }

    /// Creates an id: the slot in the high bits, random low bits.
    fn fresh_id(&mut self) -> CommId {
        loop {
            let low = (self.random)() as u32 & 0x00ff_ffff;
            let id = CommId(u32::from(self.config.slot) << 24 | low);
            if id != CommId::NONE && !self.connections.contains_key(&id) {
                return id;
            }
        }
    }

    fn get(&self, id: CommId) -> Result<&Connection, CmError> {
        self.connections.get(&id).map(|c| &**c).ok_or(CmError::NoSuchConnection)
    }

    /// Whether connection `id` ignores a reject for lack of a listener and retries.
    fn retries_no_listener(&mut self, id: CommId) -> bool {
        self.connections.get_mut(&id).is_some_and(|connection| connection.retries_no_listener())
    }

    /// Returns the connection if it is in one of these states.
    fn in_state(&mut self, id: CommId, states: &[State]) -> Result<&mut Connection, CmError> {
        let connection = self.connections.get_mut(&id).ok_or(CmError::NoSuchConnection)?;
        if states.contains(&connection.state) { Ok(connection) } else { Err(CmError::WrongState) }
    }

    /// Sends a message of connection `id` and stores it for retransmission.
    fn send(&mut self, id: CommId, attr_mod: u32, message: CmMessage) {
        if let Some(transmit) = self.prepare(id, attr_mod, message) {
            self.transmit(transmit);
        }
    }

    /// Builds a message of connection `id` and stores it for retransmission.
    fn prepare(&mut self, id: CommId, attr_mod: u32, message: CmMessage) -> Option<Transmit> {
        let tid = self.connections.get(&id)?.tid;
        let mut mad = Box::new(CmMad { tid, attr_mod, message }.to_bytes());
        self.add_proof(id, &message, &mut mad);
        let connection = self.connections.get_mut(&id)?;
        connection.last = Some(mad.clone());
        Some(Transmit { route: connection.path.route(), mad, is_repeat: false })
    }

    /// Retransmits the last message of connection `id`.
    fn send_again(&mut self, id: CommId) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(mad) = connection.last.clone() {
            let route = connection.path.route();
            self.counters.on_repeated(&mad);
            self.transmit(Transmit { route, mad, is_repeat: true });
        }
    }

    /// Answers a message that belongs to no connection.
    fn send_back(&mut self, inbound: &MadAddressing, tid: u64, message: CmMessage) {
        let mad = Box::new(CmMad { tid, attr_mod: 0, message }.to_bytes());
        self.transmit(Transmit { route: inbound.way_back(), mad, is_repeat: false });
    }

    fn transmit(&mut self, transmit: Transmit) {
        self.out.push_back(transmit);
    }

    /// Raises an event if the application still holds the connection.
    fn raise(&mut self, id: CommId, event: Event) {
        if self.connections.get(&id).is_some_and(|c| c.is_held) {
            self.events.push_back(event);
        }
    }

    /// Adds a connection; `remote` is the peer's id if it is known.
    fn insert(&mut self, connection: Connection) {
        let id = connection.local;
        if connection.remote != CommId::NONE {
            self.by_peer.insert(connection.peer_key(), id);
        }
        if connection.is_half_open {
            self.half_open.add(connection.path.dgid);
        }
        if connection.state.is_undecided() {
            self.pending += 1;
            self.listeners.change_pending(connection.listener, 1);
        }
        self.connections.insert(id, Box::new(connection));
        self.note_qpn(id);
    }

    /// Records the peer's queue pair, which must not be in two connections.
    fn note_qpn(&mut self, id: CommId) {
        if let Some(connection) = self.connections.get(&id)
            && connection.remote_qpn != Qpn::new(0)
            && connection.has_own_peer_qpn()
        {
            self.by_qpn.insert((connection.path.dgid, connection.remote_qpn), id);
        }
    }

    fn set_state(&mut self, id: CommId, state: State) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let was = core::mem::replace(&mut connection.state, state);
        if was.is_undecided() && !state.is_undecided() {
            self.pending -= 1;
            self.listeners.change_pending(connection.listener, -1);
        }
    }

    fn remove(&mut self, id: CommId) {
        self.set_state(id, State::Timewait);
        self.disarm(id);
        self.landed(id);
        self.no_longer_half_open(id);
        if let Some(connection) = self.connections.remove(&id) {
            let peer = connection.peer_key();
            if self.by_peer.get(&peer) == Some(&id) {
                self.by_peer.remove(&peer);
            }
            let qpn = (connection.path.dgid, connection.remote_qpn);
            if self.by_qpn.get(&qpn) == Some(&id) {
                self.by_qpn.remove(&qpn);
            }
        }
    }
}
