//! Input and output types of the communication manager.

use super::{CmTransport, CommId, IpHeader, ListenerId, RejectReason, Secret, ServiceId, SidrStatus};
use crate::ids::{Gid, Qkey, Qpn};
use crate::verbs::{AddressVector, Mtu, Route};
use crate::wire::MAD_LEN;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Settings of a communication manager.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// High eight bits of its ids.
    pub slot: u8,
    /// Its GUID.
    pub ca_guid: u64,
    /// How long a peer may take to answer: 4.096 us * 2^n.
    pub response_timeout: u8,
    /// Retries at that interval before the peer counts as unreachable.
    pub max_retries: u8,
    /// Time of the first retransmission, earlier than the response time requires.
    pub first_repeat_ns: u64,
    /// Maximum number of requests in flight; further ones are queued.
    pub max_in_flight: usize,
    /// Service timeout in an MRA: 4.096 us * 2^n.
    pub service_timeout: u8,
    /// Maximum undecided REQs of all listeners.
    pub max_pending: usize,
    /// Maximum connections, including those in TIMEWAIT.
    pub max_connections: usize,
    /// Maximum half-open connections of peers, including decided ones until they are discarded.
    pub max_half_open: usize,
    /// Maximum half-open connections per address.
    pub max_half_open_per_peer: usize,
}

impl Default for Config {
    /// Response time and retries are those of Linux: 4.3 seconds, 15 retries.
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

/// The path to the peer and its properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Our address.
    pub sgid: Gid,
    /// The peer's address.
    pub dgid: Gid,
    /// Index of our address in the GID table.
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

/// Source and destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadAddressing {
    /// The sender's address.
    pub sgid: Gid,
    /// Our address that it was sent to.
    pub dgid: Gid,
    /// Index of that address in the GID table.
    pub sgid_index: u8,
    /// Largest path MTU from there.
    pub mtu: Mtu,
}

impl MadAddressing {
    pub(super) fn way_back(&self) -> Route {
        Route { sgid: self.dgid, dgid: self.sgid, hop_limit: 64, ..Route::default() }
    }
}

/// A message to send to QP1 at the end of the route.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Route to the peer.
    pub route: Route,
    /// The message.
    pub mad: Box<[u8; MAD_LEN]>,
    /// It is a retransmission. It should use the other path if there are two.
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

/// Parameters of [`super::Cm::connect`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Connect<'a> {
    /// The service.
    pub service: ServiceId,
    /// The path.
    pub path: Path,
    /// Addresses and port, for services of IP ports.
    pub ip: Option<IpHeader>,
    /// Transport service.
    pub transport: CmTransport,
    /// Our queue pair.
    pub qpn: Qpn,
    /// Responder resources: READs and atomics that we accept concurrently.
    pub responder_resources: u8,
    /// Initiator depth: READs and atomics that we may have outstanding.
    pub initiator_depth: u8,
    /// Retry count.
    pub retry_count: u8,
    /// RNR retry count.
    pub rnr_retry: u8,
    /// Whether there is end-to-end flow control.
    pub flow_control: bool,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// Private data.
    pub private_data: &'a [u8],
    /// Response timeout, if it differs from [`Config`].
    pub response_timeout: Option<u8>,
    /// Retries, if they differ from [`Config`].
    pub max_retries: Option<u8>,
    /// The key that both ends prove, if it differs from [`super::Cm::set_secret`].
    pub secret: Option<&'a Secret>,
}

/// Parameters of [`super::Cm::accept`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Accept<'a> {
    /// Our queue pair.
    pub qpn: Qpn,
    /// Responder resources: READs and atomics that we accept concurrently.
    pub responder_resources: u8,
    /// Initiator depth: READs and atomics that we may have outstanding.
    pub initiator_depth: u8,
    /// RNR retry count of the peer.
    pub rnr_retry: u8,
    /// Whether there is end-to-end flow control.
    pub flow_control: bool,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// Private data.
    pub private_data: &'a [u8],
}

/// Parameters of [`super::Cm::query`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Query<'a> {
    /// The service.
    pub service: ServiceId,
    /// The path.
    pub path: Path,
    /// Addresses and port, for services of IP ports.
    pub ip: Option<IpHeader>,
    /// Private data.
    pub private_data: &'a [u8],
    /// Response timeout, if it differs from [`Config`].
    pub response_timeout: Option<u8>,
    /// Retries, if they differ from [`Config`].
    pub max_retries: Option<u8>,
    /// The key that both ends prove, if it differs from [`super::Cm::set_secret`].
    pub secret: Option<&'a Secret>,
}

