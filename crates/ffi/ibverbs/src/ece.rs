//! Enhanced connection establishment: vendor options that both ends negotiate. ferroce has none.

use crate::abi::{ibv_ece, ibv_qp};
use crate::errno::{invalid, unsupported};
use crate::guard;
use crate::qp::QpObject;
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    guard::number("ibv_set_ece", || {
        // SAFETY: a queue pair of ours, and the program's options.
        let (_, ece) = unsafe { (QpObject::of(qp)?, ece.as_ref().ok_or(invalid("ece is NULL"))?) };
        // No vendor means no options, which is true here.
        if ece.vendor_id == 0 { Ok(()) } else { Err(unsupported("options of a vendor")) }
    })
}

pub(crate) unsafe extern "C" fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    guard::number("ibv_query_ece", || {
        // SAFETY: a queue pair of ours, and room for the options.
        let (_, out) = unsafe { (QpObject::of(qp)?, ece.as_mut().ok_or(invalid("ece is NULL"))?) };
        *out = ibv_ece::default();
        // As every NIC without options: programs then omit them from requests.
        Err(unsupported("options of a vendor"))
    })
}

/// Whether the bytes of an operation arrive in order: no guarantee.
pub(crate) unsafe extern "C" fn query_qp_data_in_order(_qp: *mut ibv_qp, _op: u32, _flags: u32) -> c_int {
    0
}
