//! A stream as a state machine without I/O. Bytes are written to the peer's ring by RDMA WRITE, and messages carry their number.
//!
//! Each end has a receive ring and grants it to its peer in halves: the first with the connection, every further one as soon as
//! the program has read half a ring. A sender also needs a *credit* for each data message, since the receiver keeps one record
//! per message. The caller copies the bytes and posts the requests.
//!
//! | file | content |
//! |---|---|
//! | `send_ring` | the send ring, the peer's buffers and credits: what may be sent, and to which address |
//! | `recv_ring` | the receive ring: received bytes, read bytes, grants |
//! | `life` | the open directions, and why the connection ended |
//! | `machine` | all of them together: completions in, control messages out |

mod life;
mod machine;
mod recv_ring;
mod ring;
mod send_ring;

pub(crate) use life::{Direction, End};
pub(crate) use machine::{CONTROL_SLOTS, Control, Machine, TABLE_SLOTS, Work};
pub(crate) use ring::Span;
pub(crate) use send_ring::{Growth, LOW_WATER, Piece};
