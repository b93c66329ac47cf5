//! The shared heap: its allocations, and the home of each page.

mod allocator;
mod placement;

pub(crate) use allocator::Allocator;
pub use placement::Placement;
pub(crate) use placement::{Homes, PlacementState};

/// Address of the heap in every process, far from the addresses that the kernel chooses for mappings.
pub(crate) const HEAP_ADDRESS: usize = 0x2000_0000_0000;
