//! The structures of <infiniband/verbs.h>, byte for byte as rdma-core 44 lays them out, and its numbers.
//!
//! Programs read and write these fields themselves, compiled in; so a wrong offset corrupts memory and no test of ours
//! would see why. Every structure therefore ends in an assertion of its size and of its telling offsets.
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
mod srq;
mod work;
mod xrcd;

pub(crate) use address::*;
pub(crate) use context::*;
pub(crate) use cq::*;
pub(crate) use device::*;
pub(crate) use domain::*;
pub(crate) use event::*;
pub(crate) use memory::*;
pub(crate) use qp::*;
pub(crate) use raw::*;
pub(crate) use srq::*;
pub(crate) use work::*;
pub(crate) use xrcd::*;

/// Asserts a size and offsets when the library is compiled.
macro_rules! layout {
    ($name:ty, $size:literal $(, $field:ident = $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}
pub(crate) use layout;

/// A structure for which all zeros mean "nothing there": numbers, pointers and optional function pointers.
///
/// # Safety
/// The all-zero pattern is a valid value.
pub(crate) unsafe trait Zeroed: Sized {
    fn zeroed() -> Self {
        // SAFETY: what the trait promises.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! zeroed {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: numbers, pointers, optional functions and the system's lock types, all of which may be zero.
            unsafe impl crate::abi::Zeroed for $name {}
        )*
    };
}
pub(crate) use zeroed;

/// An operation that nobody has filled in: the inline verbs answer EOPNOTSUPP for it.
pub(crate) type Slot = Option<unsafe extern "C" fn()>;
