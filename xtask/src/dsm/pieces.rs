//! The cost of shared memory primitives, compared with bare operations on the same link and with Open MPI.
//!
//! The example `figures` of crates/dsm measures the primitives and the bare operations in one run, alternating; `programs/mpi/barrier.c`
//! is the peer of the barrier. Whole runs alternate as well, and medians of their medians are compared.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::launchers;
use super::second_host::SecondHost;
use crate::process::Job;
use crate::selection::name_of;
use crate::step::Context;
use crate::tools::which;
use crate::unprivileged::target_dir;

/// What can be run; each kind prints lines that end with a number and `us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Piece {
    /// The example over the UDP link between two namespaces.
    TwoHosts,
    /// The same by messages over UDP.
    TwoHostsMessages,
    /// The example over the UDP link, with page faults by SIGSEGV.
    TwoHostsSignal,
    /// The example on one host, in one memory.
    Local,
    /// Three processes, two of which share a host and its pages.
    LocalPeers,
    /// Barriers of eight processes over UDP on one host.
    Eight,
    /// Open MPI in shared memory.
    MpiShared,
    /// Open MPI over TCP between the same two namespaces.
    MpiTcp,
    /// The example over a cable of a gigabit per second.
    TwoHostsNarrow,
}

impl Piece {
    /// All of them, in the order of a round.
    pub fn all() -> impl Iterator<Item = Piece> {
        Piece::value_variants().iter().copied()
    }

    /// Whether it needs Open MPI.
    pub fn is_mpi(self) -> bool {
        matches!(self, Piece::MpiShared | Piece::MpiTcp)
    }

    /// Whether it may fail for lack of a kernel feature: not every kernel has the queueing discipline `tbf`.
    pub fn may_fail(self) -> bool {
        self == Piece::TwoHostsNarrow
    }

    /// A line for the worker.
    pub(crate) fn to_line(self) -> String {
        format!("piece {}", name_of(self))
    }

    /// The piece that such a line names.
    pub(crate) fn of_line(line: &str) -> Option<Piece> {
        Piece::from_str(line.strip_prefix("piece ")?, false).ok()
    }

    /// How it is started, in the worker's namespace.
    pub(super) fn command(self, folder: &Path, second: &mut Option<SecondHost>) -> Result<Command, String> {
        let mut example = Command::new(folder.join("figures"));
        match self {
            Piece::Local => example.arg("local"),
            Piece::Eight => example.args(["rdma", "8"]).env("FERROCE_LINK", "udp"),
            Piece::MpiShared => return Ok(mpirun(folder, ["--mca", "btl", "self,vader"])),
            Piece::MpiTcp => {
                return Ok(mpirun(folder, SecondHost::in_slot(second, folder)?.options_of_mpirun()?));
            }
            Piece::TwoHosts
            | Piece::TwoHostsMessages
            | Piece::TwoHostsSignal
            | Piece::TwoHostsNarrow
            | Piece::LocalPeers => {
                let host = SecondHost::in_slot(second, folder)?;
                if self == Piece::TwoHostsNarrow {
                    example = host.narrowed(&folder.join("figures"));
                }
                if self == Piece::TwoHostsSignal {
                    example.env("FERROCE_DSM_FAULTS", "signal");
                }
                let what: &[&str] = match self {
                    Piece::LocalPeers => &["auto", "3"],
                    Piece::TwoHostsMessages => &["udp"],
                    _ => &["rdma"],
                };
                example.args(what).args(host.options_of_figures())
            }
        };
        Ok(example)
    }
}

fn mpirun(folder: &Path, options: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = launchers::mpirun_as_root();
    command.args(["-n", "2", "--bind-to", "none", "--mca", "pml", "ob1"]).args(options);
    command.arg(folder.join("mpi-barrier"));
    command
}

/// Builds both programs into `folder`. Returns whether Open MPI is installed.
pub fn build(ctx: &Context, folder: &Path) -> Result<bool, String> {
    let example = ["build", "--release", "-p", "ferroce-dsm", "--example", "figures"];
    Job::cargo(example).run(ctx).checked()?;
    let built: PathBuf = target_dir(ctx).join("release/examples/figures");
    std::fs::copy(&built, folder.join("figures")).map_err(|error| format!("{}: {error}", built.display()))?;
    if which("mpicc").is_none() || which("mpirun").is_none() {
        eprintln!("no mpicc or mpirun: the barrier has no peer (apt-get install openmpi-bin libopenmpi-dev)");
        return Ok(false);
    }
    let source = ctx.root.join("programs/mpi/barrier.c");
    let options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"];
    let ran = Job::new("mpicc").args(options).arg(source).arg("-o").arg(folder.join("mpi-barrier")).run(ctx);
    ran.checked().map(|_| true)
}

/// The figures in the output of a piece: `rdma  empty barrier  4.30 us`. The first word of ours is the transport.
pub(crate) fn figures(output: &str) -> Value {
    let mut all = json!({});
    for line in output.lines().filter_map(|line| line.strip_suffix(" us")) {
        let Some((name, number)) = line.trim_end().rsplit_once(' ') else { continue };
        let name =
            ["local ", "rdma ", "udp "].into_iter().find_map(|kind| name.strip_prefix(kind)).unwrap_or(name);
        if let Ok(us) = number.parse::<f64>() {
            all[name.trim()] = us.into();
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_name() {
        let output =
            "rdma      bare FETCH_ADD            7.269 us\nnoise\nudp  empty barrier 0.427 us\nrdma x y us\n";
        assert_eq!(figures(output), json!({"bare FETCH_ADD": 7.269, "empty barrier": 0.427}));
    }

    #[test]
    fn a_piece_survives_its_line() {
        for piece in Piece::all() {
            assert_eq!(Piece::of_line(&piece.to_line()), Some(piece));
        }
        assert_eq!(Piece::of_line("sor 2 rdma plain 30 -n 1"), None);
    }
}
