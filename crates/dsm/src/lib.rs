//! Distributed shared memory: several processes, on one machine or many, with one heap.
//!
//! ```
//! use ferroce_dsm::{Job, Placement, Settings};
//!
//! # fn main() -> Result<(), ferroce_dsm::Error> {
//! let job = Job::join(Settings::from_env()?)?;
//! let counter = job.shared::<u64>(1, &Placement::Rotating)?;
//! {
//!     let _guard = job.guard(0)?;
//!     counter.update(0, |count| count + 1);
//! }
//! job.barrier()?;
//! assert_eq!(counter.get(0), u64::from(job.size()));
//! job.leave()
//! # }
//! ```
//!
//! | what | where |
//! |---|---|
//! | a process of a job | [`Job`], [`Settings`], [`Error`] |
//! | arrays and locks for Rust programs | [`Shared`], [`Plain`], [`LockGuard`] |
//! | the homes of shared memory | [`Placement`], and `heap/` |
//! | how the processes find each other, and detect a death | [`Rendezvous`], and `meet/` |
//! | all processes on one host share memory | `local/` |
//! | several hosts: pages that fault, are fetched and sent home | `paged/`, its protocol `coherence/`, its signals `faults/` |
//! | how pages are transferred | `transport/` |
//! | counters | [`Statistics`] |
#![deny(unsafe_code)]

mod backend;
mod coherence;
mod error;
mod faults;
mod futex;
mod heap;
mod heat;
mod job;
mod local;
mod mailbox;
mod map;
mod meet;
mod paged;
mod record;
mod settings;
mod statistics;
mod transport;
mod typed;

pub use error::Error;
pub use heap::Placement;
pub use heat::PageTraffic;
pub use job::{FLAGS, Job, LOCKS, Tuning};
pub use meet::{Departure, ForeignJob, Rendezvous, Reporter};
pub use settings::{FaultKind, MAX_SIZE, Settings, TransportKind};
pub use statistics::Statistics;
pub use typed::{LockGuard, Plain, Shared};

/// Bytes of a page: the unit of coherence and of allocations.
pub const PAGE: usize = 4096;
