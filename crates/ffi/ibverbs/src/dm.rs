//! Device memory.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid};
use crate::guard;
use crate::handle::{Handle, Use, Uses, object};
use crate::mr::{MrObject, access};
use crate::pd::PdObject;
use ferroce_nic::DeviceMemory;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A piece of device memory.
pub(crate) struct DmObject {
    pub(crate) memory: Arc<DeviceMemory>,
    /// Regions on it, through any of its pointers.
    pub(crate) uses: Arc<Uses>,
    _context: Use,
}

object!(DmObject, ibv_dm, uses);

impl DmObject {
    /// Publishes memory to a program as an object of this context. An import passes the fields of the original.
    ///
    /// # Safety
    /// A context of ours.
    pub(crate) unsafe fn publish(
        context: *mut ibv_context,
        memory: Arc<DeviceMemory>,
        uses: Arc<Uses>,
        handle: u32,
    ) -> Result<*mut ibv_dm, Refused> {
        // SAFETY: as the caller promises.
        let owner = unsafe { Context::of(context)? };
        let abi = ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle,
        };
        Ok(Handle::publish(abi, DmObject { memory, uses, _context: owner.uses.hold() }))
    }
}

pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    guard::pointer("ibv_alloc_dm", || {
        // SAFETY: a context of ours, and the program's attributes.
        let (owner, attr) = unsafe { (Context::of(context)?, attr.as_ref().ok_or(invalid("attr is NULL"))?) };
        if attr.comp_mask != 0 {
            return Err(invalid("comp_mask has unknown bits"));
        }
        let memory = owner.nic.alloc_device_memory(attr.length, attr.log_align_req)?;
        static LAST_HANDLE: AtomicU32 = AtomicU32::new(0);
        let handle = LAST_HANDLE.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let uses = Arc::default();
        owner.exports.add_device_memory(handle, &memory, &uses);
        // SAFETY: as above.
        unsafe { DmObject::publish(context, memory, uses, handle) }
    })
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    guard::number("ibv_free_dm", || {
        let settle = |_: &DmObject| {
            // SAFETY: device memory of ours, and its context.
            unsafe { Context::of((*dm).context)?.exports.remove_device_memory((*dm).handle) };
            Ok(())
        };
        // SAFETY: NULL, or device memory of ours, which the program gives back.
        unsafe { Handle::take_settled(dm, "memory regions are still on the device memory", settle) }.map(drop)
    })
}

pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    flags: u32,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_dm_mr", || {
        // SAFETY: objects of ours.
        let ((domain, _), object) = unsafe { (PdObject::of(pd)?, Handle::<DmObject>::of(dm)?) };
        let region = domain.pd.register_device_memory(&object.memory, offset, length, access(flags)?)?;
        // SAFETY: a domain of ours.
        unsafe { MrObject::publish(pd, std::ptr::null_mut(), region, Some(object.uses.hold())) }
    })
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    guard::number("ibv_memcpy_to_dm", || {
        // SAFETY: device memory of ours.
        let object = unsafe { Handle::<DmObject>::of(dm)? };
        if length == 0 {
            return Ok(());
        }
        if from.is_null() {
            return Err(invalid("host_addr is NULL"));
        }
        // SAFETY: the program's bytes.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
        Ok(object.memory.copy_to(offset, bytes)?)
    })
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    guard::number("ibv_memcpy_from_dm", || {
        // SAFETY: device memory of ours.
        let object = unsafe { Handle::<DmObject>::of(dm)? };
        if length == 0 {
            return Ok(());
        }
        if to.is_null() {
            return Err(invalid("host_addr is NULL"));
        }
        // SAFETY: room that the program gives.
        let room = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
        Ok(object.memory.copy_from(offset, room)?)
    })
}
