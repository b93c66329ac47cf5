//! `ferroce dsm`: programs that share memory over several processes and hosts.
//!
//! | file | question |
//! |---|---|
//! | `options` | which options there are |
//! | `hosts` | which machines, from a list of hosts; JIAJIA's files as well |
//! | `plan` | which process is started where, and with which environment |
//! | `remote` | how a process is started on another machine |
//! | `launch` | how all processes are started, watched and ended together |
//! | `output` | the output of all processes |
//! | `statistics`, `page` | what was counted, as a table and as an HTML page with pictures |
//! | `compile` | `ferroce dsm cc` |

mod compile;
mod hosts;
mod launch;
mod options;
pub(crate) mod output;
mod page;
mod plan;
mod remote;
mod statistics;

use crate::failure::Failure;
use clap::Subcommand;
use std::process::ExitCode;

/// Commands below `ferroce dsm`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a program as several processes that share memory.
    Run(options::Run),
    /// Compile a C program against jia.h and libjia.
    ///
    /// Calls cc, or the compiler in CC unless that is this command, with the folders of the header and of the library
    /// before your arguments.
    Cc(compile::Args),
}

/// Runs the command; the exit status is the program's, or the compiler's.
pub(crate) fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => launch::run(&args),
        Command::Cc(args) => compile::run(&args),
    }
}
