//! Memory regions.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, busy, invalid, unsupported};
use crate::guard;
use crate::handle::{Handle, Object, Use, Uses};
use crate::pd::PdObject;
use ferroce_nic::MemoryRegion;
use ferroce_proto::verbs::Access;
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A memory region.
pub(crate) struct MrObject {
    pub(crate) region: Arc<Mutex<MemoryRegion>>,
    /// Windows bound to it.
    pub(crate) uses: Arc<Uses>,
    pd: Mutex<Use>,
}

impl MrObject {
    /// Another pointer to a region, whose windows count for both.
    pub(crate) fn shared(region: Arc<Mutex<MemoryRegion>>, uses: Arc<Uses>, pd: &PdObject) -> MrObject {
        MrObject { region, uses, pd: Mutex::new(pd.uses.hold()) }
    }
}

impl Object for MrObject {
    type Abi = ibv_mr;
}

/// Access flags of a program. Optional ones that nobody knows are ignored, as their definition says.
pub(crate) fn access(flags: u32) -> Result<Access, Refused> {
    let unknown_optional = Access::OPTIONAL & !Access::all().bits();
    Access::from_bits(flags & !unknown_optional).ok_or(invalid("access flags that the device does not know"))
}

unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> Result<*mut ibv_mr, Refused> {
    // SAFETY: a domain of ours.
    let (object, context) = unsafe { PdObject::of(pd)? };
    let access = access(flags)?;
    check_mapped(addr, length, access)?;
    // SAFETY: the program promises, as the verb demands, that the memory stays until it deregisters.
    let region = unsafe { object.pd.register(addr as usize, length, iova, access, None)? };
    let (lkey, rkey) = (region.lkey().0, region.rkey().0);
    let abi = ibv_mr { context, pd, addr, length, handle: lkey, lkey, rkey };
    let mr = MrObject::shared(Arc::new(Mutex::new(region)), Arc::default(), object);
    // SAFETY: the domain's context.
    unsafe { Context::of(context)? }.exports.add_region(lkey, &mr.region, &mr.uses);
    Ok(Handle::publish(abi, mr))
}

/// Memory that is not there, or cannot be written although that was asked for, must be refused now: later it would be
/// this process that faults. Hardware pins the pages at this point; touching them costs about the same.
fn check_mapped(addr: *mut c_void, length: usize, access: Access) -> Result<(), Refused> {
    if access.contains(Access::ON_DEMAND) || length == 0 {
        return Ok(());
    }
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = addr as usize & !(page - 1);
    let Some(end) = (addr as usize).checked_add(length).and_then(|end| end.checked_next_multiple_of(page))
    else {
        return Ok(());
    };
    let populate = |advice| {
        // SAFETY: changes no contents; a range that is not there is an error and nothing else.
        match unsafe { libc::madvise(start as *mut c_void, end - start, advice) } {
            0 => 0,
            _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        }
    };
    const NO_MEMORY: Refused = Refused::Errno(libc::EFAULT, "the memory is not mapped");
    const NO_WRITE: Refused = Refused::Errno(libc::EFAULT, "LOCAL_WRITE to memory that cannot be written");
    if access.contains(Access::LOCAL_WRITE) {
        return match populate(libc::MADV_POPULATE_WRITE) {
            libc::EFAULT | libc::ENOMEM => Err(NO_MEMORY),
            // Kernels before 5.14 know neither advice; then reading is refused as well, and nothing is known.
            libc::EINVAL if populate(libc::MADV_POPULATE_READ) == 0 => Err(NO_WRITE),
            _ => Ok(()),
        };
    }
    match populate(libc::MADV_POPULATE_READ) {
        libc::EFAULT | libc::ENOMEM => Err(NO_MEMORY),
        _ => Ok(()),
    }
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

/// Also the one without a number: they differ in how the flags are passed, which no register shows.
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
        let change = unsafe { Change::of(mr, flags, pd, addr, length, new_access) };
        // Until here nothing has happened.
        let change = match change {
            Ok(change) => change,
            Err(refused) => return Ok(Err((IBV_REREG_MR_ERR_INPUT, refused))),
        };
        // SAFETY: as above.
        Ok(unsafe { change.apply(mr) }.map_err(|refused| (IBV_REREG_MR_ERR_CMD, refused)))
    });
    match outcome {
        Ok(Ok(())) => 0,
        Ok(Err((code, refused))) => {
            refused.explain("ibv_rereg_mr");
            crate::errno::set(refused.errno());
            code
        }
        Err(_) => IBV_REREG_MR_ERR_CMD,
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
        if object.uses.any() {
            return Err(busy("memory windows are bound to the region"));
        }
        let has = |flag| flags & flag != 0;
        let access = if has(IBV_REREG_MR_CHANGE_ACCESS) { Some(access(new_access as u32)?) } else { None };
        let place = has(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((addr, length));
        if let Some((addr, length)) = place {
            if addr.is_null() || length == 0 {
                return Err(invalid("the new place has no address or no length"));
            }
            check_mapped(addr, length, access.unwrap_or(object.region.lock().access()))?;
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
        if unsafe { Handle::<MrObject>::of(mr)? }.uses.any() {
            return Err(busy("memory windows are bound to the region"));
        }
        // SAFETY: the region's own structure, and its context.
        unsafe { Context::of((*mr).context)?.exports.remove_region((*mr).handle) };
        // SAFETY: the program gives it back.
        let object = unsafe { Handle::<MrObject>::take(mr) };
        // Waits for accesses in flight; whoever imported it holds an empty shell.
        object.region.lock().revoke();
        Ok(())
    })
}
