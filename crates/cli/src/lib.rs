//! The `ferroce` command: runs RDMA programs, inspects the software NIC, measures it, and records its packets.
//!
//! It is a library, so that the benchmarks of crates/bench describe machines and draw plots as `ferroce perf` does. No
//! other crate may depend on it.
//!
//! Exit status: 0 for success, 1 for a failure, 2 for a wrong command line. One sentence explains a failure. `run`,
//! `capture`, `dsm run` and `fabric live` return the status of the program.

mod buckets;
mod capture;
mod capture_file;
mod child;
mod counters;
mod devices;
mod doctor;
mod dsm;
mod export;
mod fabric;
mod failure;
mod faults;
mod gids;
mod http;
mod learn;
#[doc(hidden)]
pub mod machine;
mod page;
mod perf;
mod program;
mod report;
mod run;
mod signals;
#[doc(hidden)]
pub mod sizes;
mod sockopt;
mod suggestion;
#[doc(hidden)]
pub mod svg;
mod table;
mod timeline;
mod top;
mod view;
mod wire;

use clap::{CommandFactory, Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

/// RDMA on any machine: a RoCEv2 NIC in software, without hardware, kernel module or root.
#[derive(Parser)]
#[command(name = "ferroce", version, after_help = EXAMPLES)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
}

/// What the command prints without arguments.
const WELCOME: &str = "\
ferroce runs RDMA programs on any machine: a RoCEv2 NIC in software, without hardware, kernel module or root.

Start here:
  ferroce doctor                     what works on this machine
  ferroce run -- ibv_rc_pingpong     run an RDMA program, unmodified; `ferroce run --explain` explains failures
  ferroce perf --quick               measure RDMA against TCP and UDP, in ten seconds
  ferroce top                        watch all ferroce processes
  ferroce learn                      learn RDMA by running it

`ferroce --help` lists all commands, and `ferroce COMMAND --help` has examples of each.";

const EXAMPLES: &str = "\
Examples:
  ferroce run -- ib_write_bw              run an RDMA program on this machine, unmodified
  ferroce perf                            compare RDMA with TCP and UDP on this machine
  ferroce perf write-bw                   wait for a client of one test, here …
  ferroce perf write-bw 192.0.2.7 -a      … and on a second machine, start it, for all sizes
  ferroce top                             watch all ferroce processes
  ferroce view                            the same in the browser, with plots over time
  ferroce gids                            which addresses RDMA programs can use
  ferroce capture -o x.pcapng -- ./prog   run a program and record its RoCEv2 packets
  ferroce timeline x.pcapng               write x.html: what each queue pair sent, and what went wrong
  ferroce dsm run -n 4 ./prog             run a shared-memory program as four processes
  ferroce fabric sim scenarios/incast.toml   simulate a fabric and draw its queues, rates and completion times
  ferroce learn                           learn RDMA: chapters with programs that run here";

const DSM_EXAMPLES: &str = "\
Examples:
  ferroce dsm cc -O2 mm.c -o mm             compile a program against jia.h
  ferroce dsm run -n 4 ./mm                 run it as four processes";

const FABRIC_EXAMPLES: &str = "\
Examples:
  ferroce fabric sim scenarios/incast.toml  simulate it and draw its queues
  ferroce fabric controls                   list the congestion controls";

#[derive(Subcommand)]
enum Command {
    /// List the RDMA devices and what they can do.
    Devices(devices::Args),
    /// List the GIDs: the addresses that queue pairs send from.
    Gids(gids::Args),
    /// Show the counters of the devices: packets, drops and their reasons.
    Counters(counters::Args),
    /// Watch all ferroce processes in the terminal: queue pairs, rates, retries, drops, queues, memory.
    Top(top::Args),
    /// Show all ferroce processes in the browser: what `top` shows, with plots over time, the topology and the packet timeline.
    View(view::Args),
    /// Serve the counters of all ferroce processes to Prometheus.
    Export(export::Args),
    /// Measure latency, bandwidth and message rate.
    ///
    /// Without a test, both sides run on this machine: every operation over all sizes, compared with TCP and UDP
    /// sockets measured in the same run. It prints a table and writes a report with plots. With a test, it runs
    /// between two machines: first the server, without HOST, then the client with the server's name.
    Perf(Box<perf::Args>),
    /// Run an RDMA program with a ferroce device.
    Run(Box<run::Args>),
    /// Run programs that share memory over several processes and hosts.
    #[command(subcommand, after_help = DSM_EXAMPLES)]
    Dsm(dsm::Command),
    /// Simulate fabrics of RDMA hosts and switches, or run programs in live ones: congestion control, PFC, ECN, load balancing.
    #[command(subcommand, after_help = FABRIC_EXAMPLES)]
    Fabric(fabric::Command),
    /// Check what works on this machine, what does not, why, and what to do; or whether a command would use ferroce.
    Doctor(doctor::Args),
    /// Run a program and record its packets to a file for Wireshark.
    Capture(capture::Args),
    /// List the chapters of the book about RDMA, or start one: its text and programs in a new folder.
    Learn(learn::Args),
    /// Show what happened in a capture: messages, acknowledgements, retransmissions and latencies, as a page or as JSON.
    Timeline(timeline::Args),
}

