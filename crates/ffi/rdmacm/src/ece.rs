//! Enhanced connection establishment (ECE): vendor options that programs with their own queue pairs negotiate.
//!
//! A queue pair of ferroce has no vendor options, and neither has an id with such a queue pair.

use crate::abi::*;
use crate::guard::{self, invalid};
use crate::id::Id;
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    guard::minus_one("rdma_set_local_ece", || {
        // SAFETY: an id of ours, and the program's options.
        let (id, ece) = unsafe { (Id::of(id)?, ece.as_ref().ok_or(invalid("ece is NULL"))?) };
        if !id.qp().is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(invalid("the id has a queue pair, or the options name no vendor"));
        }
        id.state.lock().local_ece = [ece.vendor_id, ece.options];
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    guard::minus_one("rdma_get_remote_ece", || {
        // SAFETY: an id of ours, and NULL or memory for the options.
        let (id, ece) = unsafe { (Id::of(id)?, ece.as_mut().ok_or(invalid("ece is NULL"))?) };
        if !id.qp().is_null() {
            return Err(invalid("the id has a queue pair, so the options are not the program's"));
        }
        let [vendor_id, options] = id.state.lock().remote_ece;
        *ece = ibv_ece { vendor_id, options, comp_mask: 0 };
        Ok(())
    })
}
