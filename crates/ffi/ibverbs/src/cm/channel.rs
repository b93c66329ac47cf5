//! Event channels, and the translation of events for librdmacm.

use crate::abi::{Zeroed, ibv_context};
use crate::context::Context;
use crate::errno::{Refused, invalid};
use crate::guard;
use crate::qp::ah_attr;
use ferroce_bridge::cm::{Channel, Event, Parameters};
use ferroce_nic::{CmChannel, CmEvent, CmEventKind, ConnParam};
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};

/// The channel behind a pointer.
///
/// # Safety
/// NULL, or a channel of [`create_channel`] that was not destroyed.
pub(super) unsafe fn of<'a>(channel: *mut Channel) -> Result<&'a CmChannel, Refused> {
    // SAFETY: as the caller promises.
    unsafe { channel.cast::<CmChannel>().as_ref() }.ok_or(invalid("the event channel is NULL"))
}

pub(super) unsafe extern "C" fn create_channel(
    context: *mut ibv_context,
    out: *mut *mut Channel,
    fd: *mut c_int,
) -> c_int {
    guard::number("rdma_create_event_channel", || {
        // SAFETY: a context of ours.
        let channel = unsafe { Context::of(context)? }.nic.create_cm_channel()?;
        let number = channel.as_fd().as_raw_fd();
        // SAFETY: librdmacm provides memory for both.
        unsafe { (*out, *fd) = (Box::into_raw(Box::new(channel)).cast(), number) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn destroy_channel(channel: *mut Channel) {
    guard::quiet("rdma_destroy_event_channel", || {
        // SAFETY: made by `create_channel`, and not used afterwards.
        drop(unsafe { Box::from_raw(channel.cast::<CmChannel>()) });
        Ok(())
    });
}

pub(super) unsafe extern "C" fn next_event(channel: *mut Channel, cookie: u64, out: *mut Event) -> c_int {
    guard::number("rdma_get_cm_event", || {
        // SAFETY: a channel of ours.
        let channel = unsafe { of(channel)? };
        loop {
            let event = channel.wait_seeing(|event| {
                if event.kind == CmEventKind::ConnectRequest {
                    event.id.set_cookie(cookie);
                }
            })?;
            if let Some(translated) = translate(event) {
                // SAFETY: librdmacm provides memory for it.
                unsafe { *out = translated };
                return Ok(());
            }
        }
    })
}

/// The event in librdmacm's form. Returns `None` for a connection request to a destroyed listener, and rejects it.
fn translate(event: CmEvent) -> Option<Event> {
    let mut out = Event { kind: event.kind as u32, status: event.status, ..Event::zeroed() };
    out.parameters = parameters(&event.conn);
    if let Some(ud) = &event.ud {
        out.is_datagram = 1;
        (out.qpn, out.qkey) = (ud.qpn.value(), ud.qkey.0);
        out.ah_attr = ah_attr(&ud.vector);
        out.parameters.set_received(&ud.private_data);
    }
    if event.kind == CmEventKind::ConnectRequest {
        out.cookie = event.listener.as_ref().and_then(Weak::upgrade)?.cookie();
        out.request_id = Arc::into_raw(event.id).cast_mut().cast();
    } else {
        out.cookie = event.id.cookie();
    }
    Some(out)
}

fn parameters(conn: &ConnParam) -> Parameters {
    let mut out = Parameters {
        qpn: conn.qpn.value(),
        responder_resources: conn.responder_resources,
        initiator_depth: conn.initiator_depth,
        flow_control: conn.flow_control.into(),
        retry_count: conn.retry_count,
        rnr_retry: conn.rnr_retry,
        srq: conn.srq.into(),
        ece: [conn.ece.vendor_id, conn.ece.attr_mod],
        ..Parameters::zeroed()
    };
    out.set_received(&conn.private_data);
    out
}
