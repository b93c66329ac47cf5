//! The connection manager of a NIC: QP1, and the ids that programs hold, as librdmacm needs them.
//!
//! The protocol is `ferroce_proto::cm`. This module connects it to the engine (which receives packets to QP1 and runs the timers)
//! and to the registry (several processes share an address: a connection request goes to the process that listens, any other
//! message to the process that assigned its communication id).
//!
//! | file | question |
//! |---|---|
//! | `service` | the connection manager of one NIC: state machine, ids, ports |
//! | `management` | packets to QP1 |
//! | `channel` | how programs get events |
//! | `event` | which events there are |
//! | `deliver` | which id an event of the protocol is for |
//! | `id` | what an id is, and its end |
//! | `address` | binding, resolving addresses and routes |
//! | `connect` | requesting, accepting, rejecting, ending |
//! | `following` | events for addresses that leave and for the removal of the device |
//! | `liveness` | how the end of a killed peer on this host is noticed |
//! | `stream` | the same for iWARP: TCP ports and MPA |
//! | `attributes` | the attributes of the id's queue pair |
//!
//! Every process of an address owns QP1. The high eight bits of a communication id are the slot of the process that assigned it. The steering program of
//! the shared port reads that slot, so nearly all messages arrive at the right process. A REQ names a port instead; a sender on this host
//! looks up the listener and writes its slot into a reserved byte of the MAD. A message that no living process can claim is
//! answered by its receiver (REJ, DREP), so the peer of a killed process does not wait for a time-out.
//!
//! Locks: an id's state, then the manager, then a channel. Whatever may drop the last handle of an id does so with none of
//! them held.

mod address;
mod attributes;
mod channel;
mod connect;
mod deliver;
mod event;
mod following;
mod id;
mod liveness;
mod management;
mod service;
mod stream;

pub use channel::CmChannel;
pub use event::{CmEvent, CmEventKind, ConnParam, UDP_QKEY, UdParam};
pub use id::{CmId, CmOptions};
pub(crate) use service::CmService;

pub use ferroce_proto::cm::{CmCounters, CmTransport, Ece, PortSpace, RejectReason, Secret};
