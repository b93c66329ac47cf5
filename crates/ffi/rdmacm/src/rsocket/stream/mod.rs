//! A stream as a machine without I/O: bytes go into the peer's ring by RDMA WRITE, and messages carry their number.
//!
//! Each end owns a receive ring and grants it to its peer in halves: the first with the connection, every further one
//! as soon as the program has read half a ring. A sender also needs a *credit* for each data message, since the
//! receiver keeps one record per message. No I/O, no memory: the caller moves the bytes and posts the requests.
//!
//! | file | content |
//! |---|---|
//! | `send_ring` | the send ring, the peer's buffers and credits: what may be sent, and where it goes |
//! | `recv_ring` | the receive ring: what has come, what was read, what to grant |
//! | `life` | who may still send, and why it ended |
//! | `machine` | the three together: completions in, control messages out |

mod life;
mod machine;
mod recv_ring;
mod ring;
mod send_ring;

pub(crate) use life::{Direction, End};
pub(crate) use machine::{CONTROL_SLOTS, Control, Machine, TABLE_SLOTS, Work};
pub(crate) use ring::Span;
pub(crate) use send_ring::{Growth, LOW_WATER, Piece};
