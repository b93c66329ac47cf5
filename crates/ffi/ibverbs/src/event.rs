//! Asynchronous events.

use crate::abi::*;
use crate::context::{Context, Target};
use crate::cq::CqObject;
use crate::errno::{Refused, invalid};
use crate::guard;
use crate::handle::Handle;
use crate::qp::QpObject;
use crate::srq::SrqObject;
use ferroce_nic::{AsyncEvent, EventSource};
use ferroce_proto::verbs::EventKind;
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    guard::minus_one("ibv_get_async_event", || {
        // SAFETY: a context of ours.
        let context = unsafe { Context::of(context)? };
        if event.is_null() {
            return Err(invalid("event is NULL"));
        }
        loop {
            let AsyncEvent { kind, source, .. } = context.nic.wait_event()?;
            // SAFETY: objects in the table are alive while it is locked, and `element` locks it.
            if let Some(element) = unsafe { element(context, source)? } {
                // SAFETY: the program provides memory for an event.
                unsafe { event.write(ibv_async_event { element, event_type: kind as u32 }) };
                return Ok(());
            }
        }
    })
}

/// The object of the event. Counts the event as delivered. Returns `None` if the object was destroyed.
unsafe fn element(context: &Context, source: EventSource) -> Result<Option<ibv_async_element>, Refused> {
    if let EventSource::Device | EventSource::Port(_) = source {
        let port_num = if let EventSource::Port(port) = source { port.into() } else { 0 };
        let mut element = ibv_async_element { qp: std::ptr::null_mut() };
        element.port_num = port_num;
        return Ok(Some(element));
    }
    let targets = context.targets.lock();
    let Some(target) = targets.get(&source).copied() else { return Ok(None) };
    // SAFETY: an object in the locked table is alive.
    unsafe {
        Ok(Some(match target {
            Target::Qp(qp) => {
                QpObject::of(qp)?.acks.reported();
                ibv_async_element { qp }
            }
            Target::Cq(cq) => {
                CqObject::of(cq)?.async_acks.reported();
                ibv_async_element { cq }
            }
            Target::Srq(srq) => {
                Handle::<SrqObject>::of(srq)?.acks.reported();
                ibv_async_element { srq }
            }
        }))
    }
}

pub(crate) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    guard::quiet("ibv_ack_async_event", || {
        // SAFETY: the event that the program received, unchanged.
        let event = unsafe { event.as_ref() }.ok_or(invalid("event is NULL"))?;
        const CQ_ERR: u32 = EventKind::CqErr as u32;
        const QP_FIRST: u32 = EventKind::QpFatal as u32;
        const QP_LAST: u32 = EventKind::PathMigErr as u32;
        const LAST_WQE: u32 = EventKind::QpLastWqeReached as u32;
        const SRQ_ERR: u32 = EventKind::SrqErr as u32;
        const SRQ_LIMIT: u32 = EventKind::SrqLimitReached as u32;
        // SAFETY: the type of the event determines which member is valid.
        unsafe {
            match event.event_type {
                CQ_ERR => CqObject::of(event.element.cq)?.async_acks.acknowledge(1),
                QP_FIRST..=QP_LAST | LAST_WQE => QpObject::of(event.element.qp)?.acks.acknowledge(1),
                SRQ_ERR | SRQ_LIMIT => Handle::<SrqObject>::of(event.element.srq)?.acks.acknowledge(1),
                _ => {}
            }
        }
        Ok(())
    });
}
