//! Protection domains, memory regions and windows.

use super::*;
use std::ffi::c_void;

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
layout!(ibv_pd, 16, handle = 8);

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
layout!(ibv_mr, 48, addr = 16, length = 24, handle = 32, lkey = 36, rkey = 40);

pub const IBV_REREG_MR_CHANGE_TRANSLATION: i32 = 1;
pub const IBV_REREG_MR_CHANGE_PD: i32 = 1 << 1;
pub const IBV_REREG_MR_CHANGE_ACCESS: i32 = 1 << 2;
/// The call was refused; the region is unchanged.
pub const IBV_REREG_MR_ERR_INPUT: i32 = -1;
/// The call failed after a partial change; the region must not be used.
pub const IBV_REREG_MR_ERR_CMD: i32 = -4;

#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub r#type: u32,
}
layout!(ibv_mw, 32, rkey = 16, r#type = 24);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: u32,
}
layout!(ibv_mw_bind_info, 32, mw_access_flags = 24);

#[repr(C)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: u32,
    pub bind_info: ibv_mw_bind_info,
}
layout!(ibv_mw_bind, 48, send_flags = 8, bind_info = 16);

pub const IBV_MW_TYPE_1: u32 = 1;
pub const IBV_MW_TYPE_2: u32 = 2;

#[repr(C)]
pub struct ibv_alloc_dm_attr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}
layout!(ibv_alloc_dm_attr, 16, log_align_req = 8, comp_mask = 12);

/// Programs copy through these two functions.
#[repr(C)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> i32>,
    pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> i32>,
    pub comp_mask: u32,
    pub handle: u32,
}
layout!(ibv_dm, 32, memcpy_to_dm = 8, memcpy_from_dm = 16, handle = 28);

pub const IBV_ADVISE_MR_ADVICE_PREFETCH: u32 = 0;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: u32 = 1;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: u32 = 2;
pub const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1;
