//! What a call of this crate refuses, and why.

use std::io;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot be understood.
    #[error("{variable} is {value:?}, but {wanted}")]
    Setting {
        /// The environment variable.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        wanted: &'static str,
    },
    /// The launcher's meeting place could not be used.
    #[error("meeting the other processes at {at} failed: {source}")]
    Meet {
        /// Its address.
        at: String,
        /// What the system said.
        source: io::Error,
    },
    /// The processes of the job do not fit together.
    #[error("the processes of this job do not agree: {0}")]
    Disagree(String),
    /// The system refused.
    #[error("{call}: {source}")]
    System {
        /// What was tried.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The heap has no room for this allocation.
    #[error(
        "{asked} bytes do not fit into the shared heap, {left} bytes are left; FERROCE_DSM_HEAP makes it larger"
    )]
    HeapFull {
        /// Bytes asked for.
        asked: usize,
        /// Bytes in the largest gap.
        left: usize,
    },
    /// This placement cannot be.
    #[error("placement: {0}")]
    Placement(String),
    /// No allocation starts here.
    #[error("no allocation starts at {0:#x}")]
    NotAllocated(usize),
    /// The range is not inside an allocation.
    #[error("{len} bytes at {at:#x} are not inside one allocation of the shared heap")]
    NotInAllocation {
        /// Start.
        at: usize,
        /// Length.
        len: usize,
    },
    /// A number that names nothing.
    #[error("{what} {id}: there are {count}, numbered from 0")]
    NoSuch {
        /// What it should name.
        what: &'static str,
        /// The number.
        id: u32,
        /// How many there are.
        count: u32,
    },
    /// A lock is taken twice by one thread.
    #[error("lock {0} is held by this thread already")]
    HeldAlready(u32),
    /// Unlock of what is not the youngest lock of this thread.
    #[error("lock {id} cannot be released: {why}")]
    NotYoungest {
        /// The lock.
        id: u32,
        /// What is instead.
        why: String,
    },
    /// A barrier inside a critical section.
    #[error("a barrier inside the critical section of lock {0} would wait for ever")]
    BarrierInLock(u32),
    /// The end of a process inside a critical section.
    #[error(
        "the job is left inside the critical section of lock {0}, for which the others would wait for ever"
    )]
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
