//! Listening, and accepting connection requests one by one.

use crate::abi::*;
use crate::address;
use crate::event;
use crate::guard::{self, Refused, check, invalid};
use crate::id::{Id, ask};
use crate::qp;
use ferroce_bridge::address::Address;
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};

pub(crate) unsafe extern "C" fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    guard::minus_one("rdma_listen", || {
        // SAFETY: an id of ours.
        let id = unsafe { Id::of(id)? };
        if id.standing().local.version == 0 {
            // An unbound id listens on all IPv4 addresses, as in the kernel.
            address::bind(id, &Address::from(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)))?;
        }
        check(ask!(id, listen(backlog)))?;
        id.show_addresses();
        Ok(())
    })
}

/// Waits for a connection request to a synchronous listener.
fn request(listener: &Id) -> Result<*mut rdma_cm_id, Refused> {
    if !listener.state.lock().is_sync {
        return Err(invalid("the listener has an event channel; wait there"));
    }
    let event = event::next_own(listener)?;
    match requested_id(listener, event) {
        Ok(id) => {
            // SAFETY: the new id is not published.
            unsafe { (*id).event = event };
            Ok(id)
        }
        Err(refused) => {
            // SAFETY: the listener's own structure.
            unsafe { (*listener.abi()).event = event };
            Err(refused)
        }
    }
}

/// The id of a connection request, with a queue pair if the listener has attributes for one.
fn requested_id(listener: &Id, event: *mut rdma_cm_event) -> Result<*mut rdma_cm_id, Refused> {
    // SAFETY: an event of ours that is not published.
    let event = unsafe { &*event };
    event::outcome(event)?;
    if event.event != RDMA_CM_EVENT_CONNECT_REQUEST {
        return Err(invalid("the listener received an event other than a connection request"));
    }
    let mut attr = listener.state.lock().qp_attr.as_ref().map(|attr| qp::extended(&attr.0));
    if let Some(attr) = attr.as_mut() {
        // SAFETY: an id of ours, and the listener's domain.
        unsafe {
            attr.pd = (*listener.abi()).pd;
            qp::create(Id::of(event.id)?, attr)?;
        }
    }
    Ok(event.id)
}

pub(crate) unsafe extern "C" fn get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    guard::minus_one("rdma_get_request", || {
        // SAFETY: an id of ours, and NULL or memory for the new one.
        let (listener, place) = unsafe { (Id::of(listener)?, id.as_mut()) };
        *place.ok_or(invalid("id is NULL"))? = request(listener)?;
        Ok(())
    })
}
