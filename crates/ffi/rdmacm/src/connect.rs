//! Connecting, accepting, rejecting and disconnecting.

use crate::abi::*;
use crate::event;
use crate::guard::{self, Refused, check, invalid};
use crate::id::{Id, ask};
use crate::qp;
use ferroce_bridge::cm::{Parameters, PrivateDataTooLong};
use std::ffi::{c_int, c_void};

/// Reject reason of a program's decision (CM REJ reason 28).
const BY_THE_PROGRAM: u32 = 28;
/// Reject reason because of vendor options (35).
const VENDOR_OPTIONS: u32 = 35;
/// Default number of retries.
const RETRIES: u8 = 7;

/// The private data of a program.
///
/// # Safety
/// `data` is NULL, or has `len` readable bytes.
unsafe fn private_data<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(data.cast(), len.into()) }
}

/// Refuses depths that the device does not support, for connections that use them.
fn check_depths(id: &Id, param: Option<&rdma_conn_param>) -> Result<(), Refused> {
    // SAFETY: the id's own structure.
    if unsafe { (*id.abi()).ps } != RDMA_PS_TCP {
        return Ok(());
    }
    let Some(param) = param else {
        return match id.qp().is_null() {
            true => Err(invalid("neither a queue pair nor parameters that name one")),
            false => Ok(()),
        };
    };
    let responds = param.responder_resources;
    if responds != RDMA_MAX_RESP_RES && responds > id.device.max_responder_resources {
        return Err(invalid("responder_resources is more than the device has"));
    }
    let depth = param.initiator_depth;
    if depth != RDMA_MAX_INIT_DEPTH && depth > id.device.max_initiator_depth {
        return Err(invalid("initiator_depth is more than the device has"));
    }
    Ok(())
}

/// The parameters for the peer. The id's own queue pair has priority over the program's parameters.
fn parameters(id: &Id, param: Option<&rdma_conn_param>, in_front: &[u8]) -> Result<Parameters, Refused> {
    let (responder_resources, initiator_depth) = {
        let state = id.state.lock();
        (state.responder_resources, state.initiator_depth)
    };
    let mut out = Parameters { responder_resources, initiator_depth, ..Parameters::zeroed() };
    (out.retry_count, out.rnr_retry) = (RETRIES, RETRIES);
    let mut data = in_front.to_vec();
    if let Some(param) = param {
        (out.flow_control, out.retry_count) = (param.flow_control, param.retry_count);
        (out.rnr_retry, out.srq, out.qpn) = (param.rnr_retry_count, param.srq, param.qp_num);
        // SAFETY: the program's bytes, `private_data_len` of them.
        data.extend_from_slice(unsafe { private_data(param.private_data, param.private_data_len) });
    }
    // SAFETY: NULL, or the id's queue pair, which the program keeps.
    if let Some(qp) = unsafe { id.qp().as_ref() } {
        (out.qpn, out.srq) = (qp.qp_num, u8::from(!qp.srq.is_null()));
    }
    out.set_private_data(&data).map_err(too_long)?;
    Ok(out)
}

fn too_long(_: PrivateDataTooLong) -> Refused {
    invalid("more private data than any message has room for")
}

/// The transport of a request: that of the queue pair, if there is one.
fn transport(id: &Id) -> u32 {
    // SAFETY: NULL, or the id's queue pair, which the program keeps.
    unsafe { id.qp().as_ref() }.map_or(id.qp_type(), |qp| qp.qp_type)
}

pub(crate) unsafe extern "C" fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    guard::minus_one("rdma_connect", || {
        // SAFETY: an id of ours, and parameters or NULL.
        let (id, param) = unsafe { (Id::of(id)?, param.as_ref()) };
        check_depths(id, param)?;
        let in_front = {
            let mut state = id.state.lock();
            let device = id.device;
            let asked = |of: fn(&rdma_conn_param) -> u8| param.map(of).filter(|depth| *depth != u8::MAX);
            state.initiator_depth = asked(|p| p.initiator_depth).unwrap_or(device.max_initiator_depth);
            state.responder_resources =
                asked(|p| p.responder_resources).unwrap_or(device.max_responder_resources);
            std::mem::take(&mut state.connect)
        };
        let mut request = parameters(id, param, &in_front)?;
        request.ece = id.state.lock().local_ece;
        check(ask!(id, connect(transport(id), &request)))?;
        event::complete(id)
    })
}

