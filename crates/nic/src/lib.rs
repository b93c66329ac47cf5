//! The software NIC: everything between the verbs and the wire.
//!
//! Modules form layers. A module uses modules of lower layers only; `cargo xtask test --filter layout` checks that, by the
//! table in xtask/src/layers.rs. From the bottom up:
//!
//! | layer | module | contents |
//! |---|---|---|
//! | host | `poller_activity` | how threads that poll and the background thread share the work |
//! | | [`DeviceLimits`] | what a device allows |
//! | registered memory | `memory` | keys, checks, memory windows, and the few lines that copy |
//! | links | [`link`] | how packets leave and arrive: UDP, fault injection, capture |
//! | settings | [`Config`], `counters` | how a device is opened; what it counts |
//! | same-host fabric | `local` | packets through rings, and operations in the memory of processes of this host, by `ferroce-shm` |
//! | | [`Error`] | why a call was refused |
//! | queues | `queues` | the inner side of completion queues, shared receive queues, channels and events |
//! | | `locked_memory` | strict mode: how much memory a NIC would pin |
//! | | `device_memory`, `gids` | memory of the device itself; what the GID table is made of |
//! | addresses | `addresses`, `next_hop` | the GID table; strict mode: whether the next hop of a path answers |
//! | | `raw`, `xrc` | whole Ethernet frames and rules for who gets them; XRC domains |
//! | engine | `engine` | moves packets between links and queue pairs, on any thread that polls, posts or runs in the background |
//! | services | `cm` | the connection manager: QP1, and ids shaped after librdmacm |
//! | | `device_attr`, `exit_report` | attributes of the device; the report that it writes when it closes |
//! | device | [`Nic`] | the device that all objects belong to |
//! | | `exit`, `follow`, [`inspect`] | the exit of the process, address changes, counters for other processes |
//! | handles | `objects` | what programs hold: PD, memory region and window, CQ, QP, SRQ, work queue, address handle |
//! | | `open`, `shared` | opening a device; the device that all users in a process share |
//!
//! The protocol itself is in `ferroce-proto`; this crate contains no opcode. Locks, clocks and other services of the kernel are in
//! `ferroce-os`; what processes of one host share is in `ferroce-shm`.

mod addresses;
mod cm;
mod config;
mod congestion;
mod contexts;
mod counters;
mod device_attr;
mod device_memory;
mod engine;
mod error;
mod exit;
mod exit_report;
mod follow;
mod gids;
pub mod inspect;
mod limits;
pub mod link;
mod local;
mod locked_memory;
mod memory;
mod next_hop;
mod nic;
mod objects;
mod open;
mod operation_log;
mod poller_activity;
mod queues;
mod quota;
mod raw;
mod shared;
mod watchdog;
mod xrc;

pub use cm::{
    CmChannel, CmCounters, CmEvent, CmEventKind, CmId, CmOptions, CmTransport, ConnParam, Ece, PortSpace,
    RejectReason, Secret, UDP_QKEY, UdParam,
};
pub use config::{Config, ConfigError, KeyError, LinkChoice, Wire, read_key};
pub use congestion::parse as parse_congestion;
pub use counters::{Counters, CqReport, HistoryReport, ObjectReport, QpReport, RegionReport};
pub use device_attr::{DEVICE_NAME, DeviceAttr, GID_TABLE_LEN};
pub use device_memory::{DeviceMemory, MAX_DM};
pub use engine::Posting;
pub use error::{CmRefusal, Error};
pub use ferroce_os::lock;
pub use ferroce_os::log::{
    explains as log_explains, misuse as log_misuse, refusal as log_refusal, stall as log_stall,
};
pub use ferroce_proto::qp::RefusalReason;
pub use ferroce_shm::registry;
pub use gids::{GidEntry, port_gids};
pub use limits::{
    DeviceLimits, MAX_INLINE, MAX_OBJECTS, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE, MAX_SRQ_WR, SendBlocks, Strict,
};
pub use memory::{MAX_MW, Prefetch, WindowType, is_driver_loaded as is_cuda_loaded};
pub use next_hop::Neighbour;
pub use nic::Nic;
pub use objects::{
    AddressHandle, Cq, MemoryRegion, MemoryWindow, Pd, Qp, QpInit, Srq, WorkQueue, WqState, next_rkey,
};
pub use open::gid_table;
pub use operation_log::{LoggedCall, OperationLog};
pub use queues::{AsyncEvent, CompletionChannel, EventSource, Moderation, SrqAttr, Stamp};
pub use raw::{Flow, FlowCounts, FlowFilter, FlowKind, FlowLayer, FlowRule, HashFields, MAX_SPREAD, RxHash};
pub use xrc::{XrcDomain, XrcKey};
