//! The queue pair.

mod host;

pub use host::{DropReason, Host, Side, TxError, TxPayload};
