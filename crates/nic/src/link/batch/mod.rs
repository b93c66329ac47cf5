//! Packets in bulk: what a link sends and receives in one call.
//!
//! Both batches own their memory and are reused, so no memory is allocated per packet.

mod gso_run;
mod icrc;
mod rx;
mod tx;

pub(crate) use icrc::{SocketChoice, SocketChooser};
pub(crate) use rx::{RX_BUFFER_LEN, RX_BUFFERS, RxMeta};
pub use rx::{RxBatch, RxPacket};
pub(crate) use tx::TxPiece;
pub use tx::{TxBatch, TxView};
