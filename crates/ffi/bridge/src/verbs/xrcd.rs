//! XRC domains, and opening their queue pairs.

use super::*;
use std::ffi::c_void;

#[repr(C)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}
layout!(ibv_xrcd, 8);

#[repr(C)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: i32,
    pub oflags: i32,
}
layout!(ibv_xrcd_init_attr, 12, fd = 4, oflags = 8);

pub const IBV_XRCD_INIT_ATTR_FD: u32 = 1;
pub const IBV_XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1;

#[repr(C)]
pub struct ibv_qp_open_attr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut ibv_xrcd,
    pub qp_context: *mut c_void,
    pub qp_type: u32,
}
layout!(ibv_qp_open_attr, 32, qp_num = 4, xrcd = 8, qp_context = 16, qp_type = 24);

pub const IBV_QP_OPEN_ATTR_NUM: u32 = 1;
pub const IBV_QP_OPEN_ATTR_XRCD: u32 = 1 << 1;
pub const IBV_QP_OPEN_ATTR_CONTEXT: u32 = 1 << 2;
pub const IBV_QP_OPEN_ATTR_TYPE: u32 = 1 << 3;
