//! Asynchronous events.

use crate::ids::Qpn;

/// What happened; the numbers are those of the verbs ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum EventKind {
    /// A CQ overflowed.
    CqErr = 0,
    /// A QP failed for a reason that no completion reports.
    QpFatal = 1,
    /// The peer's request was invalid.
    QpReqErr = 2,
    /// The peer's request violated access rights.
    QpAccessErr = 3,
    /// The first packet arrived on a QP that is still in RTR.
    CommEst = 4,
    /// The send queue is drained.
    SqDrained = 5,
    /// Path migrated (never on RoCE).
    PathMig = 6,
    /// Path migration failed (never on RoCE).
    PathMigErr = 7,
    /// The device failed.
    DeviceFatal = 8,
    /// A port became active.
    PortActive = 9,
    /// A port went down.
    PortErr = 10,
    /// LID change (InfiniBand only).
    LidChange = 11,
    /// P_Key table change.
    PkeyChange = 12,
    /// Subnet manager change (InfiniBand only).
    SmChange = 13,
    /// A shared receive queue failed.
    SrqErr = 14,
    /// A shared receive queue fell below its limit.
    SrqLimitReached = 15,
    /// A QP in ERR has taken its last receive from a shared receive queue.
    QpLastWqeReached = 16,
    /// Clients should register again (InfiniBand only).
    ClientReregister = 17,
    /// The GID table changed.
    GidChange = 18,
}

/// An event of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpEvent {
    /// The queue pair.
    pub qpn: Qpn,
    /// What happened to it.
    pub kind: EventKind,
}
