//! Events: translates events of the NIC for programs, and does the library's part of each.

use crate::abi::*;
use crate::channel;
use crate::guard::{self, Refused, check, invalid, reported};
use crate::ib::Names;
use crate::id::Id;
use crate::{multicast, qp};
use ferroce_bridge::cm::{self, PRIVATE_DATA};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// The allocation behind an event's pointer.
#[repr(C)]
struct Event {
    abi: rdma_cm_event,
    /// The id that counts it; for a connection request, the listener.
    owner: *const Id,
    private_data: [u8; PRIVATE_DATA],
}

/// How an event is handled.
enum Outcome {
    /// The program receives it, with this type and status.
    Deliver(u32, c_int),
    /// The program does not receive it.
    Swallow,
}

/// Waits for the next event of a channel.
pub(crate) fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Refused> {
    let device = channel::device_of(channel)?;
    loop {
        // Made in advance: the id of a connection request must exist before other threads receive its events.
        let spare = Id::new(device, ptr::null_mut(), ptr::null_mut(), 0, 0);
        let cookie = ptr::from_ref::<Id>(&spare).expose_provenance() as u64;
        let mut event = cm::Event::zeroed();
        // SAFETY: the NIC's half of the channel, and a variable for the event.
        check(unsafe { (device.table.next_event)(channel::nic(channel), cookie, &mut event) })?;
        // SAFETY: the cookie is the address of an id, which lives until its events are acknowledged.
        let owner = unsafe { &*ptr::with_exposed_provenance::<Id>(event.cookie as usize) };
        owner.wait_ready();
        let mut out =
            Box::new(Event { abi: rdma_cm_event::zeroed(), owner, private_data: event.parameters.private });
        out.abi.id = owner.abi();
        out.show_parameters(&event, owner.is_datagram());
        match out.process(owner, spare, &event) {
            Outcome::Deliver(kind, status) => {
                (out.abi.event, out.abi.status) = (kind, status);
                return Ok(Box::into_raw(out).cast());
            }
            Outcome::Swallow => owner.acknowledge(),
        }
    }
}

impl Event {
    fn show_parameters(&mut self, event: &cm::Event, is_datagram: bool) {
        let given = &event.parameters;
        let private_data_len = given.private_len.min(PRIVATE_DATA as u32) as u8;
        let private_data: *const c_void = match private_data_len {
            0 => ptr::null(),
            _ => (&raw const self.private_data).cast(),
        };
        if is_datagram || event.is_datagram != 0 {
            let (ah_attr, qp_num, qkey) = (event.ah_attr, event.qpn, event.qkey);
            self.abi.param.ud = rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey };
        } else {
            self.abi.param.conn = rdma_conn_param {
                private_data,
                private_data_len,
                responder_resources: given.responder_resources,
                initiator_depth: given.initiator_depth,
                flow_control: given.flow_control,
                retry_count: given.retry_count,
                rnr_retry_count: given.rnr_retry,
                srq: given.srq,
                qp_num: given.qpn,
            };
        }
    }

    fn process(&mut self, owner: &Id, spare: Box<Id>, event: &cm::Event) -> Outcome {
        let as_it_is = Outcome::Deliver(event.kind, event.status);
        if let RDMA_CM_EVENT_REJECTED
        | RDMA_CM_EVENT_UNREACHABLE
        | RDMA_CM_EVENT_CONNECT_ERROR
        | RDMA_CM_EVENT_DISCONNECTED = event.kind
        {
            owner.state.lock().has_ended = true;
        }
        match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => owner.show_addresses(),
            RDMA_CM_EVENT_ROUTE_RESOLVED => owner.show_path(),
            RDMA_CM_EVENT_CONNECT_REQUEST => return self.connect_request(owner, spare, event),
            RDMA_CM_EVENT_CONNECT_RESPONSE => return response(owner, event),
            RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED => {
                if owner.state.lock().has_failed {
                    return Outcome::Swallow;
                }
                if event.kind == RDMA_CM_EVENT_REJECTED {
                    qp::to_error(owner);
                }
            }
            RDMA_CM_EVENT_MULTICAST_JOIN => {
                return match multicast::joined(owner, &event.ah_attr.grh.dgid) {
                    None => Outcome::Swallow,
                    Some((context, attached)) => {
                        self.abi.param.ud.private_data = context;
                        match attached {
                            Ok(()) => as_it_is,
                            Err(refused) => Outcome::Deliver(RDMA_CM_EVENT_MULTICAST_ERROR, -refused.errno),
                        }
                    }
                };
            }
            _ => {}
        }
        as_it_is
    }

    /// A connection request: uses the id that was prepared for it.
    fn connect_request(&mut self, listener: &Id, spare: Box<Id>, event: &cm::Event) -> Outcome {
        let id = Box::leak(spare);
        id.set_nic(event.request_id);
        // SAFETY: both structures are ours; the new one is not published.
        unsafe {
            let (from, to) = (&*listener.abi(), &mut *id.abi());
            (to.channel, to.context) = (from.channel, from.context);
            (to.ps, to.qp_type) = (from.ps, from.qp_type);
        }
        let is_sync = {
            let mut state = id.state.lock();
            state.responder_resources = event.parameters.responder_resources;
            state.initiator_depth = event.parameters.initiator_depth;
            state.remote_ece = event.parameters.ece;
            listener.state.lock().is_sync
        };
        let names = listener.state.lock().ib;
        if let Some(names) = names {
            id.state.lock().ib = Some(Names::of_request(&names, id));
        }
        id.show_addresses();
        id.show_path();
        // Ready before `migrate`, which waits for events that other threads may have received: they wait until the id is ready.
        id.set_ready();
        if is_sync && channel::migrate(id, ptr::null_mut()).is_err() {
            // SAFETY: the id is not published. Destroying it rejects the request.
            let _ = unsafe { crate::id::destroy(id.abi()) };
            return Outcome::Swallow;
        }
        (self.abi.id, self.abi.listen_id) = (id.abi(), listener.abi());
        Outcome::Deliver(event.kind, event.status)
    }
}

