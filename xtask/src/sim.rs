//! The simulation over many seeds. The step `test` runs a few of them.

use std::process::ExitCode;

use crate::process::Job;
use crate::step::{Context, fail};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many seeds; 4000 of them take about a second.
    #[arg(long, default_value_t = 1_000_000)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    first: u64,
}

/// The command.
pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    let range = format!("{}..{}", args.first, args.first + args.seeds);
    let words = "test --release -p ferroce-sim --test seeds -- --nocapture";
    // Usual runs take a hundredth of this.
    let limit_s = 600 + args.seeds / 40;
    let ran = Job::cargo(words.split(' ')).env("FERROCE_SIM_SEEDS", &range).limit_s(limit_s).run(ctx);
    ran.failure().map_or(ExitCode::SUCCESS, |failure| fail(&failure))
}
