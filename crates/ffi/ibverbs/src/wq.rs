//! Work queues, and tables of work queues over which a queue pair spreads raw packets (RSS).

use crate::abi::*;
use crate::context::Context;
use crate::cq::CqObject;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard::{self, post_with};
use crate::handle::{Handle, Use, Uses, object, store_word};
use crate::pd::PdObject;
use crate::recv::post_list;
use ferroce_nic::{MAX_SPREAD, WorkQueue, WqState};
use std::ffi::c_int;
use std::sync::Arc;

/// A work queue.
pub(crate) struct WqObject {
    wq: Arc<WorkQueue>,
    uses: Uses,
    _held: [Use; 3],
}

object!(WqObject, ibv_wq, "ibv_destroy_wq", "a table still has the work queue");

pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    init: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    guard::pointer("ibv_create_wq", || {
        // SAFETY: a context of ours, and the program's attributes.
        let (owner, init) =
            unsafe { (Context::of(context)?, init.as_ref().ok_or(invalid("wq_init_attr is NULL"))?) };
        // SAFETY: objects of ours.
        let ((domain, made_in), cq) = unsafe { (PdObject::of(init.pd)?, CqObject::of(init.cq)?) };
        if made_in != context || init.wq_type != IBV_WQT_RQ {
            return Err(invalid("a domain of another context, or a type other than a receive queue"));
        }
        let has_flags = init.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 && init.create_flags != 0;
        if init.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0 {
            return Err(unsupported("comp_mask asks for something that the device does not have"));
        }
        if has_flags {
            return Err(unsupported("create_flags that the device does not have"));
        }
        let wq = domain.pd.create_wq(init.max_wr, init.max_sge, &cq.cq)?;
        let mut abi = ibv_wq::zeroed();
        (abi.context, abi.wq_context, abi.pd, abi.cq) = (context, init.wq_context, init.pd, init.cq);
        (abi.wq_num, abi.handle, abi.wq_type) = (wq.number(), wq.number(), init.wq_type);
        abi.post_recv = Some(post_wq_recv);
        let held = [owner.uses.hold(), domain.uses.hold(), cq.uses.hold()];
        Ok(Handle::publish(abi, WqObject { wq: Arc::new(wq), uses: Uses::default(), _held: held }))
    })
}

fn state(code: u32) -> Result<WqState, Refused> {
    match code {
        0 => Ok(WqState::Reset),
        1 => Ok(WqState::Ready),
        2 => Ok(WqState::Error),
        _ => Err(invalid("no such state of a work queue")),
    }
}

pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    guard::number("ibv_modify_wq", || {
        // SAFETY: a queue of ours, and the program's attributes.
        let (object, attr) =
            unsafe { (Handle::<WqObject>::of(wq)?, attr.as_ref().ok_or(invalid("wq_attr is NULL"))?) };
        if attr.attr_mask & !(IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE) != 0 {
            return Err(unsupported("attr_mask names what the device does not have"));
        }
        if attr.attr_mask & IBV_WQ_ATTR_CURR_STATE != 0 && state(attr.curr_wq_state)? != object.wq.state() {
            return Err(invalid("the work queue is in another state"));
        }
        if attr.attr_mask & IBV_WQ_ATTR_STATE != 0 {
            object.wq.modify(state(attr.wq_state)?)?;
            // SAFETY: the queue's own structure.
            unsafe { store_word(&raw mut (*wq).state, attr.wq_state) };
        }
        Ok(())
    })
}

unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: what the verb demands of the program.
    unsafe {
        post_with("ibv_post_wq_recv", list, bad, |at| {
            Handle::<WqObject>::of(wq)?.wq.post_recv_each(|post| post_list(at, post))?
        })
    }
}

/// A table of work queues.
pub(crate) struct TableObject {
    pub(crate) queues: Vec<Arc<WorkQueue>>,
    /// The completion queue of the first one. The queue pair needs one, too.
    pub(crate) cq: *mut ibv_cq,
    pub(crate) uses: Uses,
    _held: Vec<Use>,
}

object!(
    TableObject,
    ibv_rwq_ind_table,
    "ibv_destroy_rwq_ind_table",
    "a queue pair still spreads over the table"
);

pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    guard::pointer("ibv_create_rwq_ind_table", || {
        // SAFETY: a context of ours, and the program's attributes.
        let (owner, init) =
            unsafe { (Context::of(context)?, init.as_ref().ok_or(invalid("init_attr is NULL"))?) };
        let size = 1usize.checked_shl(init.log_ind_tbl_size).filter(|size| *size <= MAX_SPREAD);
        let size = size.ok_or(invalid("log_ind_tbl_size is beyond the device's"))?;
        if init.comp_mask != 0 || init.ind_tbl.is_null() {
            return Err(invalid("unknown bits of comp_mask, or no table"));
        }
        // SAFETY: the program's table has 2^`log_ind_tbl_size` entries.
        let entries = unsafe { std::slice::from_raw_parts(init.ind_tbl, size) };
        let (mut queues, mut held) = (Vec::with_capacity(size), vec![owner.uses.hold()]);
        for wq in entries {
            // SAFETY: work queues of ours.
            let object = unsafe { Handle::<WqObject>::of(*wq)? };
            queues.push(object.wq.clone());
            held.push(object.uses.hold());
        }
        // SAFETY: as above.
        let cq = unsafe { (*entries[0]).cq };
        let abi = ibv_rwq_ind_table { context, ind_tbl_handle: 0, ind_tbl_num: 0, comp_mask: 0 };
        Ok(Handle::publish(abi, TableObject { queues, cq, uses: Uses::default(), _held: held }))
    })
}
