//! Shared-memory programs with 1 to 8 processes on every transport: C programs of programs/jia over libjia, and Rust programs of
//! crates/dsm.
//!
//! | file | contents |
//! |---|---|
//! | `programs` | the programs, how large they run in a test and in a benchmark, and how they are compiled |
//! | `worker` | the side inside a network namespace: one line in, one run, one line out |
//! | `second_host` | a network namespace as another host |
//! | `launchers` | mpirun, and srun with a private Slurm cluster |
//! | `matrix` | the runs: program, number of processes, transport; rows and tallies |
//! | `pieces` | single operations of it, bare operations and Open MPI, for the figures of crates/bench |

mod launchers;
mod matrix;
pub mod pieces;
pub mod programs;
mod second_host;
pub mod worker;

use std::process::ExitCode;

use crate::programs::verdict::Row;
use crate::selection::Selection;
use crate::step::{Context, Report};
pub use matrix::TRANSPORTS;

/// The command `cargo xtask dsm`.
pub(crate) fn run(ctx: &Context, args: &Selection) -> ExitCode {
    let runs = matrix::runs(&args.filter);
    if args.list {
        runs.iter().for_each(|run| println!("{}", run.name()));
        return ExitCode::SUCCESS;
    }
    if runs.is_empty() {
        eprintln!("nothing matches; `cargo xtask dsm --list` names the runs");
        return ExitCode::from(2);
    }
    let announce = |row: &Row| args.announce(row);
    let rows = programs::build(ctx).and_then(|built| matrix::run_all(runs, &built, announce));
    args.close(rows, matrix::to_json, matrix::to_text)
}

/// The step of `cargo xtask test`.
pub(crate) fn check(ctx: &Context) -> Report {
    let mut runs = matrix::runs(&[]);
    runs.retain(|run| ctx.is_full() || !run.is_variation());
    let tell = ctx.progress(runs.len());
    let rows = programs::build(ctx).and_then(|built| matrix::run_all(runs, &built, tell));
    rows.map_or_else(Report::fail, |rows| matrix::to_report(&rows))
}
