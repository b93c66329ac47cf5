//! Thread domains and parent domains.

use super::*;
use std::ffi::c_void;

#[repr(C)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}
layout!(ibv_td, 8);

/// Domain, the program's context, size, alignment, resource type.
pub type PdAlloc = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
/// Domain, the program's context, the memory, resource type.
pub type PdFree = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

#[repr(C)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<PdAlloc>,
    pub free: Option<PdFree>,
    pub pd_context: *mut c_void,
}
layout!(ibv_parent_domain_init_attr, 48, td = 8, comp_mask = 16, alloc = 24, free = 32, pd_context = 40);

pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;
/// The result of an allocator that declines: the library then allocates.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = usize::MAX as *mut c_void;
