//! A failure for the user: what went wrong, and what to do next.

use std::process::ExitCode;

/// One sentence on what failed and, if known, one on what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    what: String,
    advice: Option<String>,
    code: u8,
}

impl Failure {
    /// An operation failed.
    pub(crate) fn new(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), advice: None, code: 1 }
    }

    /// The command line is wrong.
    pub(crate) fn usage(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), advice: None, code: 2 }
    }

    /// A system call failed while doing `what`.
    pub(crate) fn io(what: impl AsRef<str>, error: impl std::fmt::Display) -> Failure {
        Failure::new(format!("{}: {error}", what.as_ref()))
    }

    /// Adds what to do next.
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Failure {
        self.advice = Some(advice.into());
        self
    }

    /// Ends the command with this status instead.
    pub(crate) fn exit_with(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }

    /// What went wrong.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Prints it for the user, and returns the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("ferroce: {}.", self.what);
        if let Some(advice) = &self.advice {
            eprintln!("  {advice}.");
        }
        ExitCode::from(self.code)
    }
}