/// Parses the arguments of the process and runs the command.
pub fn main() -> ExitCode {
    let done = |()| ExitCode::SUCCESS;
    // An internal command. It is no clap subcommand, since clap would suggest it for a mistyped one.
    let outcome = if std::env::args_os().nth(1).is_some_and(|word| word == perf::PEER_COMMAND) {
        perf::run_peer().map(done)
    } else {
        let line = CommandLine::try_parse().unwrap_or_else(|error| {
            suggestion::add(error, &CommandLine::command(), std::env::args_os()).exit()
        });
        let Some(command) = line.command else {
            return print_text(WELCOME).map_or_else(|failure| failure.report(), done);
        };
        match command {
            Command::Devices(args) => devices::run(&args).map(done),
            Command::Gids(args) => gids::run(&args).map(done),
            Command::Counters(args) => counters::run(&args).map(done),
            Command::Top(args) => top::run(&args).map(done),
            Command::View(args) => view::run(&args).map(done),
            Command::Export(args) => export::run(&args).map(done),
            Command::Perf(args) => perf::run(*args).map(done),
            Command::Run(args) => run::run(&args),
            Command::Dsm(command) => dsm::run(command),
            Command::Fabric(command) => fabric::run(command),
            Command::Doctor(args) => doctor::run(&args),
            Command::Capture(args) => capture::run(&args),
            Command::Learn(args) => learn::run(&args).map(done),
            Command::Timeline(args) => timeline::run(&args).map(done),
        }
    };
    outcome.unwrap_or_else(|failure| failure.report())
}

/// The spelling of a value on the command line: `SendLat` is `send-lat`.
fn name_of(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Prints a value as JSON, the form that programs read.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(format!("the result cannot be written as JSON: {error}")))?;
    print_text(&text)
}

/// Prints to standard output. A reader that closes the pipe early (`| head`) is not a failure.
fn print_text(text: &str) -> Result<(), Failure> {
    use std::io::{ErrorKind, Write};
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that print no table: their output has a form of its own, or is the program's.
    const NO_TABLE: [(&str, &str); 5] = [
        ("ferroce export", "the text format of Prometheus"),
        ("ferroce run", "the program's output; `--explain=json`"),
        ("ferroce dsm cc", "the compiler's output"),
        ("ferroce fabric exec", "the command's output"),
        ("ferroce fabric ssh", "the command's output"),
    ];

    /// Collects the commands without subcommands below this one, each with its full name.
    fn leaves(command: &clap::Command, name: &str, found: &mut Vec<(String, clap::Command)>) {
        let below: Vec<_> = command.get_subcommands().filter(|below| !below.is_hide_set()).collect();
        // `ferroce perf` also runs without a subcommand.
        if below.is_empty() || !command.is_subcommand_required_set() && name != "ferroce" {
            found.push((name.to_owned(), command.clone()));
        }
        below.iter().for_each(|below| leaves(below, &format!("{name} {}", below.get_name()), found));
    }

    #[test]
    fn every_command_has_examples_and_every_table_json() {
        let root = CommandLine::command();
        let mut found = Vec::new();
        leaves(&root, "ferroce", &mut found);
        assert!(found.len() > 20, "{}", found.len());
        let groups = root.get_subcommands().filter(|below| below.has_subcommands());
        let all = found.iter().map(|(name, command)| (name.clone(), command.clone()));
        for (name, mut command) in
            all.chain(groups.map(|group| (format!("ferroce {}", group.get_name()), group.clone())))
        {
            let help = command.render_long_help().to_string();
            let (_, examples) =
                help.split_once("Examples").unwrap_or_else(|| panic!("{name} --help has no examples"));
            let own = format!("  {}", name.split(' ').take(2).collect::<Vec<_>>().join(" "));
            assert!(examples.contains(&own), "the examples of {name} do not begin with it:\n{examples}");
        }
        for (name, command) in &found {
            let has_json = command.get_arguments().any(|argument| argument.get_long() == Some("json"));
            let is_excepted = NO_TABLE.iter().any(|(excepted, _)| excepted == name);
            assert!(has_json != is_excepted, "{name}: --json {has_json}");
        }
    }

    #[test]
    fn the_welcome_names_commands_that_exist() {
        for line in WELCOME.lines().filter_map(|line| line.strip_prefix("  ferroce ")) {
            let name = line.split(' ').next().expect("a word");
            assert!(CommandLine::command().find_subcommand(name).is_some(), "{name}");
        }
    }

    #[test]
    fn command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }
}
