//! Events of the connection manager.

use super::CmId;
use ferroce_proto::cm::Ece;
use ferroce_proto::verbs::AddressVector;
use ferroce_proto::{Qkey, Qpn};
use std::sync::{Arc, Weak};

/// Q_Key of datagram queue pairs in the UDP port space, unless the program chose one.
pub const UDP_QKEY: Qkey = Qkey(0x0123_4567);

/// Kinds of events; the numbers are those of librdmacm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum CmEventKind {
    /// The local address for the destination was found.
    AddrResolved = 0,
    /// No local address was found; the status is a negative error number.
    AddrError = 1,
    /// The path to the destination was found.
    RouteResolved = 2,
    /// No path was found.
    RouteError = 3,
    /// A peer requests a connection: the event has a new id, and the listener that received the request.
    ConnectRequest = 4,
    /// The peer accepted: set the queue pair up and `establish`.
    ConnectResponse = 5,
    /// The connection could not be made for a local reason.
    ConnectError = 6,
    /// The peer does not answer, or has no such datagram service.
    Unreachable = 7,
    /// The peer rejected; the status is the reason of the REJ.
    Rejected = 8,
    /// Connected.
    Established = 9,
    /// Disconnected.
    Disconnected = 10,
    /// The device was removed.
    DeviceRemoval = 11,
    /// The group was joined: the datagram parameters have its address.
    MulticastJoin = 12,
    /// The group could not be joined.
    MulticastError = 13,
    /// The address moved to another interface, or was removed.
    AddrChange = 14,
    /// The queue pair may be used again.
    TimewaitExit = 15,
}

/// Parameters of a connection, in requests, replies and events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    /// Bytes from program to program. In events, the whole private data field of the message.
    pub private_data: Vec<u8>,
    /// Most READs and atomics that it answers concurrently.
    pub responder_resources: u8,
    /// Most READs and atomics that it has outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// How often requests are retried.
    pub retry_count: u8,
    /// How often requests are retried after RNR NAKs.
    pub rnr_retry: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// The queue pair: the local one in calls, the peer's in events.
    pub qpn: Qpn,
    /// Q_Key of a datagram queue pair, if it is not [`UDP_QKEY`].
    pub qkey: Option<Qkey>,
    /// Vendor options.
    pub ece: Ece,
}

/// How to reach a datagram service or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdParam {
    /// Bytes from the other program.
    pub private_data: Vec<u8>,
    /// Its address.
    pub vector: AddressVector,
    /// Its queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
}

/// An event.
#[derive(Clone)]
pub struct CmEvent {
    /// What happened.
    pub kind: CmEventKind,
    /// 0, a negative error number, or the reason of a reject.
    pub status: i32,
    /// The id it concerns. For [`CmEventKind::ConnectRequest`] a new one.
    pub id: Arc<CmId>,
    /// The id that listens, for [`CmEventKind::ConnectRequest`].
    pub listener: Option<Weak<CmId>>,
    /// Parameters of connections.
    pub conn: ConnParam,
    /// Parameters of datagram services and groups.
    pub ud: Option<UdParam>,
}

impl CmEvent {
    pub(super) fn new(kind: CmEventKind, status: i32, id: Arc<CmId>) -> CmEvent {
        CmEvent { kind, status, id, listener: None, conn: ConnParam::default(), ud: None }
    }
}
