//! The objects that programs hold. Each keeps the objects it depends on alive, and is destroyed when dropped.

mod address;
mod cq;
mod pd;
mod qp;
mod raw_qp;
mod region;
mod srq;
mod window;
mod work_queue;
mod xrc;

pub use address::AddressHandle;
pub use cq::Cq;
pub use pd::Pd;
pub use qp::{Qp, QpInit};
pub use region::MemoryRegion;
pub use srq::Srq;
pub use window::{MemoryWindow, next_rkey};
pub use work_queue::{WorkQueue, WqState};
