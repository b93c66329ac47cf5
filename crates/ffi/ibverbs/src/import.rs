//! Objects of other contexts and processes: not shared yet.

use crate::abi::{ibv_context, ibv_mr, ibv_pd};
use crate::errno::unsupported;
use crate::guard;
use std::ffi::{c_int, c_void};

pub(crate) unsafe extern "C" fn import_device(_cmd_fd: c_int) -> *mut ibv_context {
    guard::pointer("ibv_import_device", || Err(unsupported("importing a device")))
}

pub(crate) unsafe extern "C" fn import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    guard::pointer("ibv_import_pd", || Err(unsupported("importing a protection domain")))
}

pub(crate) unsafe extern "C" fn import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    guard::pointer("ibv_import_mr", || Err(unsupported("importing a memory region")))
}

pub(crate) unsafe extern "C" fn import_dm(_context: *mut ibv_context, _handle: u32) -> *mut c_void {
    guard::pointer("ibv_import_dm", || Err(unsupported("importing device memory")))
}
