//! The id's own shared receive queue.

use crate::abi::*;
use crate::guard::{self, Refused, invalid, made};
use crate::id::Id;
use crate::qp::{create_cqs, destroy_cqs};
use crate::verbs::*;
use std::ffi::c_int;
use std::ptr;

fn create(id: &Id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Refused> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(invalid("the type of the queue is not given"));
    }
    // SAFETY: the id's own structure.
    let abi = unsafe { &mut *id.abi() };
    if abi.verbs.is_null() {
        return Err(invalid("the id has no device yet; bind it or resolve an address"));
    }
    let lacks = |mask: u32, bit: u32, is_null: bool| mask & bit == 0 || is_null;
    if lacks(attr.comp_mask, IBV_SRQ_INIT_ATTR_PD, attr.pd.is_null()) {
        attr.pd = abi.pd;
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    if attr.srq_type == IBV_SRQT_XRC {
        if lacks(attr.comp_mask, IBV_SRQ_INIT_ATTR_XRCD, attr.xrcd.is_null()) {
            attr.xrcd = id.device.xrcd()?;
        }
        if lacks(attr.comp_mask, IBV_SRQ_INIT_ATTR_CQ, attr.cq.is_null()) {
            create_cqs(id, 0, attr.attr.max_wr)?;
            attr.cq = abi.recv_cq;
        }
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    }
    // SAFETY: an open context, and attributes.
    abi.srq = made(unsafe { create_srq_of(abi.verbs, attr) }).inspect_err(|_| destroy_cqs(id))?;
    if abi.pd.is_null() {
        abi.pd = attr.pd;
    }
    Ok(())
}

/// Destroys it.
pub(crate) fn destroy(id: &Id) {
    // SAFETY: the id's own structure, and its queue.
    unsafe {
        let srq = ptr::replace(&raw mut (*id.abi()).srq, ptr::null_mut());
        if !srq.is_null() {
            ibv_destroy_srq(srq);
        }
    }
    destroy_cqs(id);
}

pub(crate) unsafe extern "C" fn create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    guard::minus_one("rdma_create_srq_ex", || {
        // SAFETY: an id of ours, and the program's attributes.
        let (id, attr) = unsafe { (Id::of(id)?, attr.as_mut().ok_or(invalid("attr is NULL"))?) };
        create(id, attr)
    })
}

pub(crate) unsafe extern "C" fn create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    guard::minus_one("rdma_create_srq", || {
        // SAFETY: an id of ours, and the program's attributes.
        let (id, attr) = unsafe { (Id::of(id)?, attr.as_mut().ok_or(invalid("attr is NULL"))?) };
        let is_extended = id.qp_type() == IBV_QPT_XRC_RECV;
        let mut wanted = ibv_srq_init_attr_ex {
            srq_context: attr.srq_context,
            attr: attr.attr,
            comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
            srq_type: if is_extended { IBV_SRQT_XRC } else { IBV_SRQT_BASIC },
            pd,
            xrcd: ptr::null_mut(),
            cq: ptr::null_mut(),
            tm_cap: [0; 2],
        };
        let made = create(id, &mut wanted);
        attr.attr = wanted.attr;
        made
    })
}

pub(crate) unsafe extern "C" fn destroy_srq(id: *mut rdma_cm_id) {
    guard::quiet("rdma_destroy_srq", || {
        // SAFETY: an id of ours.
        destroy(unsafe { Id::of(id)? });
        Ok(())
    });
}
