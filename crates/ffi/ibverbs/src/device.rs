//! The list of devices, which has one entry, and opening it.

use crate::abi::*;
use crate::context::Context;
use crate::errno::Refused;
use crate::{guard, identity};
use ferroce_nic::Wire;
use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

struct Device(verbs_device);

// SAFETY: never written after its creation.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The device. It lives as long as the process: contexts point to it, and programs keep such pointers.
pub(crate) fn device() -> *mut ibv_device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let mut whole = verbs_device::zeroed();
        let device = &mut whole.device;
        (device.node_type, device.transport_type) = match identity::wire() {
            Wire::Iwarp => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
            _ => (IBV_NODE_CA, IBV_TRANSPORT_IB),
        };
        identity::copy_text(&mut device.name, identity::NAME);
        identity::copy_text(&mut device.dev_name, identity::DEV_NAME);
        identity::copy_text(&mut device.dev_path, identity::DEV_PATH);
        identity::copy_text(&mut device.ibdev_path, identity::IBDEV_PATH);
        Device(whole)
    });
    (&raw const device.0.device).cast_mut()
}

pub(crate) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    guard::pointer("ibv_get_device_list", || {
        let list = Box::new([device(), std::ptr::null_mut()]);
        if !count.is_null() {
            // SAFETY: not NULL, so the program provides memory for the count.
            unsafe { *count = 1 };
        }
        Ok(Box::into_raw(list).cast())
    })
}

pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    guard::quiet("ibv_free_device_list", || {
        if !list.is_null() {
            // SAFETY: came from `get_device_list`, which makes boxes of two pointers.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
        }
        Ok(())
    });
}

pub(crate) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return std::ptr::null();
    }
    // SAFETY: a device of ours; its name ends in a zero.
    unsafe { (&raw const (*device).name).cast() }
}

pub(crate) unsafe extern "C" fn get_device_index(_device: *mut ibv_device) -> c_int {
    0
}

/// In network byte order, as the bytes lie in memory.
pub(crate) unsafe extern "C" fn get_device_guid(_device: *mut ibv_device) -> u64 {
    u64::from_ne_bytes(identity::node_guid())
}

pub(crate) unsafe extern "C" fn open_device(wanted: *mut ibv_device) -> *mut ibv_context {
    guard::pointer("ibv_open_device", || {
        if wanted != device() {
            return Err(Refused::Errno(libc::ENODEV, "not a device of this library"));
        }
        Context::open().inspect_err(|refused| {
            // The program only receives NULL, so the reason is printed.
            if let Refused::Nic(error) = refused {
                eprintln!("ferroce: {}: {error}", identity::NAME);
            }
        })
    })
}

pub(crate) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the program passes its context, and does not use it afterwards.
    guard::minus_one("ibv_close_device", || unsafe { Context::close(context) })
}
