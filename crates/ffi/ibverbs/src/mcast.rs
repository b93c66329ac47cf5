//! Multicast groups. As in the kernel, a queue pair cannot be destroyed while it is attached to one.

use crate::abi::*;
use crate::errno::invalid;
use crate::guard;
use crate::qp::QpObject;
use ferroce_nic::Error;
use ferroce_proto::Gid;
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    guard::number("ibv_attach_mcast", || {
        // SAFETY: a queue pair of ours, and the program's GID.
        let (object, gid) =
            unsafe { (QpObject::live("ibv_attach_mcast", qp)?, gid.as_ref().ok_or(invalid("gid is NULL"))?) };
        let gid = Gid(gid.raw);
        let mut groups = object.groups.lock();
        object.qp.attach_multicast(gid)?;
        groups.push((gid, object.uses.hold()));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    guard::number("ibv_detach_mcast", || {
        // SAFETY: a queue pair of ours, and the program's GID.
        let (object, gid) =
            unsafe { (QpObject::live("ibv_detach_mcast", qp)?, gid.as_ref().ok_or(invalid("gid is NULL"))?) };
        let gid = Gid(gid.raw);
        let mut groups = object.groups.lock();
        let detached = object.qp.detach_multicast(gid);
        // The queue pair has left the group even if the system refused to leave it.
        if !matches!(detached, Err(Error::Invalid { .. }))
            && let Some(at) = groups.iter().position(|(attached, _)| *attached == gid)
        {
            groups.swap_remove(at);
        }
        Ok(detached?)
    })
}
