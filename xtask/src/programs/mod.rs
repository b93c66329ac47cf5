//! Foreign programs on ferroce: unmodified packages of Debian and PyPI under `ferroce run`, in a private network.
//!
//! | file | contents |
//! |---|---|
//! | `applications` | iSER, DAPL, gloo, librpma, migration of a guest; `gloo.cc` and `rpma.c` are programs of two of them |
//! | `iwarp` | the programs that run over iWARP |
//! | `cases` | the table of verbs programs and the output of their success |
//! | `conversation` | runs a server and its clients |
//! | `explained` | functions that `applications`, `middleware` and `pypi` share |
//! | `middleware` | UCX, Open MPI, MPICH, libfabric, qperf, fio; both MPIs run `mpi.c` |
//! | `pypi` | Mooncake, Open MPI, MPICH, InfiniStore, NIXL, from PyPI; their scripts are in programs/pypi |
//! | `trials` | tests of `ferroce run` itself |
//! | `rdmacm` | programs that connect by librdmacm |
//! | `rsockets` | programs over rsockets, and over librspreload |
//! | `conformance` | rdma-core's own test suite |
//! | `skips` | its tests that may be skipped, with reasons; docs/reference/conformance.md is generated from it |
//! | `variations` | jobs that only vary others, and a short list |
//! | `network` | the namespace |
//! | `pool`, `worker`, `session` | the queue of jobs, the worker processes, one running case |
//! | `verdict` | rows, tables and tallies |

mod applications;
mod cases;
mod conformance;
mod conversation;
mod explained;
mod iwarp;
mod middleware;
pub mod network;
mod pool;
mod pypi;
pub(crate) mod rdmacm;
mod rsockets;
pub mod session;
mod skips;
mod trials;
mod variations;
pub(crate) mod verdict;
pub(crate) mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;

use serde_json::Value;

use crate::hugepages::HugePages;
use crate::process::Job as Process;
use crate::selection::Selection;
use crate::step::{Context, OFFLINE, Report};
use crate::tools::{apt_install, not_installed, which};
use crate::unprivileged::target_dir;
use iwarp::Wire;
use pool::Job;
use verdict::Row;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Run a short list: one program of each kind.
    #[arg(long)]
    short: bool,
    /// Run them over this wire.
    #[arg(long, value_name = "WIRE", default_value = "roce")]
    wire: Wire,
    /// Take this command instead of building one; its library lies next to it, or at FERROCE_LIB.
    #[arg(long, value_name = "FILE")]
    ferroce: Option<PathBuf>,
}

/// What programs are started with.
#[derive(clap::Args)]
pub struct Setup {
    /// The command under test.
    #[arg(long)]
    pub ferroce: PathBuf,
    /// Where the output of programs goes.
    #[arg(long)]
    pub logs: PathBuf,
}

/// Debian packages of the step `test`, and a file of each that shows whether it is installed.
const TEST_PACKAGES: [(&str, &str); 4] = [
    ("libibverbs-dev", "/usr/include/infiniband/verbs.h"),
    ("librdmacm-dev", "/usr/include/rdma/rdma_cma.h"),
    ("perftest", "/usr/bin/ib_write_bw"),
    ("iproute2", "/usr/share/doc/iproute2"),
];
/// The packages that only the foreign programs need.
const PACKAGES: [(&str, &str); 13] = [
    ("ibverbs-utils", "/usr/bin/ibv_devinfo"),
    ("rdma-core", "/usr/share/doc/rdma-core/tests"),
    ("python3-pyverbs", "/usr/lib/python3/dist-packages/pyverbs"),
    ("rdmacm-utils", "/usr/bin/rping"),
    ("iperf3", "/usr/bin/iperf3"),
    ("ucx-utils", "/usr/bin/ucx_perftest"),
    ("openmpi-bin", "/usr/bin/mpirun.openmpi"),
    ("libopenmpi-dev", "/usr/bin/mpicc.openmpi"),
    ("qperf", "/usr/bin/qperf"),
    ("libfabric-bin", "/usr/bin/fi_pingpong"),
    ("fio", "/usr/bin/fio"),
    // Mooncake needs these two.
    ("libcurl4", "/usr/share/doc/libcurl4"),
    ("libnuma1", "/usr/share/doc/libnuma1"),
];

