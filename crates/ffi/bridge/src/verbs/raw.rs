//! Flows, their counters, work queues and tables of them.

use super::*;
use libc::{pthread_cond_t, pthread_mutex_t};
use std::ffi::c_void;

pub const IBV_FLOW_ATTR_NORMAL: u32 = 0;
pub const IBV_FLOW_ATTR_ALL_DEFAULT: u32 = 1;
pub const IBV_FLOW_ATTR_MC_DEFAULT: u32 = 2;
pub const IBV_FLOW_ATTR_SNIFFER: u32 = 3;
pub const IBV_FLOW_ATTR_FLAGS_DONT_TRAP: u32 = 1 << 1;

pub const IBV_FLOW_SPEC_ETH: u32 = 0x20;
pub const IBV_FLOW_SPEC_IPV4: u32 = 0x30;
pub const IBV_FLOW_SPEC_IPV6: u32 = 0x31;
pub const IBV_FLOW_SPEC_IPV4_EXT: u32 = 0x32;
pub const IBV_FLOW_SPEC_TCP: u32 = 0x40;
pub const IBV_FLOW_SPEC_UDP: u32 = 0x41;
pub const IBV_FLOW_SPEC_ACTION_TAG: u32 = 0x1000;
pub const IBV_FLOW_SPEC_ACTION_DROP: u32 = 0x1001;
pub const IBV_FLOW_SPEC_ACTION_COUNT: u32 = 0x1003;

/// Specifications of various lengths follow it. Each begins with its type and its length.
#[repr(C)]
pub struct ibv_flow_attr {
    pub comp_mask: u32,
    pub r#type: u32,
    pub size: u16,
    pub priority: u16,
    pub num_of_specs: u8,
    pub port: u8,
    pub flags: u32,
}
layout!(ibv_flow_attr, 20, size = 8, priority = 10, num_of_specs = 12, port = 13, flags = 16);

#[repr(C)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}
layout!(ibv_flow, 24, context = 8, handle = 16);

#[repr(C)]
pub struct ibv_counters_init_attr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_counters {
    pub context: *mut ibv_context,
}

pub const IBV_COUNTER_PACKETS: u32 = 0;
pub const IBV_COUNTER_BYTES: u32 = 1;

#[repr(C)]
pub struct ibv_counter_attach_attr {
    pub counter_desc: u32,
    pub index: u32,
    pub comp_mask: u32,
}

pub const IBV_WQT_RQ: u32 = 0;
pub const IBV_WQ_INIT_ATTR_FLAGS: u32 = 1;
pub const IBV_WQ_ATTR_STATE: u32 = 1;
pub const IBV_WQ_ATTR_CURR_STATE: u32 = 1 << 1;

#[repr(C)]
pub struct ibv_wq_init_attr {
    pub wq_context: *mut c_void,
    pub wq_type: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub comp_mask: u32,
    pub create_flags: u32,
}
layout!(ibv_wq_init_attr, 48, max_wr = 12, pd = 24, cq = 32, create_flags = 44);

#[repr(C)]
pub struct ibv_wq_attr {
    pub attr_mask: u32,
    pub wq_state: u32,
    pub curr_wq_state: u32,
    pub flags: u32,
    pub flags_mask: u32,
}

#[repr(C)]
pub struct ibv_wq {
    pub context: *mut ibv_context,
    pub wq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub wq_num: u32,
    pub handle: u32,
    pub state: u32,
    pub wq_type: u32,
    pub post_recv: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32>,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
    pub comp_mask: u32,
}
layout!(ibv_wq, 152, wq_num = 32, state = 40, post_recv = 48, mutex = 56, comp_mask = 148);
zeroed!(ibv_wq);

#[repr(C)]
pub struct ibv_rwq_ind_table_init_attr {
    pub log_ind_tbl_size: u32,
    pub ind_tbl: *mut *mut ibv_wq,
    pub comp_mask: u32,
}
layout!(ibv_rwq_ind_table_init_attr, 24, ind_tbl = 8, comp_mask = 16);

#[repr(C)]
pub struct ibv_rwq_ind_table {
    pub context: *mut ibv_context,
    pub ind_tbl_handle: i32,
    pub ind_tbl_num: i32,
    pub comp_mask: u32,
}
layout!(ibv_rwq_ind_table, 24, ind_tbl_num = 12);

pub const IBV_RX_HASH_FUNC_TOEPLITZ: u8 = 1;
