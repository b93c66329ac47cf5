//! Shared receive queues.

use crate::abi::*;
use crate::acks::Acks;
use crate::context::{Context, Target};
use crate::errno::{busy, invalid};
use crate::guard;
use crate::handle::{Handle, Object, Use, Uses};
use crate::pd::PdObject;
use ferroce_nic::{EventSource, Srq};
use std::ffi::c_int;

/// A shared receive queue.
pub(crate) struct SrqObject {
    pub(crate) srq: Srq,
    pub(crate) acks: Acks,
    pub(crate) uses: Uses,
    _held: (Use, Use),
}

impl Object for SrqObject {
    type Abi = ibv_srq;
}

pub(crate) unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    guard::pointer("ibv_create_srq", || {
        // SAFETY: a domain of ours, and the program's attributes, into which the real sizes go.
        let ((domain, context), init) =
            unsafe { (PdObject::of(pd)?, init.as_mut().ok_or(invalid("srq_init_attr is NULL"))?) };
        // SAFETY: the domain's context.
        let owner = unsafe { Context::of(context)? };
        let srq = domain.pd.create_srq(init.attr.max_wr, init.attr.max_sge)?;
        let real = srq.query();
        (init.attr.max_wr, init.attr.max_sge) = (real.max_wr, real.max_sge);
        let id = srq.id();
        let mut abi = ibv_srq::zeroed();
        (abi.context, abi.srq_context, abi.pd) = (context, init.srq_context, pd);
        abi.handle = id;
        abi.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        abi.cond = libc::PTHREAD_COND_INITIALIZER;
        let object = SrqObject {
            srq,
            acks: Acks::default(),
            uses: Uses::default(),
            _held: (owner.uses.hold(), domain.uses.hold()),
        };
        // SAFETY: a domain of ours.
        let made = Handle::publish_in(unsafe { PdObject::lender(pd) }, abi, object)?;
        owner.targets.lock().insert(EventSource::Srq(id), Target::Srq(made));
        Ok(made)
    })
}

pub(crate) unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    guard::number("ibv_modify_srq", || {
        // SAFETY: a queue of ours, and the program's attributes.
        let (object, attr) =
            unsafe { (Handle::<SrqObject>::of(srq)?, attr.as_ref().ok_or(invalid("srq_attr is NULL"))?) };
        let mask = mask as u32;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(invalid("srq_attr_mask has unknown bits"));
        }
        let max_wr = if mask & IBV_SRQ_MAX_WR != 0 { attr.max_wr } else { object.srq.query().max_wr };
        if mask & IBV_SRQ_LIMIT != 0 && attr.srq_limit > max_wr {
            return Err(invalid("srq_limit is beyond max_wr"));
        }
        if mask & IBV_SRQ_MAX_WR != 0 {
            object.srq.resize(attr.max_wr)?;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            object.srq.arm_limit(attr.srq_limit)?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    guard::number("ibv_query_srq", || {
        // SAFETY: a queue of ours, and room for the answer.
        let (object, out) =
            unsafe { (Handle::<SrqObject>::of(srq)?, attr.as_mut().ok_or(invalid("srq_attr is NULL"))?) };
        let now = object.srq.query();
        *out = ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    guard::number("ibv_destroy_srq", || {
        // SAFETY: a queue of ours, and its context.
        let (object, context) = unsafe { (Handle::<SrqObject>::of(srq)?, Context::of((*srq).context)?) };
        if object.uses.any() {
            return Err(busy("queue pairs still take receives from it"));
        }
        context.targets.lock().remove(&EventSource::Srq(object.srq.id()));
        object.acks.wait_settled();
        // SAFETY: the program gives it back.
        drop(unsafe { Handle::<SrqObject>::take(srq) });
        Ok(())
    })
}
