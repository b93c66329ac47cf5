//! Protection domains.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, busy};
use crate::guard;
use crate::handle::{Handle, Object, Use, Uses};
use ferroce_nic::Pd;
use std::ffi::c_int;
use std::sync::Arc;

/// A protection domain.
pub(crate) struct PdObject {
    pub(crate) pd: Arc<Pd>,
    pub(crate) uses: Uses,
    _context: Use,
}

impl Object for PdObject {
    type Abi = ibv_pd;
}

impl PdObject {
    /// The domain behind a pointer, and the context it was made in.
    ///
    /// # Safety
    /// NULL, or a domain of ours.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> Result<(&'a PdObject, *mut ibv_context), Refused> {
        // SAFETY: as the caller promises; the pointer is not NULL once `of` answered.
        unsafe { Handle::<PdObject>::of(pd).map(|object| (object, (*pd).context)) }
    }
}

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard::pointer("ibv_alloc_pd", || {
        // SAFETY: a context of ours.
        let owner = unsafe { Context::of(context)? };
        let pd = owner.nic.alloc_pd()?;
        let abi = ibv_pd { context, handle: pd.id().0 };
        Ok(Handle::publish(abi, PdObject { pd, uses: Uses::default(), _context: owner.uses.hold() }))
    })
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard::number("ibv_dealloc_pd", || {
        // SAFETY: a domain of ours.
        let (object, _) = unsafe { PdObject::of(pd)? };
        if object.uses.any() {
            return Err(busy("the protection domain still has regions, queue pairs or address handles"));
        }
        // SAFETY: the program gives it back.
        drop(unsafe { Handle::<PdObject>::take(pd) });
        Ok(())
    })
}
