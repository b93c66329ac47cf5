//! Protection domains.

use crate::abi::*;
use crate::context::Context;
use crate::domain::Parent;
use crate::errno::Refused;
use crate::guard;
use crate::handle::{Handle, Lender, Use, Uses, object};
use ferroce_nic::Pd;
use std::sync::Arc;

/// A protection domain.
pub(crate) struct PdObject {
    pub(crate) pd: Arc<Pd>,
    pub(crate) uses: Arc<Uses>,
    _context: Use,
    /// Set for a parent domain.
    parent: Option<Parent>,
}

object!(
    PdObject,
    ibv_pd,
    "ibv_dealloc_pd",
    "the protection domain still has regions, queue pairs or address handles" => settle
);

impl PdObject {
    fn new(pd: Arc<Pd>, owner: &Context, parent: Option<Parent>) -> PdObject {
        PdObject { pd, uses: Arc::default(), _context: owner.uses.hold(), parent }
    }

    /// Another pointer to a domain. Both pointers share the count of dependents.
    pub(crate) fn shared(pd: Arc<Pd>, owner: &Context, uses: Arc<Uses>) -> PdObject {
        PdObject { uses, ..Self::new(pd, owner, None) }
    }

    /// A parent domain around a protection domain.
    pub(crate) fn parent(pd: Arc<Pd>, owner: &Context, parent: Parent) -> PdObject {
        Self::new(pd, owner, Some(parent))
    }

    /// Whether it is a parent domain.
    pub(crate) fn is_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// The program's allocator for objects of the domain at `pd`, if it has one.
    ///
    /// # Safety
    /// NULL, or a domain of ours.
    pub(crate) unsafe fn lender(pd: *mut ibv_pd) -> Option<Lender> {
        // SAFETY: as the caller promises.
        unsafe { Handle::<PdObject>::of(pd) }.ok()?.parent.as_ref()?.lender(pd)
    }

    /// The domain behind a pointer, and the context it was made in.
    ///
    /// # Safety
    /// NULL, or a domain of ours.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> Result<(&'a PdObject, *mut ibv_context), Refused> {
        // SAFETY: as the caller promises; the pointer is not NULL after `of` has succeeded.
        unsafe { Handle::<PdObject>::of(pd).map(|object| (object, (*pd).context)) }
    }

    unsafe fn settle(&self, pd: *mut ibv_pd) -> Result<(), Refused> {
        if !self.is_parent() {
            // SAFETY: a domain of ours, and its context.
            unsafe { Context::of((*pd).context)? }.exports.pds.lock().remove(&self.pd.id().0);
        }
        Ok(())
    }
}

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard::pointer("ibv_alloc_pd", || {
        // SAFETY: a context of ours.
        let owner = unsafe { Context::of(context)? };
        let pd = owner.nic.alloc_pd()?;
        let abi = ibv_pd { context, handle: pd.id().0 };
        let object = PdObject::new(pd, owner, None);
        let export = (Arc::downgrade(&object.pd), Arc::downgrade(&object.uses));
        owner.exports.pds.lock().insert(abi.handle, export);
        Ok(Handle::publish(abi, object))
    })
}
