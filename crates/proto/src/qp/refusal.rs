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
        InvalidRequest = 0 => "invalid_request",
        /// An XRC request for a shared receive queue that is not in the XRC domain.
        NoSuchSrq = 1 => "no_such_srq",
        /// A message longer than its receive.
        ReceiveTooSmall = 2 => "receive_too_small",
        /// A receive whose memory is not accessible.
        ReceiveMemory = 3 => "receive_memory",
        /// A key that no region has, and most likely none ever had.
        NoSuchKey = 4 => "no_such_key",
        /// Memory of another protection domain.
        WrongPd = 5 => "wrong_pd",
        /// Bytes outside the region or memory window.
        OutOfRange = 6 => "out_of_range",
        /// A right that the region, memory window or queue pair does not grant.
        Denied = 7 => "denied",
        /// A type 2 memory window bound to another queue pair.
        WrongQp = 8 => "wrong_qp",
        /// An atomic at an address that is not a multiple of 8.
        Misaligned = 9 => "misaligned",
        /// A page of an on-demand region that is not present, or memory of a GPU that its driver refuses.
        NotPresent = 10 => "not_present",
        /// A bind or invalidation that the state of the memory window does not allow.
        Window = 11 => "window",
        /// Most likely a key whose region was deregistered, or that was changed or invalidated.
        StaleKey = 12 => "stale_key",
    }
    /// The name for tables.
    fn name
}

impl RefusalReason {
    /// The reason in words.
    pub const fn text(self) -> &'static str {
        match self {
            RefusalReason::InvalidRequest => "opcode, length or number of requests not allowed",
            RefusalReason::NoSuchSrq => "no such shared receive queue in the XRC domain (XRC)",
            RefusalReason::ReceiveTooSmall => "longer than its receive",
            RefusalReason::ReceiveMemory => "the memory of the receive is not accessible",
            RefusalReason::NoSuchKey => "a key that names no region",
            RefusalReason::WrongPd => "memory of another protection domain",
            RefusalReason::OutOfRange => "outside the region or memory window",
            RefusalReason::Denied => "a right that the region or the queue pair does not grant",
            RefusalReason::WrongQp => "a memory window of another queue pair",
            RefusalReason::Misaligned => "an atomic that is not aligned to 8",
            RefusalReason::NotPresent => {
                "a page of on-demand memory that is not mapped, or GPU memory that its driver refuses"
            }
            RefusalReason::Window => "not allowed in the state of the memory window",
            RefusalReason::StaleKey => "the key of a region that was deregistered, or an invalidated key",
        }
    }

    /// The reason that a NAK between two ferroce ends carries.
    pub(crate) fn from_payload(payload: &[u8]) -> Option<RefusalReason> {
        RefusalReason::ALL.get(usize::from(*payload.first()?)).copied()
    }

    /// Its form in a NAK, padded to four bytes. The numbers of the list are part of the wire format.
    pub(crate) fn to_payload(self) -> [u8; 4] {
        [self as u8, 0, 0, 0]
    }
}

impl From<&MemoryFault> for RefusalReason {
    fn from(fault: &MemoryFault) -> Self {
        match fault {
            MemoryFault::NoSuchKey { .. } => RefusalReason::NoSuchKey,
            MemoryFault::StaleKey { .. } => RefusalReason::StaleKey,
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
