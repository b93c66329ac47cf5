//! Errors of this crate.

use std::io;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting has no valid value.
    #[error("{variable} is {value:?}; set it to {wanted}")]
    Setting {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        wanted: &'static str,
    },
    /// The rendezvous of the launcher failed.
    #[error("the rendezvous at {at} failed: {source}")]
    Meet {
        /// Its address.
        at: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The processes of the job have different settings.
    #[error("the processes of this job have different settings: {0}")]
    Disagree(String),
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The heap has no free range for this allocation.
    #[error(
        "an allocation of {asked} bytes exceeds the {left} free bytes of the shared heap; enlarge it with FERROCE_DSM_HEAP"
    )]
    HeapFull {
        /// Bytes of the allocation.
        asked: usize,
        /// Bytes in the largest gap.
        left: usize,
    },
    /// The placement is impossible.
    #[error("placement: {0}")]
    Placement(String),
    /// No allocation starts here.
    #[error("no allocation starts at {0:#x}")]
    NotAllocated(usize),
    /// The range is not inside an allocation.
    #[error("{len} bytes at {at:#x} exceed the allocations of the shared heap")]
    NotInAllocation {
        /// Start.
        at: usize,
        /// Length.
        len: usize,
    },
    /// A number that is out of range.
    #[error("{what} {id} does not exist: there are {count}, numbered from 0")]
    NoSuch {
        /// The kind of object.
        what: &'static str,
        /// The number.
        id: u32,
        /// How many of these objects exist.
        count: u32,
    },
    /// A thread acquires a lock twice.
    #[error("this thread already holds lock {0}")]
    HeldAlready(u32),
    /// A thread releases a lock that is not the one it acquired last.
    #[error("lock {id} cannot be released: {why}")]
    NotYoungest {
        /// The lock.
        id: u32,
        /// The reason.
        why: String,
    },
    /// A barrier is called inside a critical section.
    #[error("a barrier inside the critical section of lock {0} would deadlock; release the lock first")]
    BarrierInLock(u32),
    /// A process leaves the job inside a critical section.
    #[error("this process leaves the job while it holds lock {0}; release the lock first")]
    LeaveInLock(u32),
    /// Communication with another process failed.
    #[error("{0}")]
    Transport(String),
}

impl Error {
    pub(crate) fn system(call: &'static str) -> Self {
        Error::System { call, source: io::Error::last_os_error() }
    }
}
