//! A failure as the person at the terminal needs it: what went wrong, and what to do next.

use std::process::ExitCode;

/// One sentence on what failed and, where we know it, one on what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    what: String,
    advice: Option<String>,
    usage: bool,
}

impl Failure {
    /// Something did not work.
    pub(crate) fn new(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), advice: None, usage: false }
    }

    /// The command line asks for something that cannot be.
    pub(crate) fn usage(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), advice: None, usage: true }
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

    /// What went wrong.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Tells the user, and gives the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("ferroce: {}.", self.what);
        if let Some(advice) = &self.advice {
            eprintln!("  {advice}.");
        }
        ExitCode::from(if self.usage { 2 } else { 1 })
    }
}
