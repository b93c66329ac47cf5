//! The queue pair.

mod host;
pub mod state;

pub use host::{DropReason, Host, Side, TxError, TxPayload};
