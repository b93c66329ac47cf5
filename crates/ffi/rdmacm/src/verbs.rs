//! libibverbs.so.1, as this library calls it.

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
    pub(crate) fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub(crate) fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub(crate) fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub(crate) fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub(crate) fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub(crate) fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(crate) fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(crate) fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    pub(crate) fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    pub(crate) fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
}
