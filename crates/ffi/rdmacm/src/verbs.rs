//! libibverbs.so.1, as this library calls it: by symbol, or through the tables of a context, as the inline verbs do.

use crate::abi::*;
use std::ffi::{c_int, c_void};

unsafe extern "C" {
    pub(crate) fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    pub(crate) fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub(crate) fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub(crate) fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub(crate) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(crate) fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    pub(crate) fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(crate) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub(crate) fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;
    pub(crate) fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub(crate) fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub(crate) fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub(crate) fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub(crate) fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(crate) fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(crate) fn ibv_query_gid(
        context: *mut ibv_context,
        port: u8,
        index: c_int,
        gid: *mut ibv_gid,
    ) -> c_int;
    pub(crate) fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
}

/// The tables of a context of ours.
///
/// # Safety
/// An open context of ferroce's libibverbs.
unsafe fn tables<'a>(context: *mut ibv_context) -> &'a verbs_context {
    // SAFETY: as the caller promises; each of them is the tail of a `verbs_context`.
    unsafe { &*verbs_context::around(context) }
}

/// An operation of the tables; a missing one returns an error.
macro_rules! operation {
    ($name:ident, $slot:ident, $attr:ty, $made:ty) => {
        /// # Safety
        /// What the verb demands.
        pub(crate) unsafe fn $name(context: *mut ibv_context, attr: *mut $attr) -> *mut $made {
            // SAFETY: as the caller promises.
            match unsafe { tables(context) }.$slot {
                // SAFETY: as the caller promises.
                Some(call) => unsafe { call(context, attr) },
                None => {
                    crate::guard::set_errno(libc::EOPNOTSUPP);
                    std::ptr::null_mut()
                }
            }
        }
    };
}

operation!(create_qp_of, create_qp_ex, ibv_qp_init_attr_ex, ibv_qp);
operation!(create_srq_of, create_srq_ex, ibv_srq_init_attr_ex, ibv_srq);
operation!(open_xrcd, open_xrcd, ibv_xrcd_init_attr, ibv_xrcd);

/// # Safety
/// A domain of ours that is not used afterwards.
pub(crate) unsafe fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { tables((*xrcd).context) }.close_xrcd {
        // SAFETY: as the caller promises.
        Some(call) => unsafe { call(xrcd) },
        None => libc::EOPNOTSUPP,
    }
}
