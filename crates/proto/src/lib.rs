//! The RDMA transport of ferroce as pure protocol: bytes and state machines, no I/O.
//!
//! Nothing in this crate opens a socket, reads a clock, starts a thread or dereferences user memory. Time is an
//! argument ([`Time`]), memory and queues are accessed through a small trait ([`qp::Host`]), randomness is passed in.
//! So the same code runs under a real NIC (`ferroce-nic`), under virtual time (`ferroce-sim`) and under a fuzzer.
//!
//! | module | contents |
//! |---|---|
//! | [`ids`] | numbers that must not be confused: QPN, PSN, keys, GIDs |
//! | [`verbs`] | the verbs types: work requests, completions, attributes, events |
//! | [`wire`] | one file per header; parsers that cannot panic, writers that mirror them |
//! | [`qp`] | the queue pair: state table, RC, UC and UD machines |
//! | [`cc`] | congestion control behind one small trait |
//! | [`iwarp`] | the second wire: MPA, DDP and RDMAP over a byte stream |
//! | [`cm`] | the communication manager: connection setup and teardown |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod cc;
pub mod cm;
pub mod ids;
pub mod iwarp;
mod listed;
pub mod qp;
pub mod time;
pub mod verbs;
pub mod wire;

pub use ids::{Gid, LKey, PKey, PdId, Psn, Qkey, Qpn, RKey, Srqn};
pub use time::Time;