/// Handles the acceptance of our request. With its own queue pair, the id completes the connection here; otherwise the
/// program does.
fn response(id: &Id, event: &cm::Event) -> Outcome {
    id.state.lock().remote_ece = event.parameters.ece;
    if id.qp().is_null() {
        return Outcome::Deliver(event.kind, event.status);
    }
    match qp::establish(id) {
        Ok(()) => Outcome::Deliver(RDMA_CM_EVENT_ESTABLISHED, 0),
        Err(refused) => {
            id.state.lock().has_failed = true;
            Outcome::Deliver(RDMA_CM_EVENT_CONNECT_ERROR, -refused.errno)
        }
    }
}

/// Acknowledges an event.
///
/// # Safety
/// An event of ours that the program does not use afterwards.
pub(crate) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: as the caller promises.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    // SAFETY: the owner waits for this.
    unsafe { &*event.owner }.acknowledge();
}

/// Acknowledges the event that a call of the id waited for, if there is one.
///
/// # Safety
/// The program does not use the event afterwards.
pub(crate) unsafe fn acknowledge_own(id: &Id) {
    // SAFETY: the id's own structure, and as the caller promises.
    unsafe {
        let event = std::mem::replace(&mut (*id.abi()).event, ptr::null_mut());
        if !event.is_null() {
            acknowledge(event);
        }
    }
}

/// Waits for the next event of a synchronous id.
pub(crate) fn next_own(id: &Id) -> Result<*mut rdma_cm_event, Refused> {
    // SAFETY: the manual ends the event with the next call; the structure is ours.
    unsafe {
        acknowledge_own(id);
        let mut event = next((*id.abi()).channel)?;
        // No call waits for this event, and no other thread reads the channel.
        while (*event).event == RDMA_CM_EVENT_ADDR_CHANGE {
            acknowledge(event);
            event = next((*id.abi()).channel)?;
        }
        Ok(event)
    }
}

/// The result of the call that waited for this event.
pub(crate) fn outcome(event: &rdma_cm_event) -> Result<(), Refused> {
    match (event.event, event.status) {
        (RDMA_CM_EVENT_DEVICE_REMOVAL, _) => Err(reported(libc::ENODEV)),
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(reported(libc::ECONNREFUSED)),
        (_, status) => Err(reported(status.abs())),
    }
}

/// For a synchronous id: waits for the event of this call, and stores it in the id for the program.
pub(crate) fn complete(id: &Id) -> Result<(), Refused> {
    if !id.state.lock().is_sync {
        return Ok(());
    }
    let event = next_own(id)?;
    // SAFETY: the id's own structure, and an event of ours that is not published.
    unsafe {
        (*id.abi()).event = event;
        outcome(&*event)
    }
}

pub(crate) unsafe extern "C" fn get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    guard::minus_one("rdma_get_cm_event", || {
        // SAFETY: NULL, or memory for the event.
        let place = unsafe { event.as_mut() }.ok_or(invalid("event is NULL"))?;
        *place = next(channel)?;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    guard::minus_one("rdma_ack_cm_event", || {
        if event.is_null() {
            return Err(invalid("event is NULL"));
        }
        // SAFETY: what the call demands of the program.
        unsafe { acknowledge(event) };
        Ok(())
    })
}

const NAMES: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

/// Programs print these names, and scripts search for them.
pub(crate) extern "C" fn event_str(event: u32) -> *const c_char {
    NAMES.get(event as usize).unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}
