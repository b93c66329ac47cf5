//! Posting receives, to a queue pair or to a shared queue.

use crate::abi::*;
use crate::errno::Refused;
use crate::guard;
use crate::handle::Handle;
use crate::qp::QpObject;
use crate::send::entries;
use crate::srq::SrqObject;
use ferroce_proto::qp::PostError;
use ferroce_proto::verbs::RecvWr;
use std::ffi::c_int;

/// Hands over the list from `at` on, which stops at the request that was refused.
///
/// # Safety
/// The program's list.
pub(crate) unsafe fn post_list(
    at: &mut *mut ibv_recv_wr,
    post: &mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>,
) -> Result<(), Refused> {
    // SAFETY: the program's list; the end is NULL.
    while let Some(wr) = unsafe { at.as_ref() } {
        // SAFETY: as above.
        let sges = unsafe { entries(wr.sg_list, wr.num_sge)? };
        post(&RecvWr { wr_id: wr.wr_id, sges })?;
        *at = wr.next;
    }
    Ok(())
}

unsafe fn report(outcome: &Result<(), Refused>, at: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) {
    if outcome.is_err() && !bad.is_null() {
        // SAFETY: the program gives room for the pointer.
        unsafe { *bad = at };
    }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = list;
    guard::number("ibv_post_recv", || {
        // SAFETY: a queue pair of ours.
        let object = unsafe { QpObject::of(qp)? };
        // SAFETY: the program's list.
        let outcome = object.qp.post_recv_each(|post| unsafe { post_list(&mut at, post) });
        let outcome = outcome.map_err(Refused::from).flatten();
        // SAFETY: as the verb demands.
        unsafe { report(&outcome, at, bad) };
        outcome
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = list;
    guard::number("ibv_post_srq_recv", || {
        // SAFETY: a queue of ours.
        let object = unsafe { Handle::<SrqObject>::of(srq)? };
        // SAFETY: the program's list.
        let outcome = object.srq.post_recv_each(|post| unsafe { post_list(&mut at, post) });
        let outcome = outcome.map_err(Refused::from).flatten();
        // SAFETY: as the verb demands.
        unsafe { report(&outcome, at, bad) };
        outcome
    })
}
