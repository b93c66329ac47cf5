//! Connecting, accepting, rejecting and disconnecting; joining groups.

use super::id::{address, of};
use crate::abi::*;
use crate::errno::{Refused, invalid};
use crate::guard;
use ferroce_bridge::address::Address;
use ferroce_bridge::cm::{Id, Parameters, Transport};
use ferroce_nic::{CmTransport, ConnParam, Ece, RejectReason};
use ferroce_proto::Qpn;
use std::ffi::c_int;

/// Converts librdmacm's parameters to those of the NIC.
///
/// # Safety
/// NULL, or readable.
unsafe fn param(from: *const Parameters) -> Result<ConnParam, Refused> {
    // SAFETY: as the caller promises.
    let from = unsafe { from.as_ref() }.ok_or(invalid("no parameters"))?;
    let [vendor_id, attr_mod] = from.ece;
    Ok(ConnParam {
        private_data: from.private_data().to_vec(),
        responder_resources: from.responder_resources,
        initiator_depth: from.initiator_depth,
        flow_control: from.flow_control != 0,
        retry_count: from.retry_count,
        rnr_retry: from.rnr_retry,
        srq: from.srq != 0,
        qpn: Qpn::new(from.qpn),
        qkey: None,
        ece: Ece { vendor_id, attr_mod },
    })
}

fn transport(code: Transport) -> Result<CmTransport, Refused> {
    match code {
        // A datagram service has no transport; the NIC does not read the field.
        IBV_QPT_RC | IBV_QPT_UD => Ok(CmTransport::Rc),
        IBV_QPT_UC => Ok(CmTransport::Uc),
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Ok(CmTransport::Xrc),
        _ => Err(invalid("queue pairs of this type are not connected")),
    }
}

pub(super) unsafe extern "C" fn connect(id: *mut Id, kind: Transport, with: *const Parameters) -> c_int {
    guard::number("rdma_connect", || {
        // SAFETY: an id of ours, and parameters.
        let (id, param) = unsafe { (of(id)?, param(with)?) };
        Ok(id.connect(transport(kind)?, &param)?)
    })
}

pub(super) unsafe extern "C" fn accept(id: *mut Id, with: *const Parameters) -> c_int {
    guard::number("rdma_accept", || {
        // SAFETY: an id of ours, and parameters.
        let (id, param) = unsafe { (of(id)?, param(with)?) };
        Ok(id.accept(&param)?)
    })
}

pub(super) unsafe extern "C" fn reject(id: *mut Id, reason: u32, with: *const Parameters) -> c_int {
    guard::number("rdma_reject", || {
        // SAFETY: an id of ours, and parameters.
        let (id, param) = unsafe { (of(id)?, param(with)?) };
        Ok(id.reject(RejectReason(reason as u16), &param.private_data)?)
    })
}

pub(super) unsafe extern "C" fn establish(id: *mut Id) -> c_int {
    // SAFETY: an id of ours.
    guard::number("rdma_establish", || Ok(unsafe { of(id)? }.establish()?))
}

pub(super) unsafe extern "C" fn notify_established(id: *mut Id) -> c_int {
    // SAFETY: an id of ours.
    guard::number("rdma_notify", || Ok(unsafe { of(id)? }.notify_established()?))
}

pub(super) unsafe extern "C" fn disconnect(id: *mut Id) -> c_int {
    // SAFETY: an id of ours.
    guard::number("rdma_disconnect", || Ok(unsafe { of(id)? }.disconnect()?))
}

pub(super) unsafe extern "C" fn join(id: *mut Id, group: *const Address) -> c_int {
    guard::number("rdma_join_multicast", || {
        // SAFETY: an id of ours, and an address.
        let (id, group) = unsafe { (of(id)?, address(group)?) };
        Ok(id.join_multicast(group.ip())?)
    })
}
