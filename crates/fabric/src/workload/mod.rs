//! Flows: sender, receiver, size and start time.

mod cdf;
mod patterns;
mod trace;

pub use cdf::{BadCdf, SizeCdf};
pub use patterns::{Collective, Incast, Poisson, all_to_all, incast, poisson, ring_all_reduce};
pub use trace::parse_flows;

/// One message from one host to another, over its own queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Time at which the sender posts it, in picoseconds; [`NEVER`] for a flow that follows another one.
    pub start_ps: u64,
    /// Its bytes, at least 1.
    pub bytes: u64,
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// The flow that starts once this one is received, or [`crate::packet::NONE`].
    pub then: u32,
    /// Traffic class, 1 to 7.
    pub priority: u8,
    /// The workload it belongs to.
    pub group: u8,
}

/// The start of a flow that waits for another one.
pub const NEVER: u64 = u64::MAX;

/// Most flows of a scenario: they need about 200 bytes each.
pub const MAX_FLOWS: usize = 5_000_000;
