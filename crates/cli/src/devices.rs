//! `ferroce devices`.

use crate::failure::Failure;

/// Options of `ferroce devices`.
#[derive(clap::Parser)]
pub(crate) struct Args {
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Lists the devices.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    Err(Failure::new(format!("this build has no device yet (json: {})", args.json)))
}
