//! Multicast groups of ids.

use crate::abi::*;
use crate::guard::{self, Refused, check, invalid, refused};
use crate::id::{Id, ask};
use crate::verbs::*;
use crate::{address, event};
use ferroce_bridge::address::Address;
use libc::sockaddr;
use std::ffi::{c_int, c_void};

/// A group.
pub(crate) struct Group {
    address: Address,
    mgid: ibv_gid,
    /// Whether it is a send-only member, whose queue pair is not attached.
    is_sender: bool,
    /// Whether its event was delivered.
    is_joined: bool,
    is_attached: bool,
    /// The program's context, which the event carries.
    context: *mut c_void,
}

// SAFETY: the context is a value of the program that this library never dereferences.
unsafe impl Send for Group {}

fn join(id: &Id, address: Address, is_sender: bool, context: *mut c_void) -> Result<(), Refused> {
    let group = address.to_socket().ok_or(invalid("neither an IPv4 nor an IPv6 address"))?.ip();
    if !group.is_multicast() {
        return Err(invalid("not a multicast address"));
    }
    // SAFETY: the id's own structure.
    if unsafe { (*id.abi()).verbs.is_null() } {
        return Err(invalid("the id has no device yet; bind it or resolve an address"));
    }
    let mgid = address::gid_of(group);
    let group = Group { address, mgid, is_sender, is_joined: false, is_attached: false, context };
    // Added first, since another thread may receive the event immediately.
    id.state.lock().groups.push(group);
    if let Err(refused) = check(ask!(id, join(&address))) {
        let mut state = id.state.lock();
        let own = state.groups.iter().rposition(|group| group.address == address && !group.is_joined);
        own.map(|at| state.groups.remove(at));
        return Err(refused);
    }
    event::complete(id)
}

/// Handles the event of a join: attaches the queue pair, and returns the program's context. Returns `None` if the id has
/// left the group in the meantime.
pub(crate) fn joined(id: &Id, mgid: &ibv_gid) -> Option<(*mut c_void, Result<(), Refused>)> {
    let mut state = id.state.lock();
    let group = state.groups.iter_mut().find(|group| group.mgid == *mgid && !group.is_joined)?;
    group.is_joined = true;
    if id.qp().is_null() || group.is_sender {
        return Some((group.context, Ok(())));
    }
    // SAFETY: the id's queue pair, and a group.
    let attached = check(unsafe { ibv_attach_mcast(id.qp(), mgid, 0) });
    group.is_attached = attached.is_ok();
    Some((group.context, attached))
}

fn leave(id: &Id, address: Address) -> Result<(), Refused> {
    let group = {
        let mut state = id.state.lock();
        let at = state.groups.iter().position(|group| group.address == address);
        let at = at.ok_or(refused(libc::EADDRNOTAVAIL, "the id is not in this group"))?;
        state.groups.remove(at)
    };
    if group.is_attached && !id.qp().is_null() {
        // SAFETY: the id's queue pair, and a group that it is attached to.
        check(unsafe { ibv_detach_mcast(id.qp(), &group.mgid, 0) })?;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn join_multicast(
    id: *mut rdma_cm_id,
    group: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    guard::minus_one("rdma_join_multicast", || {
        // SAFETY: an id of ours, and an address.
        let (id, group) = unsafe { (Id::of(id)?, address::read(group)?) };
        join(id, group, false, context)
    })
}

pub(crate) unsafe extern "C" fn join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    guard::minus_one("rdma_join_multicast_ex", || {
        // SAFETY: an id of ours, and the program's attributes.
        let (id, attr) = unsafe { (Id::of(id)?, attr.as_ref().ok_or(invalid("mc_join_attr is NULL"))?) };
        let known = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask & !known != 0 {
            return Err(refused(libc::ENOTSUP, "comp_mask names attributes that do not exist"));
        }
        if attr.comp_mask != known {
            return Err(invalid("the address and the flags are both needed"));
        }
        let is_sender = match attr.join_flags {
            RDMA_MC_JOIN_FLAG_FULLMEMBER => false,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => true,
            _ => return Err(invalid("no such join flag")),
        };
        // SAFETY: an address.
        join(id, unsafe { address::read(attr.addr)? }, is_sender, context)
    })
}

pub(crate) unsafe extern "C" fn leave_multicast(id: *mut rdma_cm_id, group: *mut sockaddr) -> c_int {
    guard::minus_one("rdma_leave_multicast", || {
        // SAFETY: an id of ours, and an address.
        let (id, group) = unsafe { (Id::of(id)?, address::read(group)?) };
        leave(id, group)
    })
}
