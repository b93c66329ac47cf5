//! What goes into the communication manager and what comes out.

use super::{CmTransport, CommId, IpHeader, ListenerId, RejectReason, Secret, ServiceId, SidrStatus};
use crate::ids::{Gid, Qkey, Qpn};
use crate::verbs::{AddressVector, Mtu, Route};
use crate::wire::MAD_LEN;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// Settings of a communication manager.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// High eight bits of the ids it gives out.
    pub slot: u8,
    /// GUID that it calls itself by.
    pub ca_guid: u64,
    /// How long a peer may take to answer: 4.096 us * 2^n.
    pub response_timeout: u8,
    /// How often a message is repeated at that distance before the peer counts as unreachable.
    pub max_retries: u8,
    /// When a message is repeated for the first time, earlier than the response time asks for.
    pub first_repeat_ns: u64,
    /// Most messages that wait for an answer and are not yet overdue; the others wait their turn.
    pub max_in_flight: usize,
    /// What an MRA asks for when the program takes its time: 4.096 us * 2^n.
    pub service_timeout: u8,
    /// Most undecided offers of all listeners together.
    pub max_pending: usize,
    /// Most connections, those in TIMEWAIT included.
    pub max_connections: usize,
    /// Most offers of others that have not become an established connection, decided ones included until they are
    /// forgotten.
    pub max_half_open: usize,
    /// Most of them from one address.
    pub max_half_open_per_peer: usize,
}

impl Default for Config {
    /// Response time and retries are those of Linux: 4.3 seconds, 15 times.
    fn default() -> Self {
        Config {
            slot: 0,
            ca_guid: 0,
            response_timeout: 20,
            max_retries: 15,
            first_repeat_ns: 50_000_000,
            max_in_flight: 128,
            service_timeout: 24,
            max_pending: 4096,
            max_connections: 1 << 17,
            max_half_open: 16_384,
            max_half_open_per_peer: 8_192,
        }
    }
}

/// Way to the peer, and what packets on it may be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Our address.
    pub sgid: Gid,
    /// The peer's address.
    pub dgid: Gid,
    /// Where our address stands in the GID table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// Transport timer exponent: 4.096 us * 2^n.
    pub ack_timeout: u8,
}

impl Path {
    /// For packets.
    pub fn route(&self) -> Route {
        Route {
            sgid: self.sgid,
            dgid: self.dgid,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            entropy: self.flow_label as u16,
        }
    }

    /// For queue pairs and address handles.
    pub fn vector(&self) -> AddressVector {
        AddressVector {
            dgid: self.dgid,
            sgid_index: self.sgid_index,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            sl: self.sl,
            port: 1,
        }
    }
}

/// Where a message came from and where it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// The sender's address.
    pub sgid: Gid,
    /// Our address that it was sent to.
    pub dgid: Gid,
    /// Where that stands in the GID table.
    pub sgid_index: u8,
    /// Largest path MTU from there.
    pub mtu: Mtu,
}

impl Inbound {
    pub(super) fn way_back(&self) -> Route {
        Route { sgid: self.dgid, dgid: self.sgid, hop_limit: 64, ..Route::default() }
    }
}

/// A message to send to QP1 at the end of the route.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Where to.
    pub route: Route,
    /// The message.
    pub mad: Box<[u8; MAD_LEN]>,
    /// It was sent before: no answer came, or the peer's came again. Where there are two ways, it should take the other one.
    pub is_repeat: bool,
}

/// Vendor options (enhanced connection establishment); zeros for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Vendor, 24 bits.
    pub vendor_id: u32,
    /// Options.
    pub attr_mod: u32,
}

/// What [`super::Cm::connect`] offers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connect<'a> {
    /// What to talk to.
    pub service: ServiceId,
    /// Way to it.
    pub path: Path,
    /// Addresses and port, for services of IP ports.
    pub ip: Option<IpHeader>,
    /// Transport service.
    pub transport: CmTransport,
    /// Our queue pair.
    pub qpn: Qpn,
    /// READs and atomics that we can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding.
    pub initiator_depth: u8,
    /// How often requests are repeated.
    pub retry_count: u8,
    /// How often after RNR NAKs.
    pub rnr_retry: u8,
    /// Whether there is end-to-end flow control.
    pub flow_control: bool,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// Bytes for the other program.
    pub private_data: &'a [u8],
    /// How long the peer may take to answer, if not as [`Config`] says.
    pub response_timeout: Option<u8>,
    /// How often to repeat, if not as [`Config`] says.
    pub max_retries: Option<u8>,
    /// The key that both ends prove to have, if not that of [`super::Cm::set_secret`].
    pub secret: Option<&'a Secret>,
}

/// What [`super::Cm::accept`] answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accept<'a> {
    /// Our queue pair.
    pub qpn: Qpn,
    /// READs and atomics that we can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding.
    pub initiator_depth: u8,
    /// How often the peer repeats requests after RNR NAKs.
    pub rnr_retry: u8,
    /// Whether there is end-to-end flow control.
    pub flow_control: bool,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// Bytes for the other program.
    pub private_data: &'a [u8],
}

