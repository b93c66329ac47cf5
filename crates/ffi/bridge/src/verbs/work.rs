//! Work requests and completions.

use super::*;
use ferroce_proto::verbs::Sge;

// A program's scatter/gather list is used without a copy: the NIC's own entry has the same layout.
layout!(Sge, 16, addr = 0, len = 8, lkey = 12);

pub const IBV_WR_RDMA_WRITE: u32 = 0;
pub const IBV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
pub const IBV_WR_SEND: u32 = 2;
pub const IBV_WR_SEND_WITH_IMM: u32 = 3;
pub const IBV_WR_RDMA_READ: u32 = 4;
pub const IBV_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
pub const IBV_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;
pub const IBV_WR_LOCAL_INV: u32 = 7;
pub const IBV_WR_BIND_MW: u32 = 8;
pub const IBV_WR_SEND_WITH_INV: u32 = 9;
pub const IBV_WR_ATOMIC_WRITE: u32 = 15;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct wr_ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_wr_target {
    pub rdma: wr_rdma,
    pub atomic: wr_atomic,
    pub ud: wr_ud,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct wr_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_wr_extra {
    pub bind_mw: wr_bind_mw,
}

#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut Sge,
    pub num_sge: i32,
    pub opcode: u32,
    pub send_flags: u32,
    /// Immediate data in network order, or the key to invalidate.
    pub imm_or_key: u32,
    pub wr: ibv_wr_target,
    pub remote_srqn: u32,
    pub extra: ibv_wr_extra,
}
layout!(ibv_send_wr, 128, num_sge = 24, opcode = 28, imm_or_key = 36, wr = 40, remote_srqn = 72, extra = 80);

#[repr(C)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut Sge,
    pub num_sge: i32,
}
layout!(ibv_recv_wr, 32, sg_list = 16, num_sge = 24);

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data in network order, or the key that was invalidated.
    pub imm_or_key: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
layout!(ibv_wc, 48, vendor_err = 16, qp_num = 28, wc_flags = 36, sl = 44);
