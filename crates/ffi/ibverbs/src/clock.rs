//! The device's clock: the nanoseconds of the system's monotonic clock.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{invalid, unsupported};
use crate::guard;
use std::ffi::c_int;

/// Ticks per millisecond, the unit of `hca_core_clock`.
pub(crate) const CORE_CLOCK_KHZ: u64 = 1_000_000;

/// The raw clock is a number of ticks. As for hardware, all of it is in `tv_nsec`.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    guard::number("ibv_query_rt_values_ex", || {
        // SAFETY: a context of ours, and NULL or memory for the result.
        let (context, out) =
            unsafe { (Context::of(context)?, values.as_mut().ok_or(invalid("values is NULL"))?) };
        if out.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(unsupported("comp_mask asks for values that the device does not have"));
        }
        if out.comp_mask != 0 {
            out.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: context.nic.raw_clock_ns().cast_signed() };
        }
        Ok(())
    })
}