/// What [`super::Cm::query`] asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query<'a> {
    /// What to talk to.
    pub service: ServiceId,
    /// Way to it.
    pub path: Path,
    /// Addresses and port, for services of IP ports.
    pub ip: Option<IpHeader>,
    /// Bytes for the other program.
    pub private_data: &'a [u8],
    /// How long the peer may take to answer, if not as [`Config`] says.
    pub response_timeout: Option<u8>,
    /// How often to repeat, if not as [`Config`] says.
    pub max_retries: Option<u8>,
    /// The key that both ends prove to have, if not that of [`super::Cm::set_secret`].
    pub secret: Option<&'a Secret>,
}

/// What [`super::Cm::answer`] tells.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answer<'a> {
    /// Outcome; the rest counts on success only.
    pub status: SidrStatus,
    /// Queue pair that serves the service.
    pub qpn: Qpn,
    /// Its key.
    pub qkey: Qkey,
    /// Bytes for the other program.
    pub private_data: &'a [u8],
}

/// An offer, as the passive side sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who listens.
    pub listener: ListenerId,
    /// The new connection.
    pub id: CommId,
    /// What is wanted.
    pub service: ServiceId,
    /// Addresses and port of the peer, for services of IP ports.
    pub ip: Option<IpHeader>,
    /// Way back.
    pub path: Path,
    /// Transport service; `None` for a question about a datagram service.
    pub transport: Option<CmTransport>,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// READs and atomics that the peer wants to have outstanding, so what we should be able to answer.
    pub responder_resources: u8,
    /// READs and atomics that the peer can answer.
    pub initiator_depth: u8,
    /// How often requests are repeated.
    pub retry_count: u8,
    /// How often after RNR NAKs.
    pub rnr_retry: u8,
    /// Whether the peer has end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// All bytes behind the headers; zeros where the peer sent none.
    pub private_data: Vec<u8>,
}

/// The answer to an offer, as the active side sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The connection.
    pub id: CommId,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// What we should be able to answer.
    pub responder_resources: u8,
    /// What the peer can answer.
    pub initiator_depth: u8,
    /// How often requests are repeated after RNR NAKs.
    pub rnr_retry: u8,
    /// Whether the peer has end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// All bytes there are room for; zeros where the peer sent none.
    pub private_data: Vec<u8>,
}

/// What a program should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody offers a connection, or asks about a datagram service: accept, answer or reject it.
    Request(Request),
    /// Our offer was taken: set the queue pair up and `establish`.
    Response(Response),
    /// The peer is ready, too.
    Established {
        /// The connection.
        id: CommId,
    },
    /// The peer refused. The connection is gone.
    Rejected {
        /// The connection.
        id: CommId,
        /// Why.
        reason: RejectReason,
        /// What the other program sent along.
        private_data: Vec<u8>,
    },
    /// The peer does not answer. The connection is gone.
    Unreachable {
        /// The connection.
        id: CommId,
    },
    /// The connection has ended and is in TIMEWAIT.
    Disconnected {
        /// The connection.
        id: CommId,
        /// The peer did not confirm it.
        timed_out: bool,
    },
    /// No packet of the connection is under way any more; its queue pair may be used again. The connection is gone.
    TimewaitExit {
        /// The connection.
        id: CommId,
    },
    /// The answer about a datagram service.
    Answered {
        /// The question.
        id: CommId,
        /// Way to whom was asked.
        path: Path,
        /// Outcome.
        status: SidrStatus,
        /// Queue pair that serves the service.
        qpn: Qpn,
        /// Its key.
        qkey: Qkey,
        /// All bytes there are room for.
        private_data: Vec<u8>,
    },
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmError {
    /// The connection is gone, or never was.
    NoSuchConnection,
    /// The connection is not at the point where this makes sense.
    WrongState,
    /// More private data than the message has room for.
    PrivateDataTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes there are.
        room: usize,
    },
    /// Somebody listens there already.
    InUse,
    /// No room for another connection.
    TooMany,
}

impl fmt::Display for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CmError::NoSuchConnection => f.write_str("the connection is gone"),
            CmError::WrongState => f.write_str("the connection is not in a state for this"),
            CmError::PrivateDataTooLong { len, room } => {
                write!(f, "{len} bytes of private data, the message has room for {room}")
            }
            CmError::InUse => f.write_str("somebody listens there already"),
            CmError::TooMany => f.write_str("no room for another connection"),
        }
    }
}

impl core::error::Error for CmError {}

/// Copies private data into its place, all but the last `proof_len` bytes of which it may fill.
pub(super) fn put_private_before(place: &mut [u8], data: &[u8], proof_len: usize) -> Result<(), CmError> {
    let room = place.len().saturating_sub(proof_len);
    put_private(&mut place[..room], data)
}

/// Copies private data into its place.
pub(super) fn put_private(place: &mut [u8], data: &[u8]) -> Result<(), CmError> {
    let (len, room) = (data.len(), place.len());
    place.get_mut(..len).ok_or(CmError::PrivateDataTooLong { len, room })?.copy_from_slice(data);
    Ok(())
}
