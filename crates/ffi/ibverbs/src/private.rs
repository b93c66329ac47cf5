//! Private functions of the real library that libmlx5, libmlx4 and libefa need. Many programs link with them although
//! the hardware is absent. They must load, and find no hardware.

use std::ffi::{c_int, c_void};

/// Commands to a kernel driver, which does not exist.
pub(crate) extern "C" fn no_driver() -> c_int {
    libc::EOPNOTSUPP
}

/// Calls that set something up for a driver.
pub(crate) extern "C" fn nothing() {}

/// Calls that would return something of a driver's.
pub(crate) extern "C" fn no_object() -> *mut c_void {
    crate::errno::set(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

/// A descriptor of memory that the hardware has.
pub(crate) extern "C" fn no_descriptor() -> c_int {
    crate::errno::set(libc::EOPNOTSUPP);
    -1
}

/// A file of a driver in sysfs.
pub(crate) extern "C" fn no_file() -> c_int {
    crate::errno::set(libc::ENOENT);
    -1
}
