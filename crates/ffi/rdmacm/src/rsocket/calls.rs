//! The public calls that sockets use: those of this library, and the verbs. None of them is specific to ferroce.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::*;
pub(crate) use crate::address::{bind_addr as rdma_bind_addr, resolve_addr as rdma_resolve_addr};
pub(crate) use crate::channel::{
    create_event_channel as rdma_create_event_channel, destroy_event_channel as rdma_destroy_event_channel,
    migrate_id as rdma_migrate_id,
};
pub(crate) use crate::connect::{
    accept as rdma_accept, connect as rdma_connect, disconnect as rdma_disconnect, reject as rdma_reject,
};
pub(crate) use crate::event::{ack_cm_event as rdma_ack_cm_event, get_cm_event as rdma_get_cm_event};
pub(crate) use crate::id::{create_id as rdma_create_id, destroy_id as rdma_destroy_id};
pub(crate) use crate::listen::listen as rdma_listen;
pub(crate) use crate::options::set_option as rdma_set_option;
pub(crate) use crate::qp::{create_qp as rdma_create_qp, destroy_qp as rdma_destroy_qp};
pub(crate) use crate::route::resolve_route as rdma_resolve_route;
pub(crate) use crate::verbs::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq, ibv_query_device,
};

pub(crate) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(crate) const SEND_INLINE: u32 = 1 << 3;
pub(crate) const WC_WITH_IMM: u32 = 1 << 1;

unsafe extern "C" {
    pub(crate) fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        context: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
    pub(crate) fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int)
    -> *mut ibv_mr;
    pub(crate) fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    pub(crate) fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    pub(crate) fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub(crate) fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
}

/// A scatter/gather entry with the layout of `ibv_sge`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// Calls an operation of the table in an object's context, unless the slot is NULL.
macro_rules! operation {
    ($object:ident, $slot:ident($($argument:expr),*)) => {
        (*(*$object).context).ops.$slot.map(|call| call($object $(, $argument)*))
    };
}

/// `ibv_poll_cq`, which is a pointer in the context.
///
/// # Safety
/// The queue lives.
pub(crate) unsafe fn poll_cq(cq: *mut ibv_cq, into: &mut [ibv_wc]) -> c_int {
    // SAFETY: a live queue has a live context, whose table does not change.
    unsafe { operation!(cq, poll_cq(into.len() as c_int, into.as_mut_ptr())).unwrap_or(-1) }
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// The queue lives.
pub(crate) unsafe fn request_notify(cq: *mut ibv_cq, solicited_only: bool) -> c_int {
    // SAFETY: as in `poll_cq`.
    unsafe { operation!(cq, req_notify_cq(solicited_only.into())).unwrap_or(libc::EOPNOTSUPP) }
}

/// `ibv_post_send` of one request.
///
/// # Safety
/// The queue pair lives, and the pointers of the request are valid.
pub(crate) unsafe fn post_send(qp: *mut ibv_qp, request: &mut ibv_send_wr) -> c_int {
    // SAFETY: as in `poll_cq`, and what the caller promises.
    unsafe { operation!(qp, post_send(request, &mut std::ptr::null_mut())).unwrap_or(libc::EOPNOTSUPP) }
}

/// `ibv_post_recv` of a list.
///
/// # Safety
/// The queue pair lives, and the pointers of the requests are valid.
pub(crate) unsafe fn post_recv(qp: *mut ibv_qp, request: *mut ibv_recv_wr) -> c_int {
    // SAFETY: as in `poll_cq`, and what the caller promises.
    unsafe { operation!(qp, post_recv(request, &mut std::ptr::null_mut())).unwrap_or(libc::EOPNOTSUPP) }
}