/// The command `cargo xtask programs`.
pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    let mut jobs = jobs(&args.selection.filter);
    let is_short = if args.wire == Wire::Iwarp { iwarp::is_short } else { variations::is_short };
    jobs.retain(|job| !args.short || is_short(job));
    if args.selection.list {
        jobs.iter().for_each(|job| println!("{:6} {}", job.kind, job.name));
        return ExitCode::SUCCESS;
    }
    if jobs.is_empty() {
        eprintln!("no case matches; `cargo xtask programs --list` names them");
        return ExitCode::from(2);
    }
    let mut installed = Report::default();
    provide(ctx, &mut installed);
    let ferroce = args.ferroce.clone().map_or_else(|| build(ctx), Ok);
    let announce = |row: &Row| args.selection.announce(row);
    let rows = ferroce.and_then(|ferroce| run_all(ctx, args.wire, jobs, &ferroce, &mut installed, announce));
    args.selection.close(rows, verdict::to_json, verdict::to_text)
}

/// The step of `cargo xtask test`.
pub(crate) fn check(ctx: &Context) -> Report {
    let mut report = Report::default();
    provide(ctx, &mut report);
    let mut jobs = jobs(&[]);
    jobs.retain(|job| ctx.is_full() || !variations::is_variation(job));
    let mut over_iwarp = self::jobs(&[]);
    over_iwarp.retain(iwarp::is_short);
    let mut tell = ctx.progress(jobs.len() + over_iwarp.len());
    let rows = build(ctx).and_then(|ferroce| {
        let mut rows = run_all(ctx, Wire::Roce, jobs, &ferroce, &mut report, &mut tell)?;
        rows.extend(run_all(ctx, Wire::Iwarp, over_iwarp, &ferroce, &mut report, &mut tell)?);
        Ok(rows)
    });
    match rows {
        Err(reason) => report.failures.push(reason),
        Ok(rows) => verdict::into_report(&rows, &mut report),
    }
    report
}

/// The step that repeats them without the same-host fabric, in a separate process with its own environment.
pub(crate) fn check_over_udp(ctx: &Context) -> Report {
    let ran = match std::env::current_exe() {
        Ok(this) => {
            let short = (!ctx.is_full()).then_some("--short");
            let mut job = Process::new(this).arg("programs").args(short).env("FERROCE_LINK", "udp");
            if ctx.is_offline() {
                job = job.env(OFFLINE, "1");
            }
            job.limit_s(25 * 60).run(ctx)
        }
        Err(error) => return Report::fail(format!("cannot find xtask itself: {error}")),
    };
    let mut report = Report::default();
    verdict::from_lines(&ran.lines, &mut report);
    if report.passed == 0 || (!ran.success() && report.failures.is_empty()) {
        report.failures.push(ran.failure().unwrap_or_else(|| "no case ran".to_owned()));
    }
    report.output = ran.lines;
    report
}

/// All jobs that match the filter.
fn jobs(filter: &[String]) -> Vec<Job> {
    let of = |kind: &'static str| move |name: &'static str| Job { kind, name: name.to_owned() };
    let modules = conformance::MODULES.iter().map(|(name, _)| *name).map(of("pyverbs"));
    let cases = cases::CASES.iter().map(|case| case.line).map(of("case"));
    let trials = trials::names().into_iter().map(of("trial"));
    let rdmacm = rdmacm::CASES.iter().map(|case| case.name).map(of("rdmacm"));
    let rsockets = rsockets::CASES.iter().map(|case| case.name).map(of("rsockets"));
    let middleware = middleware::CASES.iter().map(|case| case.name).map(of("middleware"));
    let applications = applications::CASES.iter().map(|case| case.name).map(of("application"));
    let pypi = pypi::CASES.iter().map(|case| case.name).map(of("pypi"));
    let all = modules
        .chain(trials)
        .chain(applications)
        .chain(middleware)
        .chain(pypi)
        .chain(rdmacm)
        .chain(rsockets)
        .chain(cases);
    all.filter(|job| {
        filter.is_empty() || filter.iter().any(|part| job.name.contains(part.as_str()) || job.kind == part)
    })
    .collect()
}

