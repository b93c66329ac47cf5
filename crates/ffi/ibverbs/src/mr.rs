//! Memory regions.

use crate::abi::*;
use crate::buf::{BufObject, ibv_buf};
use crate::context::Context;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard;
use crate::handle::{Handle, Use, object};
use crate::pd::PdObject;
use crate::watched::LiveObject;
use ferroce_nic::MemoryRegion;
use ferroce_nic::lock::Mutex;
use ferroce_proto::verbs::Access;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A memory region.
pub(crate) struct MrObject {
    pub(crate) region: Arc<Mutex<MemoryRegion>>,
    pd: Mutex<Use>,
    /// The buffer or device memory that it covers, if any.
    _on: Option<Use>,
}

object!(MrObject, ibv_mr, "ibv_dereg_mr" => settle);

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
        unsafe { Context::of(context)? }.exports.regions.lock().insert(lkey, Arc::downgrade(&region));
        Ok(Handle::publish(abi, MrObject { region, pd: Mutex::new(object.uses.hold()), _on: on }))
    }

    /// Another pointer to a region.
    pub(crate) fn shared(region: Arc<Mutex<MemoryRegion>>, pd: &PdObject) -> MrObject {
        MrObject { region, pd: Mutex::new(pd.uses.hold()), _on: None }
    }

    unsafe fn settle(&self, mr: *mut ibv_mr) -> Result<(), Refused> {
        // Waits for accesses in flight; refused while memory windows are bound to it. Imported pointers become
        // invalid.
        self.region.lock().deregister()?;
        // SAFETY: the region's own structure, and its context.
        unsafe { Context::of((*mr).context)?.exports.regions.lock().remove(&(*mr).handle) };
        Ok(())
    }
}

unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
    on: Option<Use>,
) -> Result<*mut ibv_mr, Refused> {
    // SAFETY: a domain of ours.
    let (object, _) = unsafe { PdObject::of(pd)? };
    let access = access(flags)?;
    // SAFETY: the program promises, as the verb demands, that the memory stays until it deregisters.
    let region = unsafe { object.pd.register(addr as usize, length, iova, access, None)? };
    // SAFETY: a domain of ours.
    unsafe { MrObject::publish(pd, addr, region, on) }
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
    guard::pointer("ibv_reg_mr", || unsafe { register(pd, addr, length, addr as u64, flags as u32, None) })
}

/// Also exported as `ibv_reg_mr_iova`. The two differ only in the C type of the flags, which arrive in the same register.
pub(crate) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut ibv_mr {
    // SAFETY: what the verb demands of the program.
    guard::pointer("ibv_reg_mr_iova2", || unsafe { register(pd, addr, length, iova, flags, None) })
}

/// The attributes of `ibv_reg_mr_ex`. Only the fields that `comp_mask` names are read. Newer headers append the field `buf`.
#[repr(C)]
pub(crate) struct ibv_mr_init_attr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
}

const _: () = assert!(size_of::<ibv_mr_init_attr>() == 64);

const MASK_IOVA: u64 = 1 << 0;
const MASK_ADDR: u64 = 1 << 1;
const MASK_BUF: u64 = 1 << 5;

pub(crate) unsafe extern "C" fn reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    guard::pointer("ibv_reg_mr_ex", || {
        // SAFETY: the program's attributes.
        let given = unsafe { attr.as_ref() }.ok_or(invalid("mr_init_attr is NULL"))?;
        if given.comp_mask & !(MASK_IOVA | MASK_ADDR | MASK_BUF) != 0 {
            return Err(unsupported("comp_mask names a dma-buf, a DMA handle, or what is not known"));
        }
        if given.comp_mask & MASK_ADDR == 0 {
            return Err(invalid("comp_mask does not name the address"));
        }
        let on = match given.comp_mask & MASK_BUF {
            0 => None,
            // SAFETY: `comp_mask` promises that the field `buf` follows the others; it is a buffer of ours.
            _ => Some(unsafe {
                let buf = attr.add(1).cast::<*mut ibv_buf>().read();
                BufObject::holding(buf, pd, given.addr as usize, given.length)?.uses.hold()
            }),
        };
        let iova = if given.comp_mask & MASK_IOVA != 0 { given.iova } else { given.addr as u64 };
        // SAFETY: what the verb demands of the program.
        unsafe { register(pd, given.addr, given.length, iova, given.access as u32, on) }
    })
}

pub(crate) unsafe extern "C" fn reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_buf_mr", || {
        // SAFETY: a buffer of ours, and what the verb demands of the program.
        unsafe {
            let on = BufObject::holding(buf, pd, addr as usize, length)?.uses.hold();
            register(pd, addr, length, addr as u64, flags as u32, Some(on))
        }
    })
}

pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    flags: c_int,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_dmabuf_mr", || {
        // SAFETY: a domain of ours.
        let (object, _) = unsafe { PdObject::of(pd)? };
        // Programs test for dma-buf support with an invalid descriptor: any error other than EOPNOTSUPP, which `register_gpu` returns without
        // the driver, means support.
        // SAFETY: reads the flags of a descriptor.
        if ferroce_nic::is_cuda_loaded() && unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(Refused::Errno(libc::EBADF, "fd is not an open descriptor"));
        }
        // The address cannot be read from the descriptor. Programs that export memory of a GPU pass the device pointer as iova.
        // SAFETY: the program promises, as the verb demands, that the memory stays until it deregisters.
        let region = unsafe { object.pd.register_gpu(iova, length, access(flags as u32)?, None)? };
        // SAFETY: a domain of ours.
        unsafe { MrObject::publish(pd, offset as *mut c_void, region, None) }
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

/// The checked changes of a re-registration.
struct Change<'a> {
    object: LiveObject<'a, MrObject>,
    translation: Option<(*mut c_void, usize)>,
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
        let object = unsafe { LiveObject::<MrObject>::of("ibv_rereg_mr", mr)? };
        let known = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        if flags == 0 || flags & !known != 0 {
            return Err(invalid("flags name no change, or one that is not known"));
        }
        let has = |flag| flags & flag != 0;
        let access = if has(IBV_REREG_MR_CHANGE_ACCESS) { Some(access(new_access as u32)?) } else { None };
        let translation = has(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((addr, length));
        if translation.is_some_and(|(addr, length)| addr.is_null() || length == 0) {
            return Err(invalid("the new place has no address or no length"));
        }
        // SAFETY: a domain of ours, if one is named.
        let pd = if has(IBV_REREG_MR_CHANGE_PD) { Some((pd, unsafe { PdObject::of(pd)? }.0)) } else { None };
        Ok(Change { object, translation, pd, access })
    }

    unsafe fn apply(self, mr: *mut ibv_mr) -> Result<(), Refused> {
        let mut region = self.object.region.lock();
        let translation = self.translation.map(|(addr, length)| (addr as usize, length, addr as u64));
        // SAFETY: the program promises that the new memory stays until it deregisters.
        unsafe { region.modify(self.pd.map(|(_, pd)| &pd.pd), self.access, translation)? };
        if let Some((addr, length)) = self.translation {
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
