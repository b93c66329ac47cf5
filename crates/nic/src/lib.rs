//! The software NIC: everything between the verbs and the wire.
//!
//! | room | what lives there |
//! |---|---|
//! | [`Nic`], [`Config`] | the device: opening it, asking it |
//! | `objects` | PD, memory region and window, CQ, completion channel, QP, SRQ, XRC domain, address handle, events |
//! | `memory` | registered memory: keys, checks, and the few lines that copy |
//! | `engine` | moves packets between links and queue pairs, on whatever thread comes by |
//! | `cm` | the connection manager: QP1, and ids shaped after librdmacm |
//! | `random` | numbers that nobody can guess, also while the process exits |
//! | `raw` | raw packets: whole Ethernet frames, and rules for who gets them |
//! | [`link`] | how packets leave and arrive: UDP, fault injection, capture |
//! | `local` | the same-host fabric: rings, and operations in the memory of neighbours |
//! | [`registry`] | how the processes of one host find each other |
//! | `shared` | the one NIC of a process that has no owner |
//! | `addresses`, `gids`, `watch` | the GID table, what each entry carries, and how it follows the machine's addresses |
//! | [`inspect`] | counters of running processes, for whoever asks |
//! | [`lock`] | locks that never allocate |
//! | `wait_set` | descriptors to sleep on, and who of several sleepers is woken |
//! | `fork`, `exit`, `farewell`, `log`, `counters` | what a process needs besides |
//!
//! The protocol itself is in `ferroce-proto`; nothing here knows an opcode.

mod addresses;
mod cm;
mod config;
mod counters;
mod engine;
mod error;
mod eventfd;
mod exit;
mod farewell;
mod fork;
mod gids;
pub mod inspect;
pub mod link;
mod local;
pub mod lock;
mod log;
mod memory;
mod nic;
mod objects;
mod random;
mod raw;
pub mod registry;
mod shared;
mod wait_set;
mod watch;

pub use cm::{
    CmChannel, CmCounters, CmEvent, CmEventKind, CmId, CmOptions, CmRefusal, CmTransport, ConnParam, Ece,
    KeyError, PortSpace, RejectReason, Secret, UDP_QKEY, UdParam, read_key,
};
pub use config::{Config, ConfigError, LinkChoice};
pub use counters::{Counters, QpReport};
pub use engine::Posting;
pub use error::Error;
pub use gids::GidEntry;
pub use log::log_refusal;
pub use memory::{DeviceMemory, MAX_DM, MAX_MW, Prefetch, WindowType};
pub use nic::{
    DEVICE_NAME, DeviceAttr, GID_TABLE_LEN, MAX_INLINE, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE, Nic, gid_table,
};
pub use objects::{
    AddressHandle, AsyncEvent, CompletionChannel, Cq, EventSource, MAX_SRQ_WR, MemoryRegion, MemoryWindow,
    Moderation, Pd, Qp, QpInit, Srq, SrqAttr, Stamp, XrcDomain, XrcKey, next_rkey,
};
pub use raw::{
    Flow, FlowCounts, FlowFilter, FlowKind, FlowLayer, FlowRule, HashFields, MAX_SPREAD, RxHash, WorkQueue,
    WqState,
};
