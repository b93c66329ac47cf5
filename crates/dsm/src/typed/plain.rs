//! Which types may lie in shared memory.

#![expect(unsafe_code, reason = "promises something about types")]

/// Plain old data: any bytes are a value, and a value means the same in every process.
///
/// # Safety
/// Every bit pattern must be a value, there must be no padding, and no pointers or references inside. All processes of a
/// job must be of the same build.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($name:ty),*) => { $(
        // SAFETY: a number: every bit pattern is one, and it has no padding.
        unsafe impl Plain for $name {}
    )* };
}

plain!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);

// SAFETY: values one after another, without padding in between.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
