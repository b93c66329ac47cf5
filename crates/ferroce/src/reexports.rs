//! Types of the inner crates that are part of the public API on purpose.
//!
//! The inner crates define the vocabulary of the verbs. It is complete here: every public signature of this crate, and every
//! public field of the types below, uses only these types, so no program needs a dependency on an inner crate.

/// Why the NIC refused a call.
#[doc(inline)]
pub use ferroce_nic::Error as Refusal;
#[doc(inline)]
pub use ferroce_nic::link::{FaultConfig, FaultConfigError, LinkCounters, LinkError};
#[doc(inline)]
pub use ferroce_nic::registry::RegistryError;
#[doc(inline)]
pub use ferroce_nic::{
    AsyncEvent, CmRefusal, Config, ConfigError, Counters, DeviceAttr, EventSource, GidEntry, KeyError,
    LinkChoice, Prefetch, QpReport, RejectReason, Secret, SrqAttr, Wire, read_key,
};
#[doc(inline)]
pub use ferroce_proto::cc::{BadChoice as CongestionError, Choice as Congestion};
#[doc(inline)]
pub use ferroce_proto::cm::CmError;
#[doc(inline)]
pub use ferroce_proto::qp::state::ModifyError;
#[doc(inline)]
pub use ferroce_proto::qp::{PostError, QpCounters, Reason};
#[doc(inline)]
pub use ferroce_proto::verbs::{
    Access, AddressVector, AtomicOp, AttrMask, Completion, EventKind, FlushWhat, MemoryFault, MigState, Mtu,
    MwBind, Payload, QpAttr, QpCap, QpState, RecvWr, Route, SendFlags, SendOp, SendWr, Sge, Transport,
    UdTarget, WcFlags, WcOpcode, WcStatus,
};
#[doc(inline)]
pub use ferroce_proto::{Gid, LKey, PdId, Psn, Qkey, Qpn, RKey, Srqn};
