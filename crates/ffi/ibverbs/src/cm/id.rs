//! Ids: creation, destruction, binding, resolution, queries.

use super::channel;
use crate::abi::{ibv_context, ibv_qp_attr};
use crate::context::Context;
use crate::errno::{Refused, invalid};
use crate::guard;
use crate::qp::{reported, state};
use ferroce_bridge::address::Address;
use ferroce_bridge::cm::{Channel, Id, Setting, Standing};
use ferroce_nic::{CmId, PortSpace};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

/// The id behind a pointer.
///
/// # Safety
/// NULL, or an id of [`create_id`] or of an event that was not freed.
pub(super) unsafe fn of(id: *mut Id) -> Result<Arc<CmId>, Refused> {
    if id.is_null() {
        return Err(invalid("the id is NULL"));
    }
    let id = id.cast_const().cast::<CmId>();
    // SAFETY: as the caller promises: librdmacm holds a counted pointer, of which this is another.
    unsafe {
        Arc::increment_strong_count(id);
        Ok(Arc::from_raw(id))
    }
}

/// An address and port from librdmacm.
///
/// # Safety
/// NULL, or readable.
pub(super) unsafe fn address(from: *const Address) -> Result<SocketAddr, Refused> {
    // SAFETY: as the caller promises.
    let address = unsafe { from.as_ref() }.and_then(|address| address.to_socket());
    address.ok_or(invalid("neither an IPv4 nor an IPv6 address"))
}

pub(super) unsafe extern "C" fn create_id(
    context: *mut ibv_context,
    channel: *mut Channel,
    space: u32,
    cookie: u64,
    out: *mut *mut Id,
) -> c_int {
    guard::number("rdma_create_id", || {
        // SAFETY: a context and a channel of ours.
        let (context, channel) = unsafe { (Context::of(context)?, channel::of(channel)?) };
        let space = u16::try_from(space).ok().and_then(PortSpace::from_code);
        let space = space.ok_or(invalid("no such port space"))?;
        let id = context.nic.create_cm_id(channel, space, cookie)?;
        // SAFETY: librdmacm provides memory for it.
        unsafe { *out = Arc::into_raw(id).cast_mut().cast() };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn close_id(id: *mut Id) -> u32 {
    let closed = guard::run("rdma_destroy_id", || {
        // SAFETY: an id of ours.
        let id = unsafe { of(id)? };
        id.close();
        Ok(id.handed_out())
    });
    closed.unwrap_or(0)
}

pub(super) unsafe extern "C" fn free_id(id: *mut Id) {
    guard::quiet("rdma_destroy_id", || {
        if !id.is_null() {
            // SAFETY: the pointer that librdmacm held and does not use afterwards.
            drop(unsafe { Arc::from_raw(id.cast_const().cast::<CmId>()) });
        }
        Ok(())
    });
}

pub(super) unsafe extern "C" fn migrate_id(id: *mut Id, to: *mut Channel) -> u32 {
    let moved = guard::run("rdma_migrate_id", || {
        // SAFETY: an id and a channel of ours.
        let (id, to) = unsafe { (of(id)?, channel::of(to)?) };
        id.migrate(to);
        Ok(id.handed_out())
    });
    moved.unwrap_or(0)
}

pub(super) unsafe extern "C" fn query_id(id: *mut Id, out: *mut Standing) {
    guard::quiet("rdma_cm_id", || {
        // SAFETY: an id of ours.
        let id = unsafe { of(id)? };
        let mut standing = Standing {
            local: id.local_addr().map(Address::from).unwrap_or_default(),
            peer: id.peer_addr().map(Address::from).unwrap_or_default(),
            ..Standing::default()
        };
        if let Some(path) = id.path() {
            standing.has_path = 1;
            (standing.sgid, standing.dgid) = (path.sgid.0, path.dgid.0);
            standing.flow_label = path.flow_label;
            (standing.hop_limit, standing.traffic_class) = (path.hop_limit, path.traffic_class);
            (standing.sl, standing.mtu, standing.ack_timeout) = (path.sl, path.mtu as u8, path.ack_timeout);
        }
        // SAFETY: librdmacm provides memory for it.
        unsafe { *out = standing };
        Ok(())
    });
}

pub(super) unsafe extern "C" fn set(id: *mut Id, setting: u32, value: u32) -> c_int {
    guard::number("rdma_set_option", || {
        // SAFETY: an id of ours.
        let id = unsafe { of(id)? };
        let (byte, truth) = (value as u8, value != 0);
        let is = |known: Setting| known as u32 == setting;
        match setting {
            _ if is(Setting::Tos) => id.set_options(|options| options.tos = byte),
            _ if is(Setting::ReuseAddress) => id.set_options(|options| options.reuse_address = truth),
            _ if is(Setting::AfOnly) => id.set_options(|options| options.af_only = truth),
            _ if is(Setting::AckTimeout) => id.set_options(|options| options.ack_timeout = Some(byte)),
            _ if is(Setting::Datagrams) => id.set_datagram(truth),
            _ if is(Setting::FullPrivateData) => id.set_options(|options| options.full_private_data = truth),
            _ if is(Setting::PortSpace) => {
                let space = u16::try_from(value).ok().and_then(PortSpace::from_code);
                id.set_options(|options| options.port_space = space);
            }
            _ => return Err(invalid("no such setting")),
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn bind(id: *mut Id, to: *const Address) -> c_int {
    guard::number("rdma_bind_addr", || {
        // SAFETY: an id of ours, and an address.
        let (id, to) = unsafe { (of(id)?, address(to)?) };
        Ok(id.bind(to)?)
    })
}

pub(super) unsafe extern "C" fn listen(id: *mut Id, backlog: c_int) -> c_int {
    // SAFETY: an id of ours.
    guard::number("rdma_listen", || Ok(unsafe { of(id)? }.listen(backlog.max(0) as u32)?))
}

pub(super) unsafe extern "C" fn resolve_addr(
    id: *mut Id,
    source: *const Address,
    to: *const Address,
) -> c_int {
    guard::number("rdma_resolve_addr", || {
        // SAFETY: an id of ours, and addresses.
        let (id, source, to) = unsafe { (of(id)?, source.as_ref(), address(to)?) };
        Ok(id.resolve_addr(source.and_then(|source| source.to_socket()), to)?)
    })
}

pub(super) unsafe extern "C" fn resolve_route(id: *mut Id) -> c_int {
    // SAFETY: an id of ours.
    guard::number("rdma_resolve_route", || Ok(unsafe { of(id)? }.resolve_route()?))
}

pub(super) unsafe extern "C" fn qp_attributes(
    id: *mut Id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    guard::number("rdma_init_qp_attr", || {
        // SAFETY: an id of ours; the others are NULL, or memory for the results.
        let (id, attr, mask) = unsafe { (of(id)?, attr.as_mut(), mask.as_mut()) };
        let (Some(attr), Some(mask)) = (attr, mask) else { return Err(invalid("qp_attr or mask is NULL")) };
        let (found, bits) = id.qp_attributes(state(attr.qp_state)?)?;
        *attr = reported(&found);
        *mask = bits.bits() as c_int;
        Ok(())
    })
}
