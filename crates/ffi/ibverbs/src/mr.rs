//! Memory regions.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard;
use crate::handle::{Handle, Use, object};
use crate::pd::PdObject;
use ferroce_nic::MemoryRegion;
use ferroce_nic::lock::Mutex;
use ferroce_proto::verbs::Access;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A memory region.
pub(crate) struct MrObject {
    pub(crate) region: Arc<Mutex<MemoryRegion>>,
    pd: Mutex<Use>,
    /// The object that it lies on, if any.
    _on: Option<Use>,
}

object!(MrObject, ibv_mr);

/// Access flags of a program. Unknown optional flags are ignored, as the specification requires.
pub(crate) fn access(flags: u32) -> Result<Access, Refused> {
    let unknown_optional = Access::OPTIONAL & !Access::all().bits();
    Access::from_bits(flags & !unknown_optional).ok_or(invalid("access flags that the device does not know"))
}

impl MrObject {
    /// Publishes a registration to the program.
    ///
    /// # Safety
    /// The domain is one of ours.
    pub(crate) unsafe fn publish(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        region: MemoryRegion,
        on: Option<Use>,
    ) -> Result<*mut ibv_mr, Refused> {
        // SAFETY: as the caller promises.
        let (object, context) = unsafe { PdObject::of(pd)? };
        let (lkey, rkey, length) = (region.lkey().0, region.rkey().0, region.len());
        let abi = ibv_mr { context, pd, addr, length, handle: lkey, lkey, rkey };
        let region = Arc::new(Mutex::new(region));
        // SAFETY: the domain's context.
        unsafe { Context::of(context)? }.exports.add_region(lkey, &region);
        Ok(Handle::publish(abi, MrObject { region, pd: Mutex::new(object.uses.hold()), _on: on }))
    }

    /// Another pointer to a region.
    pub(crate) fn shared(region: Arc<Mutex<MemoryRegion>>, pd: &PdObject) -> MrObject {
        MrObject { region, pd: Mutex::new(pd.uses.hold()), _on: None }
    }
}

unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> Result<*mut ibv_mr, Refused> {
    // SAFETY: a domain of ours.
    let (object, _) = unsafe { PdObject::of(pd)? };
    let access = access(flags)?;
    // SAFETY: the program promises, as the verb demands, that the memory stays until it deregisters.
    let region = unsafe { object.pd.register(addr as usize, length, iova, access, None)? };
    // SAFETY: a domain of ours.
    unsafe { MrObject::publish(pd, addr, region, None) }
}

/// A null region: writes to it are discarded.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    guard::pointer("ibv_alloc_null_mr", || {
        // SAFETY: a domain of ours.
        let region = unsafe { PdObject::of(pd)? }.0.pd.alloc_null_region()?;
        // SAFETY: as above.
        unsafe { MrObject::publish(pd, std::ptr::null_mut(), region, None) }
    })
}

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: what the verb demands of the program.
    guard::pointer("ibv_reg_mr", || unsafe { register(pd, addr, length, addr as u64, flags as u32) })
}

/// Also exported as `ibv_reg_mr_iova`: the two differ only in the type of the flags, which a register does not show.
pub(crate) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut ibv_mr {
    // SAFETY: what the verb demands of the program.
    guard::pointer("ibv_reg_mr_iova2", || unsafe { register(pd, addr, length, iova, flags) })
}

pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _flags: c_int,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_dmabuf_mr", || {
        // SAFETY: a domain of ours.
        unsafe { PdObject::of(pd)? };
        Err(unsupported("memory of devices cannot be reached by software"))
    })
}

pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    new_access: c_int,
) -> c_int {
    let outcome = guard::run("ibv_rereg_mr", || {
        // SAFETY: what the verb demands of the program.
        unsafe { Change::of(mr, flags, pd, addr, length, new_access)?.apply(mr) }
    });
    match outcome {
        Ok(()) => 0,
        Err(libc::EIO) => IBV_REREG_MR_ERR_CMD,
        // All of it succeeds, or nothing changes.
        Err(_) => IBV_REREG_MR_ERR_INPUT,
    }
}

/// What a re-registration asks for, checked.
struct Change<'a> {
    object: &'a MrObject,
    place: Option<(*mut c_void, usize)>,
    pd: Option<(*mut ibv_pd, &'a PdObject)>,
    access: Option<Access>,
}

impl Change<'_> {
    unsafe fn of(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        new_access: c_int,
    ) -> Result<Self, Refused> {
        // SAFETY: a region of ours.
        let object = unsafe { Handle::<MrObject>::of(mr)? };
        let known = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        if flags == 0 || flags & !known != 0 {
            return Err(invalid("flags name no change, or one that is not known"));
        }
        let has = |flag| flags & flag != 0;
        let access = if has(IBV_REREG_MR_CHANGE_ACCESS) { Some(access(new_access as u32)?) } else { None };
        let place = has(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((addr, length));
        if place.is_some_and(|(addr, length)| addr.is_null() || length == 0) {
            return Err(invalid("the new place has no address or no length"));
        }
        // SAFETY: a domain of ours, if one is named.
        let pd = if has(IBV_REREG_MR_CHANGE_PD) { Some((pd, unsafe { PdObject::of(pd)? }.0)) } else { None };
        Ok(Change { object, place, pd, access })
    }

    unsafe fn apply(self, mr: *mut ibv_mr) -> Result<(), Refused> {
        let mut region = self.object.region.lock();
        let place = self.place.map(|(addr, length)| (addr as usize, length, addr as u64));
        // SAFETY: the program promises that the new place stays.
        unsafe { region.modify(self.pd.map(|(_, pd)| &pd.pd), self.access, place)? };
        if let Some((addr, length)) = self.place {
            // SAFETY: the region's own structure.
            unsafe { ((*mr).addr, (*mr).length) = (addr, length) };
        }
        if let Some((pd, object)) = self.pd {
            *self.object.pd.lock() = object.uses.hold();
            // SAFETY: the region's own structure.
            unsafe { (*mr).pd = pd };
        }
        // SAFETY: the region's own structure.
        unsafe { ((*mr).lkey, (*mr).rkey) = (region.lkey().0, region.rkey().0) };
        Ok(())
    }
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    guard::number("ibv_dereg_mr", || {
        // SAFETY: a region of ours.
        let object = unsafe { Handle::<MrObject>::of(mr)? };
        // Waits for accesses in flight; refused while memory windows are bound to it. Imported pointers become
        // invalid.
        object.region.lock().deregister()?;
        // SAFETY: the region's own structure, and its context.
        unsafe { Context::of((*mr).context)?.exports.remove_region((*mr).handle) };
        // SAFETY: the program gives it back.
        drop(unsafe { Handle::<MrObject>::take(mr) });
        Ok(())
    })
}
