//! A connection-manager id with a channel of its own, whose descriptor is the socket's number.

use std::os::fd::RawFd;
use std::ptr;

use super::calls::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel,
    rdma_destroy_id, rdma_get_cm_event, rdma_migrate_id, rdma_reject,
};
use super::errno::{Errno, Outcome};
use super::wait::set_nonblocking;
use crate::abi::{
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_REJECTED, rdma_cm_event, rdma_cm_id, rdma_event_channel,
};

/// A copy of an event, which is acknowledged.
pub(crate) struct Happened {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) event: u32,
    pub(crate) status: i32,
    pub(crate) private_data: Vec<u8>,
}

impl Happened {
    /// The `errno` of socket calls for this event.
    pub(crate) fn failure(&self) -> Errno {
        match self.event {
            RDMA_CM_EVENT_REJECTED => Errno(libc::ECONNREFUSED),
            RDMA_CM_EVENT_DEVICE_REMOVAL => Errno(libc::ENODEV),
            _ if self.status == 0 => Errno(libc::ECONNREFUSED),
            _ => Errno(self.status.abs()),
        }
    }
}

/// The id of a socket and its event channel. The descriptor never blocks.
pub(crate) struct Channel {
    channel: *mut rdma_event_channel,
    id: *mut rdma_cm_id,
}

// SAFETY: handles that any thread may use.
unsafe impl Send for Channel {}

impl Channel {
    /// A channel with a new id of this port space.
    pub(crate) fn new(port_space: u32) -> Outcome<Self> {
        let mut made = Self::empty()?;
        let mut id = ptr::null_mut();
        // SAFETY: the channel is new, and `id` is a variable of ours.
        Errno::check(unsafe { rdma_create_id(made.channel, &mut id, ptr::null_mut(), port_space) })?;
        made.id = id;
        Ok(made)
    }

    /// Moves the id of a connection request to a channel of its own. Destroys the id on failure.
    ///
    /// # Safety
    /// The id lives, only this call uses it, and its event is acknowledged.
    pub(crate) unsafe fn migrate(id: *mut rdma_cm_id) -> Outcome<Self> {
        let moved = Self::empty().and_then(|mut made| {
            // SAFETY: what the caller promises; the channel is new.
            Errno::check(unsafe { rdma_migrate_id(id, made.channel) })?;
            made.id = id;
            Ok(made)
        });
        if moved.is_err() {
            // SAFETY: as above.
            unsafe { refuse(id) };
        }
        moved
    }

    fn empty() -> Outcome<Self> {
        let channel = Errno::not_null(rdma_create_event_channel())?;
        let made = Self { channel, id: ptr::null_mut() };
        set_nonblocking(made.fd())?;
        Ok(made)
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives as long as we do.
        unsafe { (*self.channel).fd }
    }

    pub(crate) fn id(&self) -> *mut rdma_cm_id {
        self.id
    }

    /// The next event, if there is one.
    pub(crate) fn next(&self) -> Option<Happened> {
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel lives, and its descriptor does not block. The event and its private data are ours until it is
        // acknowledged. The id is in the TCP port space, so `conn` is the valid member.
        unsafe {
            if rdma_get_cm_event(self.channel, &mut event) != 0 {
                return None;
            }
            let conn = (*event).param.conn;
            let length = usize::from(conn.private_data_len);
            let private_data = if conn.private_data.is_null() {
                Vec::new()
            } else {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), length).to_vec()
            };
            let happened =
                Happened { id: (*event).id, event: (*event).event, status: (*event).status, private_data };
            rdma_ack_cm_event(event);
            Some(happened)
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: both are ours, all events are acknowledged, and the queue pair was destroyed before.
        unsafe {
            if !self.id.is_null() {
                rdma_destroy_id(self.id);
            }
            rdma_destroy_event_channel(self.channel);
        }
    }
}

/// Rejects a request and destroys its id.
///
/// # Safety
/// The id came with a request, lives, and is not used afterwards.
pub(crate) unsafe fn refuse(id: *mut rdma_cm_id) {
    // SAFETY: what the caller promises.
    unsafe {
        rdma_reject(id, ptr::null(), 0);
        rdma_destroy_id(id);
    }
}
