//! What programs hear from the connection manager.

use super::CmId;
use ferroce_proto::cm::Ece;
use ferroce_proto::verbs::AddressVector;
use ferroce_proto::{Qkey, Qpn};
use std::sync::{Arc, Weak};

/// Key of datagram queue pairs in the UDP port space, unless the program chose one.
pub const UDP_QKEY: Qkey = Qkey(0x0123_4567);

/// Kinds of events; the numbers are those of librdmacm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum CmEventKind {
    /// The destination has an address here.
    AddrResolved = 0,
    /// It has none; the status is a negative error number.
    AddrError = 1,
    /// The way is known.
    RouteResolved = 2,
    /// There is none.
    RouteError = 3,
    /// Somebody offers a connection: the event's id is new, its listener the one that was asked.
    ConnectRequest = 4,
    /// Our offer was taken: set the queue pair up and `establish`.
    ConnectResponse = 5,
    /// The connection could not be made for a local reason.
    ConnectError = 6,
    /// The peer does not answer, or has no such datagram service.
    Unreachable = 7,
    /// The peer refused; the status is the reason of the REJ.
    Rejected = 8,
    /// Connected.
    Established = 9,
    /// Disconnected.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
    /// In the group: the datagram parameters say how to reach it.
    MulticastJoin = 12,
    /// Not in the group.
    MulticastError = 13,
    /// The address moved.
    AddrChange = 14,
    /// The queue pair may be used again.
    TimewaitExit = 15,
}

/// Parameters of a connection, as offered, taken and told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    /// Bytes from program to program. In events, all that the message has room for.
    pub private_data: Vec<u8>,
    /// READs and atomics to answer at a time.
    pub responder_resources: u8,
    /// READs and atomics to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// How often requests are repeated.
    pub retry_count: u8,
    /// How often after RNR NAKs.
    pub rnr_retry: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// The queue pair: ours when given, the peer's when told.
    pub qpn: Qpn,
    /// Key of a datagram queue pair, if it is not [`UDP_QKEY`].
    pub qkey: Option<Qkey>,
    /// Vendor options.
    pub ece: Ece,
}

/// How to reach a datagram service or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdParam {
    /// Bytes from the other program.
    pub private_data: Vec<u8>,
    /// Where to.
    pub vector: AddressVector,
    /// To which queue pair.
    pub qpn: Qpn,
    /// With which key.
    pub qkey: Qkey,
}

/// An event.
#[derive(Clone)]
pub struct CmEvent {
    /// What happened.
    pub kind: CmEventKind,
    /// 0, a negative error number, or the reason of a refusal.
    pub status: i32,
    /// To which id. For [`CmEventKind::ConnectRequest`] a new one.
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
