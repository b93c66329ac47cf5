//! Developer commands of ferroce. `cargo xtask test` decides whether a commit is good.
//!
//! The benchmarks are in a separate crate, crates/bench, which uses the public modules of this one.
//!
//! | file | contents |
//! |---|---|
//! | `test` | the list of steps, and the loop that runs and tallies them |
//! | `step` | the context of a step, and its report |
//! | `pid_namespace` | ends all that xtask has started when xtask ends |
//! | `process` | a child process: one output stream, a time limit, no orphans |
//! | `dialogue` | a helper process that answers lines |
//! | `screen` | progress on a terminal, plain lines elsewhere |
//! | `cargo` | the steps that are one cargo command each |
//! | `libtest` | reads the tallies, ignored tests and `SKIPPED:` lines out of libtest's output |
//! | `live` | the right to run a live fabric |
//! | `tools` | foreign programs that tests need: found, installed, or reported as missing |
//! | `debian` | Debian packages that are unpacked into a private folder |
//! | `programs` | foreign programs on ferroce, and rdma-core's conformance suite |
//! | `dsm` | shared-memory programs over libjia |
//! | `unprivileged` | the perf run and the integration tests as a user without rights |
//! | `fuzz` | libFuzzer targets on a stable toolchain |
//! | `sim` | the simulation over many seeds |
//! | `soak` | mixed traffic for a long time: memory, descriptors and files must not grow |
//! | `instructions` | instructions per operation, compared with a file in the repository |
//! | `layout`, `links`, `source` | the style rules as a check: sources, links of the Markdown pages, blanking of comments and strings |
//! | `selection` | options that select cases of a table and the output format |
//! | `install` | the command and its libraries into a prefix |
//! | `figure` | reads figures from the output of measuring programs |
//! | `interop` | the Linux kernel's Soft-RoCE as the peer, in a virtual machine |
#![forbid(unsafe_code)]

mod cargo;
pub mod debian;
mod deny;
mod dialogue;
pub mod dsm;
pub mod figure;
mod fuzz;
mod hugepages;
mod install;
mod instructions;
mod interop;
mod layers;
mod layout;
mod libtest;
mod links;
mod live;
mod package;
mod pid_namespace;
mod process;
pub mod programs;
mod screen;
mod selection;
mod sim;
mod soak;
mod source;
pub mod step;
mod test;
pub mod tools;
mod unprivileged;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use process::cargo;
use step::{Context, Tier};

/// Developer commands of ferroce.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the checks of a tier; installs what is missing where it may.
    Test(test::Args),
    /// Run the fuzz targets of fuzz/ for a while.
    Fuzz(fuzz::Args),
    /// Run the simulation over many seeds; the results must be those of a perfect network.
    Sim(sim::Args),
    /// Run mixed traffic on both links and see that memory, descriptors and files do not grow.
    Soak(soak::Args),
    /// Run foreign RDMA programs on ferroce: Debian's ibverbs-utils and perftest, and rdma-core's conformance suite.
    Programs(programs::Args),
    /// The side of `programs` inside a network namespace.
    #[command(hide = true)]
    ProgramsWorker(programs::Setup),
    /// Run the shared-memory programs of programs/jia, with 1 to 8 processes on every transport.
    Dsm(selection::Selection),
    /// The side of `dsm` inside a network namespace.
    #[command(hide = true)]
    DsmWorker(dsm::worker::Args),
    /// Install the command and its libraries: bin/ferroce, lib/ferroce/libibverbs.so.1.
    Install(install::Args),
    /// Count instructions per operation under valgrind, compared with crates/bench/instructions.txt.
    Instructions(instructions::Args),
    /// Talk to the Linux kernel's Soft-RoCE in a virtual machine.
    Interop(interop::Args),
    /// Run the benchmarks of crates/bench, optimised; `cargo xtask bench help` lists them.
    #[command(disable_help_flag = true)]
    Bench {
        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

/// Runs the command that the arguments of the process name.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    if let Some(ended) = pid_namespace::run_again() {
        return ended;
    }
    match command {
        Command::Test(args) => test::run(&Context::new(args.verbose, args.tier()), &args),
        Command::Fuzz(args) => fuzz::run(&Context::new(true, Tier::Full), &args),
        Command::Sim(args) => sim::run(&Context::new(true, Tier::Full), &args),
        Command::Soak(args) => soak::run(&Context::new(true, Tier::Full), &args),
        Command::Programs(args) => programs::run(&Context::new(false, Tier::Full), &args),
        Command::ProgramsWorker(args) => programs::worker::run(&args),
        Command::Dsm(args) => dsm::run(&Context::new(false, Tier::Full), &args),
        Command::DsmWorker(args) => dsm::worker::run(&args),
        Command::Install(args) => install::run(&Context::new(false, Tier::Full), &args),
        Command::Instructions(args) => instructions::run(&Context::new(false, Tier::Full), &args),
        Command::Interop(args) => interop::run(&Context::new(args.shows_progress(), Tier::Full), &args),
        Command::Bench { args } => bench(&args),
    }
}

/// Builds and runs the benchmarks. They link against the whole project, so they are built on demand.
fn bench(args: &[OsString]) -> ExitCode {
    let mut command = cargo();
    command.args(["run", "--quiet", "--release", "--package", "ferroce-bench", "--"]).args(args);
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => step::fail(&format!("cargo did not start: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn arguments_of_a_benchmark_arrive_as_they_are() {
        for words in [&["--help"][..], &["--fabric", "--rounds", "1"], &["perf", "--", "--quick"], &[]] {
            let line = ["cargo xtask", "bench"].iter().chain(words);
            let Ok(Cli { command: Command::Bench { args } }) = Cli::try_parse_from(line) else {
                panic!("{words:?}");
            };
            assert_eq!(args, words);
        }
    }
}
