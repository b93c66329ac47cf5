//! Queue pairs.

use super::*;
use ferroce_proto::verbs::Sge;
use libc::{pthread_cond_t, pthread_mutex_t};
use std::ffi::c_void;

pub const IBV_QPT_RC: u32 = 2;
pub const IBV_QPT_UC: u32 = 3;
pub const IBV_QPT_UD: u32 = 4;
pub const IBV_QPT_RAW_PACKET: u32 = 8;
pub const IBV_QPT_XRC_SEND: u32 = 9;
pub const IBV_QPT_XRC_RECV: u32 = 10;

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: u32,
    pub sq_sig_all: i32,
}
layout!(ibv_qp_init_attr, 64, srq = 24, cap = 32, qp_type = 52, sq_sig_all = 56);

#[repr(C)]
pub struct ibv_rx_hash_conf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}

/// Starts with the fields of [`ibv_qp_init_attr`], whose padding `comp_mask` fills.
#[repr(C)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: u32,
    pub sq_sig_all: i32,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: ibv_rx_hash_conf,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}
layout!(ibv_qp_init_attr_ex, 136, sq_sig_all = 56, comp_mask = 60, pd = 64, xrcd = 72, send_ops_flags = 128);
zeroed!(ibv_qp_init_attr_ex);

pub const IBV_QP_INIT_ATTR_PD: u32 = 1;
pub const IBV_QP_INIT_ATTR_XRCD: u32 = 1 << 1;
pub const IBV_QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
pub const IBV_QP_INIT_ATTR_IND_TABLE: u32 = 1 << 4;
pub const IBV_QP_INIT_ATTR_RX_HASH: u32 = 1 << 5;
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_qp_attr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
layout!(ibv_qp_attr, 144, cap = 36, ah_attr = 56, alt_ah_attr = 88, pkey_index = 120, rate_limit = 136);

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
layout!(ibv_qp, 160, handle = 48, qp_num = 52, state = 56, qp_type = 60, mutex = 64, events_completed = 152);
zeroed!(ibv_qp);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_data_buf {
    pub addr: *mut c_void,
    pub length: usize,
}

type Qp = *mut ibv_qp_ex;

/// Its head is an `ibv_qp`; every queue pair allocates the whole structure.
#[repr(C)]
pub struct ibv_qp_ex {
    pub base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: u32,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(Qp, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(Qp, u32, u64, u64)>,
    pub wr_bind_mw: Option<unsafe extern "C" fn(Qp, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(Qp, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(Qp, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(Qp, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(Qp, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(Qp)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(Qp, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(Qp, u32)>,
    pub wr_send_tso: Option<unsafe extern "C" fn(Qp, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(Qp, *mut ibv_ah, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(Qp, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(Qp, *mut c_void, usize)>,
    pub wr_set_inline_data_list: Option<unsafe extern "C" fn(Qp, usize, *const ibv_data_buf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(Qp, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(Qp, usize, *const Sge)>,
    pub wr_start: Option<unsafe extern "C" fn(Qp)>,
    pub wr_complete: Option<unsafe extern "C" fn(Qp) -> i32>,
    pub wr_abort: Option<unsafe extern "C" fn(Qp)>,
    pub wr_atomic_write: Option<unsafe extern "C" fn(Qp, u32, u64, *const c_void)>,
    /// Not in the header of rdma-core 44; later programs use it.
    pub wr_flush: Option<unsafe extern "C" fn(Qp, u32, u64, usize, u8, u8)>,
}
layout!(
    ibv_qp_ex,
    360,
    comp_mask = 160,
    wr_id = 168,
    wr_flags = 176,
    wr_atomic_cmp_swp = 184,
    wr_send = 240,
    wr_set_ud_addr = 272,
    wr_set_sge = 304,
    wr_start = 320,
    wr_complete = 328,
    wr_atomic_write = 344,
    wr_flush = 352
);
zeroed!(ibv_qp_ex);

pub const IBV_FLUSH_GLOBAL: u8 = 1;
pub const IBV_FLUSH_PERSISTENT: u8 = 1 << 1;
/// Flushes the whole region instead of a range.
pub const IBV_FLUSH_MR: u8 = 1;

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}
