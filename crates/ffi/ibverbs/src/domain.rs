//! Thread domains, and parent domains: a protection domain with a thread domain, an allocator, or both.
//!
//! An uncontended lock is cheap, so a thread domain only affects the order of destruction. The allocator of a parent domain
//! provides memory for the structures of queue pairs, completion queues and shared receive queues. The NIC allocates its own
//! memory itself.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard;
use crate::handle::{Handle, Lender, Use, Uses, object};
use crate::pd::PdObject;

/// A thread domain.
pub(crate) struct TdObject {
    uses: Uses,
    _context: Use,
}

object!(TdObject, ibv_td, "ibv_dealloc_td", "a parent domain still has the thread domain");

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    guard::pointer("ibv_alloc_td", || {
        // SAFETY: a context of ours, and the program's attributes.
        let (owner, init) =
            unsafe { (Context::of(context)?, init.as_ref().ok_or(invalid("init_attr is NULL"))?) };
        if init.comp_mask != 0 {
            return Err(unsupported("comp_mask has unknown bits"));
        }
        Ok(Handle::publish(
            ibv_td { context },
            TdObject { uses: Uses::default(), _context: owner.uses.hold() },
        ))
    })
}

/// The additional fields of a parent domain.
pub(crate) struct Parent {
    lender: Option<Lender>,
    _pd: Use,
    _td: Option<Use>,
}

impl Parent {
    /// The allocator for objects of the parent domain at `pd`.
    pub(crate) fn lender(&self, pd: *mut ibv_pd) -> Option<Lender> {
        self.lender.map(|lender| Lender { pd, ..lender })
    }
}

/// `ibv_dealloc_pd` frees it like any protection domain.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    init: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    guard::pointer("ibv_alloc_parent_domain", || {
        // SAFETY: a context of ours, and the program's attributes.
        let (owner, init) = unsafe { (Context::of(context)?, init.as_ref().ok_or(invalid("attr is NULL"))?) };
        // SAFETY: a protection domain of ours.
        let (domain, made_in) = unsafe { PdObject::of(init.pd)? };
        if made_in != context {
            return Err(invalid("the protection domain belongs to another context"));
        }
        // SAFETY: NULL, or a thread domain of ours.
        let td = unsafe { Handle::<TdObject>::of(init.td) }.ok();
        // SAFETY: as above.
        if td.is_some() && unsafe { (*init.td).context } != context {
            return Err(invalid("the thread domain belongs to another context"));
        }
        let parent =
            Parent { lender: lender(init)?, _pd: domain.uses.hold(), _td: td.map(|td| td.uses.hold()) };
        let abi = ibv_pd { context, handle: domain.pd.id().0 };
        Ok(Handle::publish(abi, PdObject::parent(domain.pd.clone(), owner, parent)))
    })
}

fn lender(init: &ibv_parent_domain_init_attr) -> Result<Option<Lender>, Refused> {
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    if init.comp_mask & !known != 0 {
        return Err(unsupported("comp_mask has unknown bits"));
    }
    if init.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS == 0 {
        return Ok(None);
    }
    let (Some(alloc), Some(free)) = (init.alloc, init.free) else {
        return Err(invalid("an allocator is a pair of functions"));
    };
    let has_context = init.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0;
    let context = if has_context { init.pd_context } else { std::ptr::null_mut() };
    Ok(Some(Lender { pd: std::ptr::null_mut(), context, alloc, free }))
}