/// Installs missing packages, if that is allowed. Returns those that are still missing. In batches, because one unavailable package fails
/// a whole batch.
pub fn provide(ctx: &Context, report: &mut Report) -> Vec<&'static str> {
    let missing = |packages: &[(&'static str, &str)]| -> Vec<&'static str> {
        packages.iter().filter(|(_, file)| !Path::new(file).exists()).map(|(name, _)| *name).collect()
    };
    let batches = [&TEST_PACKAGES[..], &PACKAGES, &applications::PACKAGES];
    for packages in batches {
        let wanted = missing(packages);
        if !wanted.is_empty() && !apt_install(ctx, &wanted, report) {
            report.output.push(format!("could not install {}", wanted.join(" ")));
        }
    }
    batches.into_iter().flat_map(missing).collect()
}

/// Builds the command and its libraries as users do.
pub fn build(ctx: &Context) -> Result<PathBuf, String> {
    let packages = ["ferroce-cli", "ferroce-ibverbs", "ferroce-rdmacm", "ferroce-shim"];
    let build = Process::cargo(["build", "--release"]).args(packages.iter().flat_map(|name| ["-p", name]));
    build.run(ctx).checked()?;
    Ok(target_dir(ctx).join("release/ferroce"))
}

fn run_all(
    ctx: &Context,
    wire: Wire,
    jobs: Vec<Job>,
    ferroce: &Path,
    report: &mut Report,
    mut told: impl FnMut(&Row),
) -> Result<Vec<Row>, String> {
    let logs = ctx.scratch().join("programs");
    std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    if jobs.iter().any(|job| job.kind == "pyverbs") && Path::new(conformance::SOURCE).exists() {
        conformance::unpack(&conformance::folder(&logs))?;
    }
    let _pages = jobs.iter().any(|job| job.kind == "pyverbs").then(HugePages::borrow);
    if jobs.iter().any(|job| job.kind == "pypi") {
        pypi::provide(ctx, &logs, report)?;
    }
    let network = network::check();
    let named = |row: Row| match wire {
        Wire::Roce => row,
        Wire::Iwarp => iwarp::listed(Row { name: format!("{} over iWARP", row.name), ..row }),
    };
    let mut rows = Vec::new();
    let (possible, skipped): (Vec<Job>, Vec<Job>) =
        jobs.into_iter().partition(|job| obstacle(wire, job, ferroce, &logs, &network).is_none());
    for job in skipped {
        let why = obstacle(wire, &job, ferroce, &logs, &network).unwrap_or_default();
        rows.push(named(Row::skipped(job.title(), &why)));
        rows.iter().last().into_iter().for_each(&mut told);
    }
    let (send, receive) = mpsc::channel::<(Job, Value)>();
    std::thread::scope(|scope| {
        let logs = &logs;
        // The sender moves into the thread, so that the channel closes when the work is done.
        scope.spawn(move || pool::run(possible, wire, ferroce, logs, &send));
        for (job, answer) in receive {
            let fresh: Vec<Row> = verdict::rows_of(&job, &answer).into_iter().map(named).collect();
            fresh.iter().for_each(&mut told);
            rows.extend(fresh);
        }
    });
    Ok(rows)
}

/// Why a job cannot run on this machine.
fn obstacle(
    wire: Wire,
    job: &Job,
    ferroce: &Path,
    logs: &Path,
    network: &Result<(), String>,
) -> Option<String> {
    if let Err(reason) = network {
        return Some(reason.clone());
    }
    if let Some(why) = iwarp::obstacle(job).filter(|_| wire == Wire::Iwarp) {
        return Some(format!("over iWARP: {why}"));
    }
    match job.kind {
        "pyverbs" if !Path::new(conformance::SOURCE).exists() => {
            Some(not_installed("rdma-core", "rdma-core python3-pyverbs"))
        }
        "application" => applications::obstacle(&job.name),
        "middleware" => middleware::obstacle(&job.name),
        "pypi" => pypi::obstacle(&job.name, logs),
        "case" | "trial" => {
            let program = if job.kind == "case" {
                job.name.split(' ').next().unwrap_or_default()
            } else {
                "ibv_rc_pingpong"
            };
            let package = if program.starts_with("ib_") { "perftest" } else { "ibverbs-utils" };
            if which(program).is_none() {
                return Some(not_installed(program, package));
            }
            (job.name.starts_with("as nobody") && !trials::reachable_by_nobody(ferroce)).then(|| {
                format!(
                    "user 65534 cannot reach {}; clone into a folder that others may enter",
                    ferroce.display()
                )
            })
        }
        "rdmacm" => rdmacm::obstacle(&job.name),
        "rsockets" => rsockets::obstacle(&job.name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_has_a_name_of_its_own() {
        let mut names: Vec<(&str, String)> = jobs(&[]).into_iter().map(|job| (job.kind, job.name)).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None);
    }
}
