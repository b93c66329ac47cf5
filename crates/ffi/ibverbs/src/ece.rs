//! Enhanced connection establishment (ECE): vendor options that both ends negotiate. ferroce has none.

use crate::abi::{ibv_ece, ibv_qp};
use crate::errno::{invalid, unsupported};
use crate::guard;
use crate::qp::QpObject;
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    guard::number("ibv_set_ece", || {
        // SAFETY: a queue pair of ours, and the program's options.
        let (_, ece) = unsafe { (QpObject::of(qp)?, ece.as_ref().ok_or(invalid("ece is NULL"))?) };
        // Vendor 0 means no options, which ferroce supports.
        if ece.vendor_id == 0 { Ok(()) } else { Err(unsupported("options of a vendor")) }
    })
}

pub(crate) unsafe extern "C" fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    guard::number("ibv_query_ece", || {
        // SAFETY: a queue pair of ours, and NULL or memory for the result.
        let (_, out) = unsafe { (QpObject::of(qp)?, ece.as_mut().ok_or(invalid("ece is NULL"))?) };
        *out = ibv_ece::default();
        // The error of every NIC without options: programs then omit them from requests.
        Err(unsupported("options of a vendor"))
    })
}

/// Returns 0: there is no guarantee that the bytes of an operation arrive in order.
pub(crate) unsafe extern "C" fn query_qp_data_in_order(_qp: *mut ibv_qp, _op: u32, _flags: u32) -> c_int {
    0
}