/// Parameters of [`super::Cm::answer`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Answer<'a> {
    /// Status; the other fields apply only on success.
    pub status: SidrStatus,
    /// The queue pair of the service.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
    /// Private data.
    pub private_data: &'a [u8],
}

/// A REQ or SIDR_REQ, as the passive side receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The listener.
    pub listener: ListenerId,
    /// The new connection.
    pub id: CommId,
    /// The requested service.
    pub service: ServiceId,
    /// Addresses and port of the peer, for services of IP ports.
    pub ip: Option<IpHeader>,
    /// The path back.
    pub path: Path,
    /// Transport service; `None` for a SIDR request.
    pub transport: Option<CmTransport>,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The peer's initiator depth: the responder resources that we should provide.
    pub responder_resources: u8,
    /// The peer's responder resources.
    pub initiator_depth: u8,
    /// Retry count.
    pub retry_count: u8,
    /// RNR retry count.
    pub rnr_retry: u8,
    /// Whether the peer has end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// Private data, zero-padded.
    pub private_data: Vec<u8>,
}

/// A REP, as the active side receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The connection.
    pub id: CommId,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The responder resources that we should provide.
    pub responder_resources: u8,
    /// The peer's responder resources.
    pub initiator_depth: u8,
    /// RNR retry count.
    pub rnr_retry: u8,
    /// Whether the peer has end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// Private data, zero-padded.
    pub private_data: Vec<u8>,
}

/// An event for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A REQ or SIDR_REQ arrived: accept, answer or reject it.
    Request(Request),
    /// The peer accepted: set up the queue pair and call `establish`.
    Response(Response),
    /// The connection is established.
    Established {
        /// The connection.
        id: CommId,
    },
    /// The peer rejected the connection, which is removed.
    Rejected {
        /// The connection.
        id: CommId,
        /// The reason.
        reason: RejectReason,
        /// Private data of the peer.
        private_data: Vec<u8>,
    },
    /// The peer did not answer in time; the connection is removed.
    Unreachable {
        /// The connection.
        id: CommId,
    },
    /// The connection has ended and is in TIMEWAIT.
    Disconnected {
        /// The connection.
        id: CommId,
        /// Whether the peer did not confirm it.
        timed_out: bool,
    },
    /// TIMEWAIT ended: no packet is in flight and the queue pair may be reused. The connection is removed.
    TimewaitExit {
        /// The connection.
        id: CommId,
    },
    /// The reply to a SIDR request.
    Answered {
        /// The request.
        id: CommId,
        /// The path to the responder.
        path: Path,
        /// Status.
        status: SidrStatus,
        /// The queue pair of the service.
        qpn: Qpn,
        /// Its Q_Key.
        qkey: Qkey,
        /// Private data, zero-padded.
        private_data: Vec<u8>,
    },
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The connection does not exist.
    #[error("the connection does not exist (any more)")]
    NoSuchConnection,
    /// The connection is in the wrong state.
    #[error("the state of the connection does not allow this call")]
    WrongState,
    /// The private data exceeds the message.
    #[error("{len} bytes of private data exceed the {capacity} that the message can carry")]
    PrivateDataTooLong {
        /// Bytes given.
        len: usize,
        /// Capacity of the message in bytes.
        capacity: usize,
    },
    /// The service and address are in use by another listener.
    #[error("the service and address are in use by another listener")]
    InUse,
    /// The limit on connections is reached.
    #[error("the limit on connections is reached")]
    TooMany,
}

/// Copies private data, leaving the last `proof_len` bytes free.
pub(super) fn put_private_before(field: &mut [u8], data: &[u8], proof_len: usize) -> Result<(), CmError> {
    let capacity = field.len().saturating_sub(proof_len);
    put_private(&mut field[..capacity], data)
}

/// Copies private data into a message.
pub(super) fn put_private(field: &mut [u8], data: &[u8]) -> Result<(), CmError> {
    let (len, capacity) = (data.len(), field.len());
    field.get_mut(..len).ok_or(CmError::PrivateDataTooLong { len, capacity })?.copy_from_slice(data);
    Ok(())
}
