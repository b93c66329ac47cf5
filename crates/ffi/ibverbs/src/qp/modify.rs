//! Modifying and querying a queue pair.

use super::QpObject;
use super::attr::{reported, wanted};
use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid};
use crate::guard;
use crate::handle::store_word;
use ferroce_proto::verbs::AttrMask;
use std::ffi::c_int;

/// The attributes that a program may set on iWARP.
const ON_IWARP: AttrMask =
    AttrMask::STATE.union(AttrMask::CUR_STATE).union(AttrMask::PORT).union(AttrMask::ACCESS_FLAGS);

pub(crate) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    guard::number("ibv_modify_qp", || {
        // SAFETY: a queue pair of ours, and the program's attributes.
        let (object, attr) =
            unsafe { (QpObject::live("ibv_modify_qp", qp)?, attr.as_ref().ok_or(invalid("attr is NULL"))?) };
        // Unknown bits stay set: the state table refuses them.
        let mask = AttrMask::from_bits_retain(mask as u32);
        // SAFETY: the queue pair's own structure, and its context.
        let context = unsafe { Context::of((*qp).context)? };
        // The values of other attributes are not read on iWARP. `modify` below refuses their bits, with the reason.
        let meant = if context.is_iwarp() { mask & ON_IWARP } else { mask };
        let wanted = wanted(attr, meant, &context.nic).map_err(|refused| refused.by_qp(object.qp.qpn()))?;
        object.qp.modify(&wanted, mask).map_err(|error| Refused::from(error).by_qp(object.qp.qpn()))?;
        crate::recorded::modified(&object, &context.nic, mask);
        if mask.contains(AttrMask::STATE) {
            // SAFETY: the queue pair's own structure.
            unsafe { store_word(&raw mut (*qp).state, attr.qp_state) };
        }
        Ok(())
    })
}

/// Returns all attributes and ignores the mask.
pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard::number("ibv_query_qp", || {
        // SAFETY: a queue pair of ours.
        let object = unsafe { QpObject::live("ibv_query_qp", qp)? };
        if attr.is_null() || init.is_null() {
            return Err(invalid("no room for the attributes"));
        }
        let now = reported(&object.qp.query());
        // SAFETY: the queue pair's own structure, and memory that the program provides.
        unsafe {
            store_word(&raw mut (*qp).state, now.qp_state);
            init.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: now.cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: object.signal_all.into(),
            });
            attr.write(now);
        }
        Ok(())
    })
}
