//! Asynchronous events and completion channels.

use super::*;

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_async_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub port_num: i32,
}

#[repr(C)]
pub struct ibv_async_event {
    pub element: ibv_async_element,
    pub event_type: u32,
}
layout!(ibv_async_event, 16, event_type = 8);

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: i32,
    pub refcnt: i32,
}
layout!(ibv_comp_channel, 16, fd = 8);
