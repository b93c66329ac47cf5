//! Completion queues.

use super::*;
use libc::{pthread_cond_t, pthread_mutex_t};
use std::ffi::c_void;

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: i32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
layout!(ibv_cq, 128, cq_context = 16, handle = 24, cqe = 28, mutex = 32, comp_events_completed = 120);
zeroed!(ibv_cq);

#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

type Read<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

/// Its head is an `ibv_cq`; every completion queue allocates the whole structure.
#[repr(C)]
pub struct ibv_cq_ex {
    pub base: ibv_cq,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> i32>,
    pub next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> i32>,
    pub end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub read_opcode: Read<u32>,
    pub read_vendor_err: Read<u32>,
    pub read_byte_len: Read<u32>,
    pub read_imm_data: Read<u32>,
    pub read_qp_num: Read<u32>,
    pub read_src_qp: Read<u32>,
    pub read_wc_flags: Read<u32>,
    pub read_slid: Read<u32>,
    pub read_sl: Read<u8>,
    pub read_dlid_path_bits: Read<u8>,
    pub read_completion_ts: Read<u64>,
    pub read_cvlan: Read<u16>,
    pub read_flow_tag: Read<u32>,
    pub read_tm_info: Slot,
    pub read_completion_wallclock_ns: Read<u64>,
}
layout!(
    ibv_cq_ex,
    288,
    comp_mask = 128,
    status = 132,
    wr_id = 136,
    start_poll = 144,
    next_poll = 152,
    end_poll = 160,
    read_opcode = 168,
    read_imm_data = 192,
    read_wc_flags = 216,
    read_sl = 232,
    read_completion_ts = 248,
    read_completion_wallclock_ns = 280
);
zeroed!(ibv_cq_ex);

#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}
layout!(ibv_cq_init_attr_ex, 56, comp_vector = 24, wc_flags = 32, comp_mask = 40, parent_domain = 48);

#[repr(C)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub cq_count: u16,
    pub cq_period: u16,
}
layout!(ibv_modify_cq_attr, 8, cq_count = 4, cq_period = 6);

pub const IBV_CQ_ATTR_MODERATE: u32 = 1;

pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
pub const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;
pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: u32 = 1 << 1;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;
pub const IBV_WC_EX_WITH_FLOW_TAG: u64 = 1 << 9;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;
/// Length, immediate data, numbers of both queue pairs, service level, and LIDs, which are 0 on RoCE.
pub const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;
