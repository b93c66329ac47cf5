//! The options of `ferroce dsm run`.

use clap::{Parser, ValueEnum};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

/// Options of `ferroce dsm run`.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// Number of processes [default: the total of the hosts file, or 2].
    #[arg(short = 'n', long = "processes", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(ferroce_dsm::MAX_SIZE)))]
    pub(crate) processes: Option<u32>,
    /// How processes access each other's memory [default: local on one host, else rdma].
    #[arg(long, value_name = "TRANSPORT")]
    pub(crate) transport: Option<Transport>,
    /// File of hosts to start on, one per line: NAME[:PORT] [PROCESSES]. Processes are started with ssh, without
    /// passwords.
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: Option<PathBuf>,
    /// Address of this host that the other hosts reach, if it cannot be detected; with --hosts.
    #[arg(long, value_name = "ADDRESS", requires = "hosts")]
    pub(crate) meet: Option<IpAddr>,
    /// Command to use instead of ssh, with its options.
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "hosts")]
    pub(crate) ssh: String,
    /// Print the counters and waiting times of each process at the end; with =FILE, also write an HTML page with
    /// diagrams.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) stat: Option<Option<PathBuf>>,
    /// With --stat: print the counters as one line of JSON in place of the table.
    #[arg(long, requires = "stat")]
    pub(crate) json: bool,
    /// Print the output unchanged, without the rank in front of each line.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Program to run, with its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// How processes access each other's memory. The processes use the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// One host: all processes map the same memory.
    Local,
    /// One-sided RDMA: pages are read from their homes, changes are written back.
    Rdma,
    /// Two-sided RDMA: messages, answered by a thread at the home.
    RdmaMsg,
    /// The same messages over plain UDP sockets.
    Udp,
}

const EXAMPLES: &str = "\
Every process runs the same program with the same arguments, in this folder. Process 0 has your standard input. The exit
status is the worst one of all processes; when one dies, the others are ended.

Examples:
  ferroce dsm cc -O2 mm.c -o mm                       compile a program against jia.h
  ferroce dsm run -n 4 ./mm -n 1024                   run it as four processes on this machine
  ferroce dsm run -n 2 --transport udp ./mm           the same over plain UDP messages
  ferroce dsm run --hosts machines ./mm               on other machines, which have ./mm in the same folder
  ferroce dsm run -n 4 --stat=mm.html ./mm            and what was it busy with?

It also runs below mpirun and srun, without this command: mpirun -n 4 ./mm";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Run, String> {
        Run::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn the_programs_options_are_left_alone() {
        for line in ["run -n 4 --stat ./prog -n 7 --plain", "run -n 4 --stat -- ./prog -n 7 --plain"] {
            let args = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!((args.processes, args.plain, args.command.len()), (Some(4), false, 4), "{line}");
            assert_eq!(args.stat, Some(None), "{line}");
        }
        let args = parse("run --stat=x.html --transport rdma-msg ./prog").expect("a page");
        assert_eq!(args.stat, Some(Some("x.html".into())));
        assert_eq!(args.transport, Some(Transport::RdmaMsg));
    }

    #[test]
    fn invalid_options_are_refused() {
        for line in [
            "run",
            "run -n 0 ./prog",
            "run -n 2000 ./prog",
            "run --transport tcp ./prog",
            "run --ssh x ./prog",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
