//! Shared receive queues.

use super::*;
use libc::{pthread_cond_t, pthread_mutex_t};
use std::ffi::c_void;

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}
layout!(ibv_srq_init_attr, 24, attr = 8);

/// Starts with the fields of [`ibv_srq_init_attr`], whose padding `comp_mask` fills.
#[repr(C)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: [u32; 2],
}
layout!(ibv_srq_init_attr_ex, 64, attr = 8, comp_mask = 20, srq_type = 24, pd = 32, xrcd = 40, cq = 48);

pub const IBV_SRQ_INIT_ATTR_TYPE: u32 = 1;
pub const IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1;
pub const IBV_SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
pub const IBV_SRQ_INIT_ATTR_CQ: u32 = 1 << 3;
pub const IBV_SRQT_BASIC: u32 = 0;
pub const IBV_SRQT_XRC: u32 = 1;

pub const IBV_SRQ_MAX_WR: u32 = 1;
pub const IBV_SRQ_LIMIT: u32 = 1 << 1;

#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
layout!(ibv_srq, 128, handle = 24, mutex = 32, events_completed = 120);
zeroed!(ibv_srq);
