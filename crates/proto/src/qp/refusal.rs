//! Why a request was refused, as a counter.

use crate::verbs::MemoryFault;

/// One cause per counter. The peer receives a NAK with a coarser code; the values go to
/// [`Events::refused`](super::Events::refused).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum RefusalReason {
    /// An invalid request: wrong opcode, length or position in a message, or too many outstanding.
    InvalidRequest,
    /// An XRC request for a shared receive queue that is not in the XRC domain.
    NoSuchSrq,
    /// A message longer than its receive.
    ReceiveTooSmall,
    /// A receive whose memory is not accessible.
    ReceiveMemory,
    /// An unknown key: never registered, deregistered or invalidated.
    NoSuchKey,
    /// Memory of another protection domain.
    WrongPd,
    /// Bytes outside the region or memory window.
    OutOfRange,
    /// A right that the region, memory window or queue pair does not grant.
    Denied,
    /// A type 2 memory window bound to another queue pair.
    WrongQp,
    /// An atomic at an address that is no multiple of 8.
    Misaligned,
    /// A page of an on-demand region that is not present.
    NotPresent,
    /// A bind or invalidation that the state of the memory window does not allow.
    Window,
}

impl RefusalReason {
    /// All reasons, in numeric order.
    pub const ALL: [RefusalReason; 12] = [
        RefusalReason::InvalidRequest,
        RefusalReason::NoSuchSrq,
        RefusalReason::ReceiveTooSmall,
        RefusalReason::ReceiveMemory,
        RefusalReason::NoSuchKey,
        RefusalReason::WrongPd,
        RefusalReason::OutOfRange,
        RefusalReason::Denied,
        RefusalReason::WrongQp,
        RefusalReason::Misaligned,
        RefusalReason::NotPresent,
        RefusalReason::Window,
    ];

    /// The name for tables.
    pub const fn name(self) -> &'static str {
        match self {
            RefusalReason::InvalidRequest => "invalid_request",
            RefusalReason::NoSuchSrq => "no_such_srq",
            RefusalReason::ReceiveTooSmall => "receive_too_small",
            RefusalReason::ReceiveMemory => "receive_memory",
            RefusalReason::NoSuchKey => "no_such_key",
            RefusalReason::WrongPd => "wrong_pd",
            RefusalReason::OutOfRange => "out_of_range",
            RefusalReason::Denied => "denied",
            RefusalReason::WrongQp => "wrong_qp",
            RefusalReason::Misaligned => "misaligned",
            RefusalReason::NotPresent => "not_present",
            RefusalReason::Window => "window",
        }
    }
}

impl From<&MemoryFault> for RefusalReason {
    fn from(fault: &MemoryFault) -> Self {
        match fault {
            MemoryFault::NoSuchKey { .. } => RefusalReason::NoSuchKey,
            MemoryFault::WrongPd { .. } => RefusalReason::WrongPd,
            MemoryFault::OutOfRange { .. } => RefusalReason::OutOfRange,
            MemoryFault::Denied { .. } | MemoryFault::QpDenies { .. } => RefusalReason::Denied,
            MemoryFault::WrongQp { .. } => RefusalReason::WrongQp,
            MemoryFault::Misaligned { .. } => RefusalReason::Misaligned,
            MemoryFault::NotPresent { .. } => RefusalReason::NotPresent,
            MemoryFault::StillBound { .. }
            | MemoryFault::ForeignKey { .. }
            | MemoryFault::NotInvalidatable { .. }
            | MemoryFault::NotOnDemand { .. } => RefusalReason::Window,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_list_and_names_differ() {
        for (i, reason) in RefusalReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
            assert!(RefusalReason::ALL[..i].iter().all(|other| other.name() != reason.name()));
        }
    }
}
