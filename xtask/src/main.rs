//! Developer commands of ferroce. `cargo xtask test` is the one that decides whether a commit is good.
//!
//! | file | what lives there |
//! |---|---|
//! | `test` | the list of steps, and the loop that runs and tallies them |
//! | `step` | what a step is handed and what it reports |
//! | `process` | a child process: one output stream, a time limit, no orphans |
//! | `dialogue` | a helper process that answers lines |
//! | `screen` | progress on a terminal, plain lines elsewhere |
//! | `cargo` | the steps that are one cargo command each |
//! | `libtest` | reads the tallies, ignored tests and `SKIPPED:` lines out of libtest's output |
//! | `tools` | foreign programs the tests lean on: found, installed, or loudly missing |
//! | `programs` | foreign programs on ferroce, and rdma-core's conformance suite |
//! | `dsm` | shared-memory programs over libjia: the tests, and the figures |
//! | `unprivileged` | the perf run and the integration tests as a user without rights |
//! | `fuzz` | libFuzzer targets on a stable toolchain |
//! | `instructions` | instructions per operation, compared with a file in the repository |
//! | `layout`, `links`, `source` | the style rules as a check: sources, links of the Markdown pages, blanking of comments and strings |
//! | `selection` | which cases of a table, and how they are shown |
//! | `install` | the command and its libraries into a prefix |
//! | `boundary` | what the C library costs against the Rust API |
//! | `ucx` | UCX over ferroce against UCX's own tcp |
//! | `fabric` | unmodified programs on the same-host fabric and the UDP link beside their peers |
//! | `sides`, `figure` | pairs of programs that measure, and how their figures are read |
//! | `interop` | the Linux kernel's Soft-RoCE as the peer, in a virtual machine |
//! | `bench` | every figure beside its peers: perf, the C boundary, the fabric, UCX |
#![forbid(unsafe_code)]

mod bench;
mod boundary;
mod cargo;
mod dialogue;
mod dsm;
mod fabric;
mod figure;
mod fuzz;
mod hugepages;
mod install;
mod instructions;
mod interop;
mod layers;
mod layout;
mod libtest;
mod links;
mod package;
mod process;
mod programs;
mod screen;
mod selection;
mod sides;
mod source;
mod step;
mod test;
mod tools;
mod ucx;
mod unprivileged;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Run foreign RDMA programs on ferroce: Debian's ibverbs-utils and perftest, and rdma-core's conformance suite.
    Programs(programs::Args),
    /// The side of `programs` inside a network namespace.
    #[command(hide = true)]
    ProgramsWorker(programs::worker::Args),
    /// Run the shared-memory programs of programs/jia, with 1 to 8 processes on every transport.
    Dsm(selection::Selection),
    /// The side of `dsm` inside a network namespace.
    #[command(hide = true)]
    DsmWorker(dsm::worker::Args),
    /// The side of `bench` inside a network namespace.
    #[command(hide = true)]
    BoundaryWorker(boundary::Args),
    /// The side of `bench --ucx` inside a network namespace.
    #[command(hide = true)]
    UcxWorker(ucx::Args),
    /// The side of `bench --fabric` inside a network namespace.
    #[command(hide = true)]
    FabricWorker(fabric::run::Args),
    /// Install the command and its libraries: bin/ferroce, lib/ferroce/libibverbs.so.1.
    Install(install::Args),
    /// Count instructions per operation under valgrind, beside those of crates/bench/instructions.txt.
    Instructions(instructions::Args),
    /// Talk to the Linux kernel's Soft-RoCE in a virtual machine.
    Interop(interop::Args),
    /// Measure everything beside its peers (`ferroce perf`, the C boundary, the fabric, UCX) and print it as Markdown.
    Bench(bench::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Test(args) => test::run(&Context::new(args.verbose, args.tier()), &args),
        Command::Fuzz(args) => fuzz::run(&Context::new(true, Tier::Full), &args),
        Command::Programs(args) => programs::run(&Context::new(false, Tier::Full), &args),
        Command::ProgramsWorker(args) => programs::worker::run(&args),
        Command::Dsm(args) => dsm::run(&Context::new(false, Tier::Full), &args),
        Command::DsmWorker(args) => dsm::worker::run(&args),
        Command::Install(args) => install::run(&Context::new(false, Tier::Full), &args),
        Command::Instructions(args) => instructions::run(&Context::new(false, Tier::Full), &args),
        Command::BoundaryWorker(args) => boundary::run(&args),
        Command::UcxWorker(args) => ucx::run(&args),
        Command::FabricWorker(args) => fabric::run::run(&args),
        Command::Interop(args) => interop::run(&Context::new(args.shows_progress(), Tier::Full), &args),
        Command::Bench(args) => bench::run(&Context::new(args.shows_progress(), Tier::Full), &args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
