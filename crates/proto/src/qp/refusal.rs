//! Why a request was refused, as a counter.

use crate::listed::listed;
use crate::verbs::MemoryFault;

listed! {
    /// One cause per counter. The peer receives a NAK with a coarser code; the values go to
    /// [`Events::refused`](super::Events::refused).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    #[non_exhaustive]
    pub enum RefusalReason {
        /// An invalid request: wrong opcode, length or position in a message, or too many outstanding.
        InvalidRequest => "invalid_request",
        /// An XRC request for a shared receive queue that is not in the XRC domain.
        NoSuchSrq => "no_such_srq",
        /// A message longer than its receive.
        ReceiveTooSmall => "receive_too_small",
        /// A receive whose memory is not accessible.
        ReceiveMemory => "receive_memory",
        /// An unknown key: never registered, deregistered or invalidated.
        NoSuchKey => "no_such_key",
        /// Memory of another protection domain.
        WrongPd => "wrong_pd",
        /// Bytes outside the region or memory window.
        OutOfRange => "out_of_range",
        /// A right that the region, memory window or queue pair does not grant.
        Denied => "denied",
        /// A type 2 memory window bound to another queue pair.
        WrongQp => "wrong_qp",
        /// An atomic at an address that is no multiple of 8.
        Misaligned => "misaligned",
        /// A page of an on-demand region that is not present, or memory of a GPU that its driver refuses.
        NotPresent => "not_present",
        /// A bind or invalidation that the state of the memory window does not allow.
        Window => "window",
    }
    /// The name for tables.
    fn name
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
            MemoryFault::NotPresent { .. } | MemoryFault::Gpu { .. } => RefusalReason::NotPresent,
            MemoryFault::StillBound { .. }
            | MemoryFault::NothingToBind { .. }
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
