//! Posting receives, to a queue pair or to a shared queue.

use crate::abi::*;
use crate::errno::Refused;
use crate::guard;
use crate::handle::Handle;
use crate::qp::QpObject;
use crate::send::entries;
use crate::srq::SrqObject;
use ferroce_nic::Error;
use ferroce_proto::qp::PostError;
use ferroce_proto::verbs::RecvWr;
use std::ffi::c_int;

/// How one request is posted.
type Post<'a> = dyn FnMut(&RecvWr<'_>) -> Result<(), PostError> + 'a;

/// The result of the call, and within it that of the list.
type Outcome = Result<Result<(), Box<Refused>>, Error>;

/// Posts the list from `at` on, up to the first refused request.
///
/// # Safety
/// The program's list.
#[inline(always)]
pub(crate) unsafe fn post_list(at: &mut *mut ibv_recv_wr, post: &mut Post<'_>) -> Result<(), Box<Refused>> {
    // SAFETY: the program's list; the end is NULL.
    while let Some(wr) = unsafe { at.as_ref() } {
        // SAFETY: as above.
        let sges = unsafe { entries(wr.sg_list, wr.num_sge) }.map_err(Box::new)?;
        post(&RecvWr { wr_id: wr.wr_id, sges }).map_err(|error| Box::new(error.into()))?;
        *at = wr.next;
    }
    Ok(())
}

/// Walks the list with `take`, and reports the request at which it stopped to the program.
///
/// # Safety
/// The program's list, and room for a pointer or NULL.
#[inline(always)]
pub(crate) unsafe fn post_with(
    verb: &'static str,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    take: impl FnOnce(&mut *mut ibv_recv_wr) -> Result<Outcome, Refused>,
) -> c_int {
    let mut at = list;
    let posted = guard::hot(verb, || {
        let outcome = match take(&mut at) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Err(Box::new(error.into())),
            Err(refused) => Err(Box::new(refused)),
        };
        let Err(refused) = outcome else { return 0 };
        if !bad.is_null() {
            // SAFETY: the program gives room for the pointer.
            unsafe { *bad = at };
        }
        guard::refuse(verb, *refused)
    });
    posted.unwrap_or_else(|number| number)
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: what the verb demands of the program.
    unsafe {
        post_with("ibv_post_recv", list, bad, |at| {
            Ok(QpObject::of(qp)?.qp.post_recv_each(|post| post_list(at, post)))
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
            Ok(Handle::<SrqObject>::of(srq)?.srq.post_recv_each(|post| post_list(at, post)))
        })
    }
}
