//! `ferroce counters`.

use crate::failure::Failure;

/// Options of `ferroce counters`.
#[derive(clap::Parser)]
pub(crate) struct Args {
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Shows the counters.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    Err(Failure::new(format!("this build has no counters yet (json: {})", args.json)))
}
