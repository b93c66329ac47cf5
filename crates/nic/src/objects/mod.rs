//! The objects that programs hold: each keeps what it needs alive, and takes itself down when dropped.

mod address;
mod channel;
mod cq;
mod event;
mod guarded;
mod pd;
mod qp;
mod region;
mod srq;
mod window;
mod xrc;

pub use address::AddressHandle;
pub use channel::CompletionChannel;
pub use cq::{Cq, Moderation, Stamp};
pub use event::{AsyncEvent, EventSource};
pub use pd::Pd;
pub use qp::{Qp, QpInit};
pub use region::MemoryRegion;
pub use srq::{MAX_SRQ_WR, Srq, SrqAttr};
pub use window::{MemoryWindow, next_rkey};
pub use xrc::{XrcDomain, XrcKey};

pub(crate) use cq::{CqCore, MAX_CQE};
pub(crate) use event::{EventHub, EventQueue};
pub(crate) use guarded::Tally;
pub(crate) use qp::QpCore;
pub(crate) use srq::SrqCore;
pub(crate) use xrc::XrcDomains;
