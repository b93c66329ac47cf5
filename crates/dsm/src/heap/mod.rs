//! The shared heap: which addresses are taken, and at which process each page is at home.

mod allocator;
mod placement;

pub(crate) use allocator::Allocator;
pub use placement::Placement;
pub(crate) use placement::{Homes, PlacementState};

/// Where the heap lies in every process: far from where the system puts anything by itself.
pub(crate) const HEAP_ADDRESS: usize = 0x2000_0000_0000;
