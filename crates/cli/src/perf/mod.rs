//! `ferroce perf`: latency, bandwidth and message rate of RDMA and of sockets.
//!
//! - [`suite`]: everything on this machine, as a table and a report; and what needs two processes of this machine.
//! - [`single`]: one test between two machines.
//! - [`client`] and [`server`]: the two sides, which both of the above use.
//! - [`baseline`] and [`rdma`]: the tests themselves.

mod affinity;
mod baseline;
mod client;
mod control;
mod gpu;
mod handshake;
mod measure;
mod options;
mod params;
mod progress;
mod rdma;
mod server;
mod single;
mod stats;
pub(crate) mod suite;
mod test;

pub(crate) use options::Args;
pub(crate) use stats::Bandwidth;
pub(crate) use suite::run_peer;
pub(crate) use test::Test;

use crate::failure::Failure;
use options::Command;

/// Argument that starts the second process of the suite.
pub(crate) const PEER_COMMAND: &str = "perf-peer";

/// Runs `ferroce perf`.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        None => suite::run(&args.suite),
        Some(Command::Qps(args)) => suite::run_qps(&args),
        Some(Command::Loss(args)) => suite::run_loss(&args),
        Some(Command::Test(command)) => {
            let (test, args) = command.split();
            single::run(test, &args)
        }
    }
}
