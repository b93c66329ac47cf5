//! The shared heap: which addresses are allocated, and which process is the home of each page.

mod allocator;
mod placement;

pub(crate) use allocator::Allocator;
pub use placement::Placement;
pub(crate) use placement::{Homes, PlacementState};

/// Address of the heap in every process, far from where the system places mappings.
pub(crate) const HEAP_ADDRESS: usize = 0x2000_0000_0000;
