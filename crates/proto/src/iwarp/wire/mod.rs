//! The bytes of an iWARP stream: one file per header, each with a parser that cannot panic and a writer that mirrors it.
//!
//! ```text
//! MPA request ->   <- MPA reply                       mpa
//! FPDU: ULPDU length | ULPDU | pad 0..3 | CRC         fpdu
//! ULPDU: DDP control | RDMAP control | buffer         ddp, opcode
//!        body: READ request, atomics, immediate data, Terminate, or payload
//! ```
//!
//! All numbers are big-endian, except for the CRC. Reserved bits are written as zero and ignored when read.

mod atomic;
mod ddp;
mod error;
mod fpdu;
mod immediate;
mod mpa;
mod opcode;
mod read_request;
mod terminate;

pub use atomic::{AtomicRequest, AtomicResponse};
pub use ddp::{DdpBuffer, DdpHeader};
pub use error::StreamError;
pub use ferroce_crc::Crc32c;
pub use fpdu::{CRC_LEN, Fpdu, LENGTH_LEN, MAX_HEAD, MAX_TRAILER, frame_len, largest_ulpdu, pad_len};
pub use immediate::ImmediateData;
pub use mpa::{BadFrame, Enhanced, FrameKind, MAX_PRIVATE_DATA, MpaFrame, RtrKinds};
pub use opcode::RdmapOpcode;
pub use read_request::ReadRequest;
pub use terminate::{Quoted, Terminate, TerminateCode};

/// Longest body of a message without payload: an atomic request, or a Terminate with everything that it can quote.
pub const MAX_BODY: usize = 52;

/// A `u32` at `at`; the caller has checked the length.
fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    bytes[at..].first_chunk().copied().map_or(0, u32::from_be_bytes)
}

/// A `u64` at `at`; the caller has checked the length.
fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    bytes[at..].first_chunk().copied().map_or(0, u64::from_be_bytes)
}
