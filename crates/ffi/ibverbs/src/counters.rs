//! Counters of flows, at positions that the program chooses.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, busy, invalid, unsupported};
use crate::guard;
use crate::handle::{Handle, Use, Uses, object};
use ferroce_nic::FlowCounts;
use ferroce_nic::lock::Mutex;
use std::ffi::c_int;
use std::sync::Arc;

/// The counter at a position of the result.
#[derive(Clone, Copy)]
struct Point {
    index: u32,
    is_bytes: bool,
}

/// A set of counters.
pub(crate) struct CountersObject {
    counts: Arc<FlowCounts>,
    points: Mutex<Vec<Point>>,
    /// Flows that use them.
    uses: Uses,
    _context: Use,
}

object!(CountersObject, ibv_counters, "ibv_destroy_counters", "flows still count there");

impl CountersObject {
    /// The counters for a new flow that uses them.
    ///
    /// # Safety
    /// NULL, or counters of ours.
    pub(crate) unsafe fn bind(counters: *mut ibv_counters) -> Result<(Arc<FlowCounts>, Use), Refused> {
        // SAFETY: as the caller promises.
        let object = unsafe { Handle::<CountersObject>::of(counters)? };
        Ok((object.counts.clone(), object.uses.hold()))
    }
}

pub(crate) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    init: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    guard::pointer("ibv_create_counters", || {
        // SAFETY: a context of ours, and the program's attributes.
        let (owner, init) =
            unsafe { (Context::of(context)?, init.as_ref().ok_or(invalid("init_attr is NULL"))?) };
        if init.comp_mask != 0 {
            return Err(unsupported("comp_mask has unknown bits"));
        }
        let object = CountersObject {
            counts: Arc::default(),
            points: Mutex::default(),
            uses: Uses::default(),
            _context: owner.uses.hold(),
        };
        Ok(Handle::publish(ibv_counters { context }, object))
    })
}

/// Defines a counter. Refused once a flow uses the set: counters cannot be added to an existing flow.
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    guard::number("ibv_attach_counters_point_flow", || {
        // SAFETY: counters of ours, and the program's attributes.
        let (object, attr) = unsafe {
            (Handle::<CountersObject>::of(counters)?, attr.as_ref().ok_or(invalid("attr is NULL"))?)
        };
        if attr.comp_mask != 0 {
            return Err(invalid("comp_mask has unknown bits"));
        }
        if !flow.is_null() {
            return Err(unsupported("counters for a flow that is there already"));
        }
        let is_bytes = match attr.counter_desc {
            IBV_COUNTER_PACKETS => false,
            IBV_COUNTER_BYTES => true,
            _ => return Err(unsupported("no such counter")),
        };
        if object.uses.any() {
            return Err(busy("a flow counts there already"));
        }
        object.points.lock().push(Point { index: attr.index, is_bytes });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    /// Allows cached values; ours are always current.
    const PREFER_CACHED: u32 = 1;
    guard::number("ibv_read_counters", || {
        // SAFETY: counters of ours.
        let object = unsafe { Handle::<CountersObject>::of(counters)? };
        if values.is_null() || flags & !PREFER_CACHED != 0 {
            return Err(invalid("no room for the values, or unknown flags"));
        }
        // SAFETY: the program provides memory for `count` values.
        let out = unsafe { std::slice::from_raw_parts_mut(values, count as usize) };
        out.fill(0);
        for point in object.points.lock().iter() {
            let value = out.get_mut(point.index as usize).ok_or(invalid("ncounters is too small"))?;
            *value += if point.is_bytes { object.counts.bytes() } else { object.counts.packets() };
        }
        Ok(())
    })
}
