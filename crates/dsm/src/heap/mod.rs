//! The shared heap: which addresses are taken, and at which process each page is at home.

mod allocator;
mod placement;

pub(crate) use allocator::Allocator;
pub use placement::Placement;
pub(crate) use placement::{Homes, PlacementState};
