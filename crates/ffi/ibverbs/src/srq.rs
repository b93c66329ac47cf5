//! Shared receive queues.

use crate::abi::*;
use crate::acks::Acks;
use crate::context::{Context, Target};
use crate::cq::CqObject;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard;
use crate::handle::{Handle, Use, Uses, object};
use crate::pd::PdObject;
use crate::watched::LiveObject;
use crate::xrcd::XrcdObject;
use ferroce_nic::{EventSource, Srq};
use std::ffi::{c_int, c_void};

/// A shared receive queue.
pub(crate) struct SrqObject {
    pub(crate) srq: Srq,
    pub(crate) acks: Acks,
    pub(crate) uses: Uses,
    /// Objects that must outlive the queue.
    _held: Vec<Use>,
}

object!(SrqObject, ibv_srq, "ibv_destroy_srq", "queue pairs still take receives from it" => settle);

impl SrqObject {
    unsafe fn settle(&self, srq: *mut ibv_srq) -> Result<(), Refused> {
        // SAFETY: a queue of ours, and its context.
        let context = unsafe { Context::of((*srq).context)? };
        context.targets.lock().remove(&EventSource::Srq(self.srq.id()));
        self.acks.wait_settled("ibv_destroy_srq", "ibv_ack_async_event");
        Ok(())
    }
}

pub(crate) unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    guard::pointer("ibv_create_srq", || {
        // SAFETY: the program's attributes, which the call updates with the actual sizes.
        let init = unsafe { init.as_mut().ok_or(invalid("srq_init_attr is NULL"))? };
        // SAFETY: what the verb demands of the program.
        unsafe { create(pd, init.srq_context, &mut init.attr, None) }
    })
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    guard::pointer("ibv_create_srq_ex", || {
        // SAFETY: the program's attributes, which the call updates with the actual sizes.
        let init = unsafe { init.as_mut().ok_or(invalid("srq_init_attr_ex is NULL"))? };
        let known =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        let has = |bit| init.comp_mask & bit != 0;
        if init.comp_mask & !known != 0 {
            return Err(unsupported("comp_mask asks for something that the device does not have"));
        }
        if !has(IBV_SRQ_INIT_ATTR_PD) {
            return Err(invalid("a shared receive queue needs a protection domain"));
        }
        // SAFETY: a domain of ours.
        if unsafe { PdObject::of(init.pd)? }.1 != context {
            return Err(invalid("the protection domain belongs to another context"));
        }
        let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
        let xrc = match srq_type {
            IBV_SRQT_BASIC => None,
            IBV_SRQT_XRC if !has(IBV_SRQ_INIT_ATTR_XRCD) || !has(IBV_SRQ_INIT_ATTR_CQ) => {
                return Err(invalid("an XRC queue needs an XRC domain and a completion queue"));
            }
            // SAFETY: objects of ours.
            IBV_SRQT_XRC => Some(unsafe { (XrcdObject::of(init.xrcd, context)?, CqObject::of(init.cq)?) }),
            _ => return Err(unsupported("the device has no shared receive queues of this type")),
        };
        // SAFETY: what the verb demands of the program.
        unsafe { create(init.pd, init.srq_context, &mut init.attr, xrc) }
    })
}

unsafe fn create(
    pd: *mut ibv_pd,
    cookie: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(&XrcdObject, &CqObject)>,
) -> Result<*mut ibv_srq, Refused> {
    // SAFETY: a domain of ours.
    let (domain, context) = unsafe { PdObject::of(pd)? };
    // SAFETY: the domain's context.
    let owner = unsafe { Context::of(context)? };
    let srq = match xrc {
        None => domain.pd.create_srq(attr.max_wr, attr.max_sge)?,
        Some((xrcd, cq)) => domain.pd.create_xrc_srq(attr.max_wr, attr.max_sge, &xrcd.domain, &cq.cq)?,
    };
    let real = srq.query();
    (attr.max_wr, attr.max_sge) = (real.max_wr, real.max_sge);
    let id = srq.id();
    let mut abi = ibv_srq::zeroed();
    (abi.context, abi.srq_context, abi.pd) = (context, cookie, pd);
    abi.handle = id;
    let mut held = vec![owner.uses.hold(), domain.uses.hold()];
    held.extend(xrc.into_iter().flat_map(|(xrcd, cq)| [xrcd.uses.hold(), cq.uses.hold()]));
    let object = SrqObject { srq, acks: Acks::default(), uses: Uses::default(), _held: held };
    // SAFETY: a domain of ours.
    let made = Handle::publish_in(unsafe { PdObject::lender(pd) }, abi, object)?;
    owner.targets.lock().insert(EventSource::Srq(id), Target::Srq(made));
    Ok(made)
}

/// The number by which peers address an XRC queue.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    guard::number("ibv_get_srq_num", || {
        // SAFETY: a queue of ours, and NULL or memory for the result.
        let (object, out) =
            unsafe { (Handle::<SrqObject>::of(srq)?, number.as_mut().ok_or(invalid("srq_num is NULL"))?) };
        *out = object.srq.number().ok_or(invalid("only XRC queues have a number"))?.value();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    guard::number("ibv_modify_srq", || {
        // SAFETY: a queue of ours, and the program's attributes.
        let (object, attr) = unsafe {
            (
                LiveObject::<SrqObject>::of("ibv_modify_srq", srq)?,
                attr.as_ref().ok_or(invalid("srq_attr is NULL"))?,
            )
        };
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
        // SAFETY: a queue of ours, and NULL or memory for the result.
        let (object, out) = unsafe {
            (
                LiveObject::<SrqObject>::of("ibv_query_srq", srq)?,
                attr.as_mut().ok_or(invalid("srq_attr is NULL"))?,
            )
        };
        let now = object.srq.query();
        *out = ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit };
        Ok(())
    })
}
