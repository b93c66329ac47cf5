//! Private functions of rdma-core that libmlx5, libmlx4 and libefa need. Many programs link with these libraries although
//! the hardware is absent. The libraries must load, and find no hardware.

use std::ffi::{c_int, c_void};

/// Commands to a kernel driver, which does not exist.
pub(crate) extern "C" fn no_driver() -> c_int {
    libc::EOPNOTSUPP
}

/// Calls that set something up for a driver.
pub(crate) extern "C" fn nothing() {}

/// Calls that would return an object of a driver.
pub(crate) extern "C" fn no_object() -> *mut c_void {
    crate::errno::set(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

/// A descriptor of the hardware's memory.
pub(crate) extern "C" fn no_descriptor() -> c_int {
    crate::errno::set(libc::EOPNOTSUPP);
    -1
}

/// A file of a driver in sysfs.
pub(crate) extern "C" fn no_file() -> c_int {
    crate::errno::set(libc::ENOENT);
    -1
}
