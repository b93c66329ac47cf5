//! Event channels, and moving ids between them.

use crate::abi::*;
use crate::device::{Device, device};
use crate::event;
use crate::guard::{self, Refused, check, invalid};
use crate::id::{Id, ask};
use ferroce_bridge::cm;
use std::ffi::c_int;
use std::ptr;

/// The allocation behind a channel's pointer.
#[repr(C)]
struct Channel {
    abi: rdma_event_channel,
    nic: *mut cm::Channel,
    device: &'static Device,
}

/// Creates one.
pub(crate) fn create(device: &'static Device) -> Result<*mut rdma_event_channel, Refused> {
    let (mut nic, mut fd) = (ptr::null_mut(), -1);
    // SAFETY: the open device, and variables for the results.
    check(unsafe { (device.table.create_channel)(device.context, &mut nic, &mut fd) })?;
    Ok(Box::into_raw(Box::new(Channel { abi: rdma_event_channel { fd }, nic, device })).cast())
}

/// The NIC's half of a channel.
pub(crate) fn nic(channel: *mut rdma_event_channel) -> *mut cm::Channel {
    // SAFETY: callers pass the program's channel, which is ours, or NULL.
    unsafe { channel.cast::<Channel>().as_ref() }.map_or(ptr::null_mut(), |channel| channel.nic)
}

/// The device that a channel was made for; NULL is refused.
pub(crate) fn device_of(channel: *mut rdma_event_channel) -> Result<&'static Device, Refused> {
    // SAFETY: as above.
    let channel = unsafe { channel.cast::<Channel>().as_ref() }.ok_or(invalid("the channel is NULL"))?;
    Ok(channel.device)
}

/// Destroys one.
///
/// # Safety
/// A channel of ours that is not used afterwards.
pub(crate) unsafe fn destroy(channel: *mut rdma_event_channel) {
    // SAFETY: as the caller promises.
    let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
    // SAFETY: its other half, made with it.
    unsafe { (channel.device.table.destroy_channel)(channel.nic) };
}

pub(crate) extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    guard::pointer("rdma_create_event_channel", || create(device()?))
}

pub(crate) unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    guard::quiet("rdma_destroy_event_channel", || {
        if !channel.is_null() {
            // SAFETY: what the call demands of the program.
            unsafe { destroy(channel) };
        }
        Ok(())
    });
}

/// Moves an id with its pending events to another channel; NULL stands for a channel of its own. Returns when the program
/// has acknowledged the events that the old channel delivered.
pub(crate) fn migrate(id: &Id, channel: *mut rdma_event_channel) -> Result<(), Refused> {
    let was_sync = id.state.lock().is_sync;
    let is_sync = channel.is_null();
    if is_sync && was_sync {
        return Err(invalid("its calls wait for their events already"));
    }
    let channel = if is_sync { create(id.device)? } else { channel };
    let handed_out = ask!(id, migrate_id(nic(channel)));
    // SAFETY: the id's own structure.
    let old = unsafe { std::mem::replace(&mut (*id.abi()).channel, channel) };
    if was_sync {
        // SAFETY: the event that a call waited for, and a channel that only this id uses.
        unsafe {
            event::acknowledge_own(id);
            destroy(old);
        }
    }
    id.state.lock().is_sync = is_sync;
    id.wait_acknowledged(handed_out);
    Ok(())
}

pub(crate) unsafe extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: an id of ours.
    guard::minus_one("rdma_migrate_id", || migrate(unsafe { Id::of(id)? }, channel))
}