pub(crate) unsafe extern "C" fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    guard::minus_one("rdma_accept", || {
        // SAFETY: an id of ours, and parameters or NULL.
        let (id, param) = unsafe { (Id::of(id)?, param.as_ref()) };
        if id.qp().is_null() && param.is_none() {
            return Err(invalid("neither a queue pair nor parameters that name one"));
        }
        check_depths(id, param)?;
        let (depth, responds) = {
            let mut state = id.state.lock();
            let device = id.device;
            let asked = |of: fn(&rdma_conn_param) -> u8| param.map(of).filter(|depth| *depth != u8::MAX);
            // The peer's request limits them.
            let offered = state.initiator_depth.min(device.max_initiator_depth);
            state.initiator_depth = asked(|p| p.initiator_depth).unwrap_or(offered);
            let offered = state.responder_resources.min(device.max_responder_resources);
            state.responder_resources = asked(|p| p.responder_resources).unwrap_or(offered);
            (state.initiator_depth, state.responder_resources)
        };
        let mut answer = parameters(id, param, &[])?;
        answer.ece = {
            // The vendor is that of the request; the options are ours.
            let state = id.state.lock();
            [state.remote_ece[0], state.local_ece[1]]
        };
        if !id.is_datagram() {
            qp::to_ready(id, Some(responds), Some(depth))?;
        }
        check(ask!(id, accept(&answer))).inspect_err(|_| qp::to_error(id))?;
        if !id.is_datagram() {
            return event::complete(id);
        }
        if id.state.lock().is_sync {
            // SAFETY: no event follows the reply to a datagram service request, so the program has finished with the event of the request.
            unsafe { event::acknowledge_own(id) };
        }
        Ok(())
    })
}

unsafe fn refuse(
    name: &'static str,
    id: *mut rdma_cm_id,
    reason: u32,
    data: *const c_void,
    len: u8,
) -> c_int {
    guard::minus_one(name, || {
        // SAFETY: an id of ours, and the program's bytes.
        let (id, data) = unsafe { (Id::of(id)?, private_data(data, len)) };
        let mut with = Parameters::zeroed();
        with.set_private_data(data).map_err(too_long)?;
        check(ask!(id, reject(reason, &with)))?;
        id.state.lock().has_ended = true;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: what the call demands of the program.
    unsafe { refuse("rdma_reject", id, BY_THE_PROGRAM, data, len) }
}

pub(crate) unsafe extern "C" fn reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: what the call demands of the program.
    unsafe { refuse("rdma_reject_ece", id, VENDOR_OPTIONS, data, len) }
}

/// The program has set up its own queue pair.
pub(crate) unsafe extern "C" fn establish(id: *mut rdma_cm_id) -> c_int {
    guard::minus_one("rdma_establish", || {
        // SAFETY: an id of ours.
        let id = unsafe { Id::of(id)? };
        if !id.qp().is_null() {
            return Err(invalid("the id has a queue pair, so this is done for the program"));
        }
        check(ask!(id, establish()))
    })
}

/// `ibv_event_type` of a connection in use.
const IBV_EVENT_COMM_EST: c_int = 4;

pub(crate) unsafe extern "C" fn notify(id: *mut rdma_cm_id, event: c_int) -> c_int {
    guard::minus_one("rdma_notify", || {
        // SAFETY: an id of ours.
        let id = unsafe { Id::of(id)? };
        if event != IBV_EVENT_COMM_EST {
            return Err(invalid("nothing follows from this event"));
        }
        check(ask!(id, notify_established()))
    })
}

pub(crate) unsafe extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    guard::minus_one("rdma_disconnect", || {
        // SAFETY: an id of ours, and its structure.
        let id = unsafe { Id::of(id)? };
        // SAFETY: as above.
        if unsafe { (*id.abi()).verbs.is_null() } {
            return Err(invalid("it has no device yet, so no connection"));
        }
        // On iWARP the end of the stream flushes the queue pair, after the current message was sent completely.
        if !id.device.is_iwarp {
            qp::to_error(id);
        }
        if id.is_datagram() {
            // Datagrams have no connection to end, and no event follows.
            return Ok(());
        }
        check(ask!(id, disconnect()))?;
        // On iWARP this succeeds although there is nothing to end.
        if id.device.is_iwarp && id.state.lock().has_ended {
            return Ok(());
        }
        event::complete(id)
    })
}
