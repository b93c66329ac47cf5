//! Why an access to registered memory was refused.

use super::Access;
use crate::ids::{PdId, Qpn};

/// A refused access, with the numbers that explain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryFault {
    /// No region has this key.
    #[error(
        "key {key:#x} names no region here; check that the key is that of the region, and lkey and rkey are not exchanged"
    )]
    NoSuchKey {
        /// The key.
        key: u32,
    },
    /// Most likely the key of a region that was deregistered, an invalidated key, or that of a window that is not bound.
    #[error(
        "key {key:#x} is not valid now: its region was deregistered, the key was changed or invalidated, or the window is not bound"
    )]
    StaleKey {
        /// The key.
        key: u32,
    },
    /// The region belongs to another protection domain.
    #[error("key {key:#x} names a region of PD {}, this QP is in PD {}; register the memory in the PD of the QP", region.0, qp.0)]
    WrongPd {
        /// The key.
        key: u32,
        /// Domain of the region.
        region: PdId,
        /// Domain of the queue pair.
        qp: PdId,
    },
    /// The bytes are not all inside the region.
    #[error(
        "{len} bytes at {addr:#x} are not inside the region of key {key:#x}, which has {region_len} bytes at {start:#x}"
    )]
    OutOfRange {
        /// The key.
        key: u32,
        /// First byte requested.
        addr: u64,
        /// Number of bytes requested.
        len: u64,
        /// First byte of the region.
        start: u64,
        /// Length of the region.
        region_len: u64,
    },
    /// The region does not grant this right.
    #[error("key {key:#x} grants {have}, the operation needs {need}; register the memory with it")]
    Denied {
        /// The key.
        key: u32,
        /// The required rights.
        need: Access,
        /// The granted rights.
        have: Access,
    },
    /// The queue pair does not grant this right. The rights of the region do not matter.
    #[error("the access flags of the QP grant {have}, the operation needs {need}; set it in qp_access_flags")]
    QpDenies {
        /// The required rights.
        need: Access,
        /// The granted rights.
        have: Access,
    },
    /// The address of an atomic is not a multiple of 8.
    #[error("atomic address {addr:#x} is not a multiple of 8")]
    Misaligned {
        /// The address.
        addr: u64,
    },
    /// A memory window of type 2 is open to one queue pair only, the one it was bound through.
    #[error("key {key:#x} names a window that was bound through QP {bound}, this is QP {qp}")]
    WrongQp {
        /// The key.
        key: u32,
        /// The queue pair it was bound through.
        bound: Qpn,
        /// The queue pair that used the key.
        qp: Qpn,
    },
    /// A memory window of type 2 must be invalidated before it is bound again.
    #[error("the window of key {key:#x} is bound; a window of type 2 is invalidated first")]
    StillBound {
        /// The window's key.
        key: u32,
    },
    /// A bind of zero bytes, which closes a memory window of type 1 only.
    #[error(
        "a bind of 0 bytes to the window of key {key:#x}; a window of type 2 is closed by an invalidation"
    )]
    NothingToBind {
        /// The window's key.
        key: u32,
    },
    /// A page is not mapped, or not writable: the program unmapped it, or never mapped it.
    #[error("{len} bytes at {addr:#x} are not (all) mapped, or not writable")]
    NotPresent {
        /// First byte requested, in the address space of the process.
        addr: u64,
        /// Number of bytes requested.
        len: u64,
    },
    /// The CUDA driver refused access to memory of a GPU.
    #[error("the CUDA driver refused access to {len} bytes of GPU memory at {addr:#x} (CUresult {status})")]
    Gpu {
        /// First byte requested, in the address space of the process.
        addr: u64,
        /// Number of bytes requested.
        len: u64,
        /// The driver's result code (`CUresult`).
        status: i32,
    },
    /// The region was not registered for on-demand paging.
    #[error("key {key:#x} names a region that was not registered with ON_DEMAND")]
    NotOnDemand {
        /// The key.
        key: u32,
    },
    /// No work request can make this key invalid (IBA 10.6.7.2.6): a memory window of type 1.
    #[error("key {key:#x} names a window of type 1, which only another bind closes")]
    NotInvalidatable {
        /// The key.
        key: u32,
    },
}
