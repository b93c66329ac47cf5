//! The list of devices that ids can be bound to, which has one entry.

use crate::abi::*;
use crate::device::device;
use crate::guard;
use std::ffi::c_int;
use std::ptr;

type List = [*mut ibv_context; 2];

/// The context stays open after the list is freed, as the manual requires.
pub(crate) unsafe extern "C" fn devices(count: *mut c_int) -> *mut *mut ibv_context {
    guard::pointer("rdma_get_devices", || {
        let list: Box<List> = Box::new([device()?.context, ptr::null_mut()]);
        if !count.is_null() {
            // SAFETY: not NULL, so the program provides memory for the count.
            unsafe { *count = 1 };
        }
        Ok(Box::into_raw(list).cast())
    })
}

pub(crate) unsafe extern "C" fn free_devices(list: *mut *mut ibv_context) {
    guard::quiet("rdma_free_devices", || {
        if !list.is_null() {
            // SAFETY: came from `devices`, which makes boxes of this type.
            drop(unsafe { Box::from_raw(list.cast::<List>()) });
        }
        Ok(())
    });
}
