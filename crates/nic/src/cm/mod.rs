//! The connection manager of a NIC: QP1, and ids that programs hold, shaped after what librdmacm needs.
//!
//! The protocol is `ferroce_proto::cm`. Here it meets the engine (packets to QP1 are handled where all packets are, timers
//! are the engine's) and the registry (several processes share an address: an offer goes to whoever listens, any other
//! message to whoever gave out its communication id).
//!
//! | file | question |
//! |---|---|
//! | `service` | what one NIC has of it |
//! | `management` | packets to QP1 |
//! | `channel` | how programs hear of events |
//! | `event` | what they hear |
//! | `deliver` | which id an event of the protocol is for |
//! | `id` | what an id is, and its end |
//! | `address` | binding, and finding the way to a destination |
//! | `connect` | offering, taking, refusing, ending |
//! | `following` | what ids hear of addresses that leave, and of the end of the device |
//! | `liveness` | how they hear of a peer on this host that was killed |
//! | `attributes` | what the id's queue pair must be set to |
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

pub use channel::CmChannel;
pub use event::{CmEvent, CmEventKind, ConnParam, UDP_QKEY, UdParam};
pub use id::{CmId, CmOptions};
pub(crate) use service::CmService;

pub use ferroce_proto::cm::{CmCounters, CmTransport, Ece, PortSpace, RejectReason, Secret};
