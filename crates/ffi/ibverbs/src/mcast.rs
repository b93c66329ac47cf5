//! Multicast groups.

use crate::abi::*;
use crate::errno::invalid;
use crate::guard;
use crate::qp::QpObject;
use ferroce_proto::Gid;
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    guard::number("ibv_attach_mcast", || {
        // SAFETY: a queue pair of ours, and the program's GID.
        let (object, gid) =
            unsafe { (QpObject::live("ibv_attach_mcast", qp)?, gid.as_ref().ok_or(invalid("gid is NULL"))?) };
        Ok(object.qp.attach_multicast(Gid(gid.raw))?)
    })
}

pub(crate) unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    guard::number("ibv_detach_mcast", || {
        // SAFETY: a queue pair of ours, and the program's GID.
        let (object, gid) =
            unsafe { (QpObject::live("ibv_detach_mcast", qp)?, gid.as_ref().ok_or(invalid("gid is NULL"))?) };
        Ok(object.qp.detach_multicast(Gid(gid.raw))?)
    })
}
