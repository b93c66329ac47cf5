//! Packets in bulk: what a link sends and receives in one call.
//!
//! Both batches own their memory and are used again and again, so that nothing is allocated per packet.

mod rx;
mod tx;

pub use rx::{RxBatch, RxPacket};
pub(crate) use rx::{RxMeta, RX_BUFFERS, RX_BUFFER_LEN};
pub use tx::{TxBatch, TxView};
