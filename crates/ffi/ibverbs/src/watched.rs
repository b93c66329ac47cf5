//! The verbs with a check of their object, for `ferroce run --explain=strict`. The object must live, and no other thread may
//! destroy it during the verb.
//!
//! The checking verbs for posting and polling replace the usual ones in the tables; other verbs use a [`LiveObject`]. The memory of
//! a destroyed object is kept for a while, since inline verbs read the object before they call this library. Without the option,
//! the data path executes no instruction of this file.
//!
//! The calls of an `ibv_cq_ex` or `ibv_qp_ex` go through its own function pointers, which its destruction replaces.

use crate::abi::*;
use crate::cq::CqObject;
use crate::errno::Refused;
use crate::handle::{Handle, Object};
use crate::live::{self, Caller};
use crate::qp::QpObject;
use crate::srq::SrqObject;
use std::ffi::c_int;
use std::ops::Deref;
use std::sync::OnceLock;

/// The usual verbs, which the checking verbs call.
static INNER: OnceLock<ibv_context_ops> = OnceLock::new();

/// Puts the checking verbs into a context's table.
pub(crate) fn fill(ops: &mut ibv_context_ops, is_watched: bool) {
    if !is_watched {
        return;
    }
    INNER.get_or_init(|| *ops);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
}

/// Whether the checking verbs are in a table.
pub(crate) fn is_on() -> bool {
    INNER.get().is_some()
}

/// This thread, which calls a verb on the object at an address.
pub(crate) fn caller(verb: &'static str, address: usize) -> Caller {
    // SAFETY: returns the number of this thread; cannot fail.
    Caller { address, verb, thread: unsafe { libc::gettid() } }
}

/// Runs a verb on an object; `None` if it does not live.
fn inside<T: Object + 'static, R>(
    verb: &'static str,
    address: usize,
    call: impl FnOnce(&ibv_context_ops) -> R,
) -> Option<R> {
    let caller = caller(verb, address);
    if let Err(why) = live::begin::<T>(caller) {
        ferroce_nic::log_misuse(format_args!("{verb}: {why}"));
        crate::errno::set(libc::EINVAL);
        return None;
    }
    let result = INNER.get().map(call);
    live::end(caller);
    result
}

/// An object that a verb uses. While it is watched, no thread destroys it.
pub(crate) struct LiveObject<'a, T: Object> {
    object: &'a T,
    caller: Option<Caller>,
}

impl<'a, T: Object + 'static> LiveObject<'a, T> {
    /// The object behind a pointer, for verbs off the data path. Refuses NULL, and with `--explain=strict` an object that does not live.
    ///
    /// # Safety
    /// As for [`Handle::of`].
    pub(crate) unsafe fn of(verb: &'static str, abi: *mut T::Abi) -> Result<LiveObject<'a, T>, Refused> {
        let caller = (is_on() && !abi.is_null()).then(|| caller(verb, abi.addr()));
        caller.map_or(Ok(()), live::begin::<T>).map_err(Refused::Destroyed)?;
        // SAFETY: as the caller promises.
        let object = unsafe { Handle::of(abi) }.inspect_err(|_| caller.into_iter().for_each(live::end))?;
        Ok(LiveObject { object, caller })
    }
}

impl<T: Object> Deref for LiveObject<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.object
    }
}

impl<T: Object> Drop for LiveObject<'_, T> {
    fn drop(&mut self) {
        self.caller.into_iter().for_each(live::end);
    }
}

/// Reports a call through a function pointer of a destroyed structure.
pub(crate) fn refuse_destroyed<T: Object + 'static>(verb: &'static str, address: usize) -> c_int {
    inside::<T, _>(verb, address, |_| ());
    libc::EINVAL
}

/// Waits for threads that are inside a verb on an object that this thread destroys, and reports one of them. The object was removed
/// with [`live::leave`], so no further verb begins.
pub(crate) fn destroying(verb: &'static str, address: usize) {
    let Some(other) = live::inside(address) else { return };
    ferroce_nic::log_misuse(format_args!(
        "{verb}: thread {} destroys the object at {address:#x} while thread {} uses it in {}. On hardware that thread reads freed memory; destroy an \
         object only after every thread has stopped using it",
        caller(verb, address).thread,
        other.thread,
        other.verb
    ));
    while live::inside(address).is_some() {
        std::thread::sleep(live::RETRY_EVERY);
    }
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, list: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: what the verb demands of the program.
    let call =
        |ops: &ibv_context_ops| unsafe { ops.post_send.map_or(libc::EOPNOTSUPP, |post| post(qp, list, bad)) };
    inside::<QpObject, _>("ibv_post_send", qp.addr(), call).unwrap_or_else(|| refuse(list, bad))
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, list: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: what the verb demands of the program.
    let call =
        |ops: &ibv_context_ops| unsafe { ops.post_recv.map_or(libc::EOPNOTSUPP, |post| post(qp, list, bad)) };
    inside::<QpObject, _>("ibv_post_recv", qp.addr(), call).unwrap_or_else(|| refuse(list, bad))
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: what the verb demands of the program.
    let call = |ops: &ibv_context_ops| unsafe {
        ops.post_srq_recv.map_or(libc::EOPNOTSUPP, |post| post(srq, list, bad))
    };
    inside::<SrqObject, _>("ibv_post_srq_recv", srq.addr(), call).unwrap_or_else(|| refuse(list, bad))
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: what the verb demands of the program.
    let call = |ops: &ibv_context_ops| unsafe { ops.poll_cq.map_or(-1, |poll| poll(cq, count, wc)) };
    inside::<CqObject, _>("ibv_poll_cq", cq.addr(), call).unwrap_or(-1)
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: what the verb demands of the program.
    let call = |ops: &ibv_context_ops| unsafe {
        ops.req_notify_cq.map_or(libc::EOPNOTSUPP, |arm| arm(cq, solicited_only))
    };
    inside::<CqObject, _>("ibv_req_notify_cq", cq.addr(), call).unwrap_or(libc::EINVAL)
}

/// Refuses a list: its first request is the bad one.
fn refuse<W>(list: *mut W, bad: *mut *mut W) -> c_int {
    if !bad.is_null() {
        // SAFETY: not NULL, so the program provides memory for the pointer.
        unsafe { *bad = list };
    }
    libc::EINVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_destroys_an_object_waits_for_the_threads_that_use_it() {
        let abi: *mut ibv_qp_ex = std::ptr::without_provenance_mut(0x1230);
        let caller = Caller { address: 0x1230, verb: "ibv_post_send", thread: 7 };
        live::enter::<QpObject>(abi);
        assert_eq!(live::begin::<QpObject>(caller), Ok(()));
        assert!(live::begin::<SrqObject>(caller).is_err(), "it is a queue pair");
        live::begin_destroy::<QpObject>(abi).expect("it lives");
        live::leave(0x1230);
        let other = std::thread::spawn(|| {
            destroying("ibv_destroy_qp", 0x1230);
            live::inside(0x1230)
        });
        assert!(!other.is_finished() && live::inside(0x1230) == Some(caller));
        live::end(caller);
        assert_eq!(other.join().expect("no panic"), None);
        live::remember(Caller { thread: 12, verb: "ibv_destroy_qp", ..caller }, None);
        let why = live::begin::<QpObject>(caller).expect_err("no object");
        assert!(why.contains("thread 12 has destroyed with ibv_destroy_qp"), "{why}");
    }
}
