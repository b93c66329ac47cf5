//! Where the processes of a job meet: a TCP connection from each to the launcher, open for the whole job.
//!
//! Lines of text. A process says `ferroce-dsm 1 KEY RANK`, then `gather TEXT` as often as all processes do, and at the
//! end `bye`. The rendezvous answers each round, once everybody's text is there, with a line `from RANK TEXT` per
//! process, in order. Both sides say `alive` every second: a cable that was cut closes no connection. When a process is lost it tells all others `down RANK why`, and they stop: a connection that
//! closes without `bye` is a lost process, and for a process a lost launcher.

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

/// How often each side says that it is alive.
const BEAT: std::time::Duration = std::time::Duration::from_secs(1);
/// Beats that may be missed before the other side is lost. They are counted, not timed: a job that was stopped as a whole, and
/// goes on as a whole, has missed one.
const MISSED: u32 = 5;

/// Name and version of the protocol, first on each connection.
const GREETING: &str = "ferroce-dsm 1";
