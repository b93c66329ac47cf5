//! Why something did not work: calls that are refused, completions that failed, connections that did not come about.

use crate::qp::connect::ConnectError;
use ferroce_nic::ConfigError;
use ferroce_proto::Qpn;
use ferroce_proto::qp::Reason;
use ferroce_proto::verbs::{Completion, WcStatus};

/// Every error of this crate, so that `?` works throughout a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb was refused; the source names the attribute and the numbers.
    #[error("{verb}: {source}")]
    Call {
        /// Which verb.
        verb: &'static str,
        /// Why.
        source: ferroce_nic::Error,
    },
    /// A list of work requests was refused, the first `taken` of them excepted.
    #[error("{verb}: work request {taken} of the list: {source}")]
    Post {
        /// Which verb.
        verb: &'static str,
        /// How many were taken before.
        taken: usize,
        /// Why the next was not.
        source: ferroce_nic::Error,
    },
    /// An environment variable cannot be understood.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An operation was done and did not succeed.
    #[error(transparent)]
    Completion(#[from] CompletionError),
    /// A connection could not be set up.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Bytes outside of a region or buffer.
    #[error("bytes {start}..{end} are not inside the {len} that there are")]
    Range {
        /// First byte.
        start: u64,
        /// First byte behind.
        end: u64,
        /// Bytes there are.
        len: u64,
    },
    /// An eight-byte access at an offset that is no multiple of eight.
    #[error("offset {offset} is not a multiple of 8")]
    Misaligned {
        /// The offset.
        offset: usize,
    },
    /// The system has no memory for a region or buffer.
    #[error("no memory for {bytes} bytes")]
    OutOfMemory {
        /// How many were asked for.
        bytes: usize,
    },
    /// There is no outcome to wait for: the queue pair was destroyed or reset before, or the outcome was taken.
    #[error("no outcome will come: the queue pair was destroyed or reset before it, or it was taken already")]
    Gone,
    /// A wait took longer than allowed. The operation goes on.
    #[error("nothing completed in time")]
    TimedOut,
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn in_call(verb: &'static str) -> impl Fn(ferroce_nic::Error) -> Error {
        move |source| Error::Call { verb, source }
    }

    pub(crate) fn in_post(verb: &'static str) -> impl Fn((usize, ferroce_nic::Error)) -> Error {
        move |(taken, source)| Error::Post { verb, taken, source }
    }

    pub(crate) fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |errno| Error::System { what, source: errno.into() }
    }

    /// What the NIC itself said, if it was asked.
    pub fn refusal(&self) -> Option<&ferroce_nic::Error> {
        match self {
            Error::Call { source, .. } | Error::Post { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The failed completion, if that is what this is.
    pub fn completion(&self) -> Option<&CompletionError> {
        match self {
            Error::Completion(failed) => Some(failed),
            _ => None,
        }
    }
}

/// A work request that was done, and did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wr_id {wr_id:#x} on QP {qpn} ended in {status:?}: {}", self.explain())]
pub struct CompletionError {
    /// The caller's number for it.
    pub wr_id: u64,
    /// The queue pair.
    pub qpn: Qpn,
    /// How it ended.
    pub status: WcStatus,
    /// Why, where the NIC knows more than the status says.
    pub reason: Option<Reason>,
}

impl CompletionError {
    /// One sentence, and what to look at next.
    pub fn explain(&self) -> &'static str {
        match self.reason {
            Some(reason) => reason.text(),
            None => "FERROCE_LOG=1 tells more",
        }
    }
}

/// A completion as a `Result`.
pub trait Outcome: Sized {
    /// The completion if it is a success, else what went wrong.
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
