//! `ferroce gids`.

use crate::failure::Failure;

/// Options of `ferroce gids`.
#[derive(clap::Parser)]
pub(crate) struct Args {
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Lists the GIDs.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    Err(Failure::new(format!("this build has no GID table yet (json: {})", args.json)))
}
