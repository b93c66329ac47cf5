//! The benchmarks: every figure of the project, compared with its peers on the same machine.
//!
//! | module | benchmark |
//! |---|---|
//! | `perf` | `ferroce perf` as Markdown tables |
//! | `boundary` | the C library against the Rust API |
//! | `fabric` | unmodified programs on the same-host fabric and the UDP link against UCX, sockets and bare memory |
//! | `fabric_sim` | the simulator of fabrics: packet hops per second, the largest fabric, ns-3 with the same scenarios |
//! | `ucx` | UCX over ferroce against UCX over TCP |
//! | `dsm` | the shared memory: speed-ups, single operations, transports |
//! | `sides` | starts a server and its client, each on its own core |
//!
//! `bin/instructions.rs` is a program of its own: the workload whose instructions `cargo xtask instructions` counts.
#![forbid(unsafe_code)]

mod boundary;
mod dsm;
mod fabric;
mod fabric_sim;
mod perf;
mod sides;
mod ucx;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde_json::Value;
use xtask::programs::{self, Setup};
use xtask::step::{Context, Tier, fail};

/// Measure ferroce and its peers on this machine, and print the comparison as Markdown.
///
/// Without a subcommand: perf, boundary, fabric and ucx, one after the other. Run benchmarks on a quiet machine: only the
/// ratios of one run are comparable, and other work on the machine distorts them.
#[derive(Parser)]
#[command(name = "ferroce-bench", bin_name = "cargo xtask bench", max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench perf -- --quick       rough figures of `ferroce perf` as Markdown tables
  cargo xtask bench fabric --filter udp   only the rows with `udp` in a name
  cargo xtask bench fabric --write        renew docs/figures/fabric-figures.md
  cargo xtask bench dsm --pieces          single operations of the shared memory alone

Each subcommand may also be written as an option: `cargo xtask bench --fabric`.";

#[derive(Subcommand)]
enum Command {
    /// Run `ferroce perf` and print its figures as the tables of docs/figures/perf.md.
    Perf(perf::Args),
    /// Compare the C library with the Rust API: the same calls through each, and the time that a start takes.
    #[command(long_flag = "boundary")]
    Boundary,
    /// Compare unmodified perftest programs with UCX, sockets and bare memory; takes under four minutes.
    #[command(long_flag = "fabric")]
    Fabric(fabric::Options),
    /// Measure the simulator of fabrics on one core: packet hops per second, a fat tree of 4394 hosts, and ns-3 for comparison.
    #[command(long_flag = "fabric-sim")]
    FabricSim(fabric_sim::Options),
    /// Compare UCX over ferroce with UCX over TCP.
    #[command(long_flag = "ucx")]
    Ucx(Json),
    /// Compare two processes on shared memory with one, and its transports; writes docs/figures/dsm-figures.md.
    #[command(long_flag = "dsm")]
    Dsm(dsm::Options),
    /// The part of `boundary` inside a network namespace.
    #[command(hide = true)]
    BoundaryWorker(boundary::Args),
    /// The part of `fabric` inside a network namespace.
    #[command(hide = true)]
    FabricWorker(fabric::run::Args),
    /// The part of `ucx` inside a network namespace.
    #[command(hide = true)]
    UcxWorker(Setup),
    /// The part of `dsm` inside a network namespace.
    #[command(hide = true)]
    DsmWorker(xtask::dsm::worker::Args),
}

/// The output format.
#[derive(Args, Clone, Copy, Default)]
struct Json {
    /// Print JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

impl Json {
    /// A context whose builds and installations leave standard output to JSON.
    fn context(self) -> Context {
        Context::new(!self.json, Tier::Full)
    }
}

fn main() -> ExitCode {
    let print = |answer: Result<Value, String>| answer.map(|answer| println!("{answer}"));
    let outcome = match Cli::parse().command {
        None => everything(),
        Some(Command::Perf(args)) => perf::run(&args),
        Some(Command::Boundary) => boundary::bench(),
        Some(Command::Fabric(options)) => fabric::bench(&options),
        Some(Command::FabricSim(options)) => fabric_sim::run(&options),
        Some(Command::Ucx(json)) => ucx::bench(json),
        Some(Command::Dsm(options)) => dsm::bench(options),
        Some(Command::BoundaryWorker(args)) => print(boundary::run(&args)),
        Some(Command::FabricWorker(args)) => print(fabric::run::run(&args)),
        Some(Command::UcxWorker(args)) => print(ucx::run(&args)),
        Some(Command::DsmWorker(args)) => return xtask::dsm::worker::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => fail(&reason),
    }
}

/// All benchmarks that do not change the repository. If one fails, the others still run.
fn everything() -> Result<(), String> {
    let all =
        [perf::run(&perf::Args::default()), boundary::bench(), fabric::bench(&fabric::Options::default())];
    let failures: Vec<String> =
        all.into_iter().chain([ucx::bench(Json::default())]).filter_map(Result::err).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// The setup of most benchmarks: the command under test, which is built unless one is given, and a folder for the output of
/// programs.
fn prepare(ctx: &Context, given: Option<&Path>) -> Result<Setup, String> {
    let logs = ctx.scratch().join("programs");
    std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let ferroce = match given {
        Some(given) => given.canonicalize().map_err(|error| format!("{}: {error}", given.display()))?,
        None => programs::build(ctx)?,
    };
    Ok(Setup { ferroce, logs })
}

/// Runs the subcommand `worker` of this program in a network namespace. Returns the JSON that it prints.
fn measure_in_namespace(
    worker: &str,
    setup: Setup,
    add_arguments: impl FnOnce(&mut std::process::Command),
) -> Result<Value, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = programs::network::inside(&own);
    command.arg(worker).arg("--ferroce").arg(setup.ferroce).arg("--logs").arg(setup.logs);
    add_arguments(&mut command);
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|error| format!("unshare did not start: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|_| format!("{worker} gave no answer: {}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn the_root_of_the_repository_is_found() {
        assert!(Json::default().context().root.join("crates/bench/src/fabric/pingpong.c").is_file());
    }

    #[test]
    fn subcommands_may_be_written_as_options() {
        for line in [
            &["--fabric", "--rounds", "1"][..],
            &["--dsm", "--pieces", "--json"],
            &["--ucx", "--json"],
            &["--boundary"],
        ] {
            let words = ["cargo xtask bench"].iter().chain(line);
            assert!(Cli::try_parse_from(words).is_ok_and(|cli| cli.command.is_some()), "{line:?}");
        }
    }
}
