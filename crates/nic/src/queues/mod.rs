//! The internal state of completion queues, shared receive queues, completion channels and events.
//!
//! The engine fills and empties them. The handles that programs hold are in `objects`.

mod channel;
mod completion_ring;
mod cq;
mod event;
mod srq;

pub use channel::CompletionChannel;
pub(crate) use cq::{CqCore, Unpolled, check_depth};
pub use cq::{Moderation, Stamp};
pub use event::{AsyncEvent, EventSource};
pub(crate) use event::{EventHub, EventQueue};
pub use srq::SrqAttr;
pub(crate) use srq::{SrqCore, XrcSide};
