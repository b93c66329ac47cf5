//! Device memory.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid};
use crate::guard;
use crate::handle::{Handle, Use, Uses, object};
use crate::mr::{MrObject, access};
use crate::pd::PdObject;
use ferroce_nic::{DeviceMemory, Error};
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

object!(DmObject, ibv_dm, "ibv_free_dm", "memory regions are still on the device memory" => settle);

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

    unsafe fn settle(&self, dm: *mut ibv_dm) -> Result<(), Refused> {
        // SAFETY: device memory of ours, and its context.
        unsafe { Context::of((*dm).context)?.exports.device_memory.lock().remove(&(*dm).handle) };
        Ok(())
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
        let export = (Arc::downgrade(&memory), Arc::downgrade(&uses));
        owner.exports.device_memory.lock().insert(handle, export);
        // SAFETY: as above.
        unsafe { DmObject::publish(context, memory, uses, handle) }
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

/// Runs a copy between device memory and the program's memory, unless `length` is 0.
unsafe fn copy(
    verb: &'static str,
    dm: *mut ibv_dm,
    host: *const c_void,
    length: usize,
    work: impl FnOnce(&DeviceMemory) -> Result<(), Error>,
) -> c_int {
    guard::number(verb, || {
        // SAFETY: device memory of ours.
        let object = unsafe { Handle::<DmObject>::of(dm)? };
        match length {
            0 => Ok(()),
            _ if host.is_null() => Err(invalid("host_addr is NULL")),
            _ => Ok(work(&object.memory)?),
        }
    })
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    // SAFETY: the program's bytes.
    let bytes = || unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
    // SAFETY: what the verb demands of the program.
    unsafe { copy("ibv_memcpy_to_dm", dm, from, length, |memory| memory.copy_to(offset, bytes())) }
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    // SAFETY: the program provides memory for `length` bytes.
    let bytes = || unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
    // SAFETY: what the verb demands of the program.
    unsafe { copy("ibv_memcpy_from_dm", dm, to, length, |memory| memory.copy_from(offset, bytes())) }
}
