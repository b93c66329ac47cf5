//! Completion channels and their events.

use crate::abi::*;
use crate::context::{Context, Target};
use crate::cq::CqObject;
use crate::errno::invalid;
use crate::guard;
use crate::handle::{Handle, Use, Uses, object};
use ferroce_nic::{CompletionChannel, EventSource};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// A completion channel.
pub(crate) struct ChannelObject {
    pub(crate) channel: Arc<CompletionChannel>,
    pub(crate) uses: Uses,
    _context: Use,
}

object!(
    ChannelObject,
    ibv_comp_channel,
    "ibv_destroy_comp_channel",
    "completion queues still use the channel"
);

pub(crate) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    guard::pointer("ibv_create_comp_channel", || {
        // SAFETY: a context of ours.
        let owner = unsafe { Context::of(context)? };
        let channel = owner.nic.create_channel()?;
        let abi = ibv_comp_channel { context, fd: channel.as_fd().as_raw_fd(), refcnt: 0 };
        let object = ChannelObject { channel, uses: Uses::default(), _context: owner.uses.hold() };
        Ok(Handle::publish(abi, object))
    })
}

/// Reads the descriptor, so a program that made it non-blocking gets EAGAIN.
pub(crate) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    guard::minus_one("ibv_get_cq_event", || {
        // SAFETY: a channel of ours, and the context it was made in.
        let (object, context) =
            unsafe { (Handle::<ChannelObject>::of(channel)?, Context::of((*channel).context)?) };
        if cq.is_null() || cq_context.is_null() {
            return Err(invalid("no room for the queue or its context"));
        }
        loop {
            let (id, _) = object.channel.wait()?;
            let targets = context.targets.lock();
            // A queue that was destroyed meanwhile has no events.
            let Some(Target::Cq(found)) = targets.get(&EventSource::Cq(id)).copied() else { continue };
            // SAFETY: a queue in the table is alive while the table is locked.
            unsafe {
                CqObject::of(found)?.comp_acks.reported();
                (*cq, *cq_context) = (found, (*found).cq_context);
            }
            return Ok(());
        }
    })
}

pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    guard::quiet("ibv_ack_cq_events", || {
        // SAFETY: a queue of ours.
        unsafe { CqObject::of(cq)? }.comp_acks.acknowledge(count.into());
        Ok(())
    });
}
