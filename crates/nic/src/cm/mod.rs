//! The connection manager of a NIC: QP1, and the ids that programs hold, as librdmacm needs them.
//!
//! `ferroce_proto::cm` implements the protocol. This module connects it to the engine, which receives packets to QP1 and runs the timers,
//! and to the registry, because several processes share an address. A connection request goes to the process that listens, any other
//! message to the process that assigned its communication id.
//!
//! | file | question |
//! |---|---|
//! | `service` | the connection manager of one NIC: state machine, ids, ports |
//! | `management` | packets to QP1 |
//! | `channel` | how programs get events |
//! | `event` | the kinds and contents of events |
//! | `deliver` | which id gets an event of the protocol |
//! | `id` | what an id is, and its end |
//! | `address` | binding, resolving addresses and routes |
//! | `connect` | requesting, accepting, rejecting, ending |
//! | `following` | events for removed addresses and for the removal of the device |
//! | `liveness` | how killed peers on this host are detected |
//! | `stream` | the same for iWARP: TCP ports and MPA |
//! | `attributes` | the attributes of the id's queue pair |
//!
//! Every process of an address owns QP1. The high eight bits of a communication id are the slot of the process that assigned it. The steering program of
//! the shared port reads that slot, so nearly all messages arrive at the right process. A REQ names a port instead; a sender on this host
//! looks up the listener and writes its slot into a reserved byte of the MAD. A message that no living process can claim is
//! answered by its receiver (REJ, DREP), so the peer of a killed process does not wait for a timeout.
//!
//! Locks, in the order in which they may be taken: an id's state, then the manager, then a channel. Code that may drop the last handle of an
//! id must hold none of them.

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
