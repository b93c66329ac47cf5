//! The structures of <infiniband/verbs.h>, byte for byte as rdma-core 44 lays them out, and its numbers.
//!
//! Programs access these fields directly, so a wrong offset corrupts memory, and no test would show why. Every
//! structure therefore ends in an assertion of its size and its main offsets.
#![allow(non_camel_case_types, missing_docs)]

mod address;
mod context;
mod cq;
mod device;
mod domain;
mod event;
mod memory;
mod qp;
mod raw;
mod sa;
mod srq;
mod work;
mod xrcd;

pub use address::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use domain::*;
pub use event::*;
pub use memory::*;
pub use qp::*;
pub use raw::*;
pub use sa::*;
pub use srq::*;
pub use work::*;
pub use xrcd::*;

/// Asserts a size and offsets at compile time.
#[macro_export]
macro_rules! layout {
    ($name:ty, $size:literal $(, $field:ident = $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}
pub use crate::layout;

/// A structure for which all zeros mean "empty": numbers, pointers and optional function pointers.
///
/// # Safety
/// The all-zero pattern is a valid value.
pub unsafe trait Zeroed: Sized {
    fn zeroed() -> Self {
        // SAFETY: what the trait promises.
        unsafe { std::mem::zeroed() }
    }
}

/// Declares that all zeros are a valid value of these structures.
#[macro_export]
macro_rules! zeroed {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: numbers, pointers, optional functions and the system's locks, which are initialised by zeros.
            unsafe impl $crate::verbs::Zeroed for $name {}
        )*
    };
}
pub use crate::zeroed;

/// An empty operation: the inline verbs return EOPNOTSUPP for it.
pub type Slot = Option<unsafe extern "C" fn()>;
