//! iWARP: the verbs over a TCP stream (MPA, DDP and RDMAP: RFC 5044, 5041, 5040; also 6581 and 7306).
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | one file per header |
//! | [`reader`] | FPDUs out of a stream that arrives in any pieces |
//! | [`negotiation`] | the MPA request and reply |
//! | [`StreamQp`] | the queue pair: the same work requests, completions and memory as [`crate::qp::Qp`], over a stream |
//!
//! TCP retransmits, orders and paces, so there are no PSNs, ACKs or timers here. docs/internals/iwarp.md names the decisions and
//! where the kernel's SoftiWARP deviates.

pub mod negotiation;
mod qp;
pub mod reader;
pub mod wire;

pub use qp::{Close, InPlace, Lost, StreamEgress, StreamHost, StreamQp, StreamWaiting};
