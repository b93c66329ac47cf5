//! Errors: refused calls, failed completions, connections that were not established.

use crate::qp::connect::ConnectError;
use ferroce_nic::ConfigError;
use ferroce_proto::Qpn;
use ferroce_proto::qp::Reason;
use ferroce_proto::verbs::{Completion, WcStatus};

/// The error type of all calls of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The NIC refused a verb. The source names the attribute and the values.
    #[error("{verb}: {source}")]
    Call {
        /// The verb.
        verb: &'static str,
        /// Why.
        source: ferroce_nic::Error,
    },
    /// The NIC accepted the first `taken` work requests of a list and refused the next.
    #[error("{verb}: work request {taken} of the list (counted from 0): {source}")]
    Post {
        /// The verb.
        verb: &'static str,
        /// Number of accepted work requests.
        taken: usize,
        /// Why the next was refused.
        source: ferroce_nic::Error,
    },
    /// An environment variable has an invalid value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An operation completed with an error.
    #[error(transparent)]
    Completion(#[from] CompletionError),
    /// A connection was not established.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A range exceeds a region or buffer.
    #[error("bytes {start}..{end} exceed the {len} bytes of the memory")]
    Range {
        /// First byte.
        start: u64,
        /// End of the range (exclusive).
        end: u64,
        /// Size of the memory in bytes.
        len: u64,
    },
    /// The offset of an eight-byte access is not a multiple of eight.
    #[error("offset {offset} is not a multiple of 8")]
    Misaligned {
        /// The offset.
        offset: usize,
    },
    /// The memory for a region or buffer could not be allocated.
    #[error("could not allocate {bytes} bytes")]
    OutOfMemory {
        /// Requested size in bytes.
        bytes: usize,
    },
    /// The operation has no outcome: its queue pair was destroyed or reset, or the outcome was taken already.
    #[error(
        "the operation has no outcome: its queue pair was destroyed or reset, or the outcome was taken already"
    )]
    Gone,
    /// A wait ended at its timeout. The operation continues.
    #[error("the wait timed out")]
    TimedOut,
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The attempted action.
        what: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn in_call(verb: &'static str) -> impl Fn(ferroce_nic::Error) -> Error {
        move |source| Error::Call { verb, source }
    }

    pub(crate) fn invalid(verb: &'static str, attribute: &'static str, why: &'static str) -> Error {
        Error::Call { verb, source: ferroce_nic::Error::Invalid { attribute, why } }
    }

    pub(crate) fn in_post(verb: &'static str) -> impl Fn((usize, ferroce_nic::Error)) -> Error {
        move |(taken, source)| Error::Post { verb, taken, source }
    }

    pub(crate) fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |errno| Error::System { what, source: errno.into() }
    }

    /// The refusal of the NIC, for [`Error::Call`] and [`Error::Post`].
    pub fn refusal(&self) -> Option<&ferroce_nic::Error> {
        match self {
            Error::Call { source, .. } | Error::Post { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The failed completion, for [`Error::Completion`].
    pub fn completion(&self) -> Option<&CompletionError> {
        match self {
            Error::Completion(failed) => Some(failed),
            _ => None,
        }
    }
}

/// A work request that completed with an error.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wr_id {wr_id:#x} on QP {qpn} completed with {status:?}: {}", self.explain())]
pub struct CompletionError {
    /// The caller's identifier of the work request.
    pub wr_id: u64,
    /// The queue pair.
    pub qpn: Qpn,
    /// The status of the completion.
    pub status: WcStatus,
    /// The cause, where the NIC reports more than the status.
    pub reason: Option<Reason>,
}

impl CompletionError {
    /// One sentence about the cause and what to check next.
    pub fn explain(&self) -> &'static str {
        match self.reason {
            Some(reason) => reason.text(),
            None => "set FERROCE_LOG=1 for the cause",
        }
    }
}

/// A completion as a `Result`.
pub trait Outcome: Sized {
    /// The completion if it is a success, else the error.
    fn ok(self) -> Result<Self, CompletionError>;
}

impl Outcome for Completion {
    fn ok(self) -> Result<Self, CompletionError> {
        match self.status {
            WcStatus::Success => Ok(self),
            status => Err(CompletionError {
                wr_id: self.wr_id,
                qpn: self.qpn,
                status,
                reason: Reason::from_code(self.vendor_err),
            }),
        }
    }
}
