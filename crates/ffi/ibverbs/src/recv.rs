//! Posting receives, to a queue pair or to a shared queue.

use crate::abi::*;
use crate::errno::Refused;
use crate::guard::post_with;
use crate::handle::Handle;
use crate::qp::QpObject;
use crate::send::entries;
use crate::srq::SrqObject;
use ferroce_proto::qp::PostError;
use ferroce_proto::verbs::RecvWr;
use std::ffi::c_int;

/// Posts one request.
type Post<'a> = dyn FnMut(&RecvWr<'_>) -> Result<(), PostError> + 'a;

/// Posts the list from `at` on, up to the first refused request.
///
/// # Safety
/// The program's list.
#[inline(always)]
pub(crate) unsafe fn post_list(at: &mut *mut ibv_recv_wr, post: &mut Post<'_>) -> Result<(), Box<Refused>> {
    // SAFETY: the program's list; the end is NULL.
    while let Some(wr) = unsafe { at.as_ref() } {
        // SAFETY: as above.
        let sges = unsafe { entries(wr.sg_list, wr.num_sge)? };
        post(&RecvWr { wr_id: wr.wr_id, sges })?;
        *at = wr.next;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: what the verb demands of the program.
    unsafe {
        post_with("ibv_post_recv", list, bad, |at| {
            let qp = &QpObject::of(qp)?.qp;
            let posted = qp.post_recv_each(|post| post_list(at, post))?;
            posted.map_err(|refused| Box::new(refused.by_qp(qp.qpn())))
        })
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: what the verb demands of the program.
    unsafe {
        post_with("ibv_post_srq_recv", list, bad, |at| {
            Handle::<SrqObject>::of(srq)?.srq.post_recv_each(|post| post_list(at, post))?
        })
    }
}
