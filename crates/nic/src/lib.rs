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
//! | `shm` | what processes of one host share: what each shows of itself, and pages that others can map |
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
mod device_attr;
mod device_memory;
mod engine;
mod error;
mod eventfd;
mod exit;
mod farewell;
mod follow;
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
mod open;
mod pulse;
mod queues;
mod random;
mod raw;
pub mod registry;
mod shared;
mod shm;
mod wait_set;
mod watch;
mod xrc;

pub use cm::{
    CmChannel, CmCounters, CmEvent, CmEventKind, CmId, CmOptions, CmTransport, ConnParam, Ece, PortSpace,
    RejectReason, Secret, UDP_QKEY, UdParam,
};
pub use config::{Config, ConfigError, KeyError, LinkChoice, read_key};
pub use counters::{Counters, QpReport};
pub use device_attr::{DeviceAttr, GID_TABLE_LEN, MAX_INLINE, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE};
pub use device_memory::{DeviceMemory, MAX_DM};
pub use engine::Posting;
pub use error::{CmRefusal, Error};
pub use gids::GidEntry;
pub use log::log_refusal;
pub use memory::{MAX_MW, Prefetch, WindowType};
pub use nic::Nic;
pub use objects::{
    AddressHandle, Cq, MemoryRegion, MemoryWindow, Pd, Qp, QpInit, Srq, WorkQueue, WqState, next_rkey,
};
pub use open::gid_table;
pub use queues::{AsyncEvent, CompletionChannel, EventSource, MAX_SRQ_WR, Moderation, SrqAttr, Stamp};
pub use raw::{Flow, FlowCounts, FlowFilter, FlowKind, FlowLayer, FlowRule, HashFields, MAX_SPREAD, RxHash};
pub use xrc::{XrcDomain, XrcKey};
