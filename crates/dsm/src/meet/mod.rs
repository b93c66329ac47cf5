//! The rendezvous of a job: a TCP connection from each process to the launcher, open for the whole job.
//!
//! The protocol is lines of text. A process sends `ferroce-dsm 1 KEY RANK`, then `gather TEXT` as often as all
//! processes do, and at the end `bye`. Once the texts of all processes have arrived, the rendezvous sends a line
//! `from RANK TEXT` per process, in order. Both sides send `alive` every second, because a broken network closes no
//! connection. When a process is lost, the rendezvous sends `down RANK why` to all others, and they stop. A
//! connection that closes without `bye` means that the process is lost, or, on the side of a process, the launcher.

mod client;
mod foreign;
mod host;
mod lines;
mod server;

pub(crate) use client::{Keeper, Meeting, stop};
pub use foreign::ForeignJob;
pub(crate) use foreign::{Kept, arrange};
pub(crate) use host::{Hosts, host_id};
pub use server::{Departure, Rendezvous, Reporter};

/// Interval of the heartbeats of each side.
const BEAT: std::time::Duration = std::time::Duration::from_secs(1);
/// Heartbeats that may be missed before the other side is lost. They are counted, not timed: a job that was stopped
/// and continued as a whole has missed one.
const MISSED: u32 = 5;

/// Name and version of the protocol, first on each connection.
const GREETING: &str = "ferroce-dsm 1";
