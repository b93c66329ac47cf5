//! Imports objects of another context of this process, by the descriptor of the context and their handle.
//!
//! An imported context has the same objects as the original, and events of its own. An imported object is another
//! pointer to the same object. Contexts of other processes cannot be imported: their NIC is in that process.

use crate::abi::{ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::context::Context;
use crate::dm::DmObject;
use crate::errno::{Refused, invalid, unsupported};
use crate::handle::{Handle, Object, Uses};
use crate::mr::MrObject;
use crate::pd::PdObject;
use crate::{guard, live};
use ferroce_nic::lock::Mutex;
use ferroce_nic::{DeviceMemory, MemoryRegion, Nic, Pd};
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

type ByHandle<T> = Mutex<HashMap<u32, T>>;

/// The objects that can be imported, by handle. A context shares them with all contexts that were imported from it.
pub(crate) struct Exports {
    nic: Nic,
    /// The file behind the descriptors of these contexts.
    file: FileId,
    pub(crate) pds: ByHandle<(Weak<Pd>, Weak<Uses>)>,
    pub(crate) regions: ByHandle<Weak<Mutex<MemoryRegion>>>,
    pub(crate) device_memory: ByHandle<(Weak<DeviceMemory>, Weak<Uses>)>,
}

/// All open families of contexts.
static FAMILIES: Mutex<Vec<Weak<Exports>>> = Mutex::new(Vec::new());

/// Device and inode of a file. An inode alone is unique only within its file system.
pub(crate) type FileId = (u64, u64);

/// The file that a descriptor leads to.
pub(crate) fn file_of(fd: RawFd) -> std::io::Result<FileId> {
    // SAFETY: plain numbers, which may be zero.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes to a structure of ours; an invalid descriptor is refused.
    match unsafe { libc::fstat(fd, &mut about) } {
        0 => Ok((about.st_dev, about.st_ino)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl Exports {
    /// Creates the objects of a newly opened context with this descriptor.
    pub(crate) fn found(nic: Nic, cmd_fd: RawFd) -> Result<Arc<Exports>, Refused> {
        let file = file_of(cmd_fd)?;
        let family = Arc::new(Exports {
            nic,
            file,
            pds: Mutex::default(),
            regions: Mutex::default(),
            device_memory: Mutex::default(),
        });
        let mut families = FAMILIES.lock();
        families.retain(|family| family.strong_count() > 0);
        families.push(Arc::downgrade(&family));
        Ok(family)
    }

    fn of_descriptor(cmd_fd: RawFd) -> Result<Arc<Exports>, Refused> {
        let wanted = file_of(cmd_fd)?;
        let found = FAMILIES.lock().iter().filter_map(Weak::upgrade).find(|family| family.file == wanted);
        found.ok_or_else(|| match is_name_tag(cmd_fd) {
            true => unsupported("the context is of another process, and so is its NIC"),
            false => invalid("cmd_fd is not the descriptor of a context"),
        })
    }
}

/// Whether a descriptor may belong to a context, even of another process.
fn is_name_tag(fd: RawFd) -> bool {
    let target = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    target.is_ok_and(|path| path.to_string_lossy().starts_with("/memfd:ferroce"))
}

/// The new context owns the descriptor, as in the real library. If another context owns it already, it is duplicated
/// first.
pub(crate) unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut ibv_context {
    guard::pointer("ibv_import_device", || {
        let family = Exports::of_descriptor(cmd_fd)?;
        let nic = family.nic.session()?;
        let fd = match Context::owns(cmd_fd) {
            // SAFETY: the other context has it open.
            true => unsafe { BorrowedFd::borrow_raw(cmd_fd) }.try_clone_to_owned()?,
            // SAFETY: the program passes its ownership.
            false => unsafe { OwnedFd::from_raw_fd(cmd_fd) },
        };
        Context::publish(nic, fd, family)
    })
}

pub(crate) unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    guard::pointer("ibv_import_pd", || {
        // SAFETY: a context of ours.
        let owner = unsafe { Context::of(context)? };
        let entry = owner.exports.pds.lock().get(&handle).map(|(pd, uses)| (pd.upgrade(), uses.upgrade()));
        let Some((Some(pd), Some(uses))) = entry else {
            return Err(invalid("no protection domain of this context has the handle"));
        };
        let pd = owner.nic.share_pd(&pd);
        Ok(Handle::publish(ibv_pd { context, handle }, PdObject::shared(pd, owner, uses)))
    })
}

/// The address of an imported region is NULL, as the manual requires.
pub(crate) unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    guard::pointer("ibv_import_mr", || {
        // SAFETY: a domain of ours, and its context.
        let (domain, context) = unsafe { PdObject::of(pd)? };
        // SAFETY: as above.
        let owner = unsafe { Context::of(context)? };
        let Some(region) = owner.exports.regions.lock().get(&handle).and_then(Weak::upgrade) else {
            return Err(invalid("no memory region of this context has the handle"));
        };
        let (lkey, rkey, length) = {
            let region = region.lock();
            (region.lkey().0, region.rkey().0, region.len())
        };
        let abi = ibv_mr { context, pd, addr: std::ptr::null_mut(), length, handle, lkey, rkey };
        Ok(Handle::publish(abi, MrObject::shared(region, domain)))
    })
}

pub(crate) unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    guard::pointer("ibv_import_dm", || {
        // SAFETY: a context of ours.
        let owner = unsafe { Context::of(context)? };
        let entry =
            owner.exports.device_memory.lock().get(&handle).map(|(m, uses)| (m.upgrade(), uses.upgrade()));
        let Some((Some(memory), Some(uses))) = entry else {
            return Err(invalid("no device memory of this context has the handle"));
        };
        // SAFETY: as above.
        unsafe { DmObject::publish(context, memory, uses, handle) }
    })
}

/// Declares the verbs that release an imported pointer. The object and its dependents stay.
macro_rules! unimport {
    ($($name:ident($object:ty) = $verb:literal;)*) => {
        $(pub(crate) unsafe extern "C" fn $name(given: *mut <$object as Object>::Abi) {
            guard::quiet($verb, || {
                live::begin_destroy::<$object>(given)?;
                live::leave(given.addr());
                // SAFETY: a pointer of ours that lives; the program releases it.
                drop(unsafe { Handle::<$object>::take(given) });
                Ok(())
            });
        })*
    };
}

unimport! {
    unimport_pd(PdObject) = "ibv_unimport_pd";
    unimport_mr(MrObject) = "ibv_unimport_mr";
    unimport_dm(DmObject) = "ibv_unimport_dm";
}
