//! Binding ids, and resolving addresses.

use crate::abi::*;
use crate::event;
use crate::guard::{self, Refused, check, invalid};
use crate::ib::{AF_IB, Name, sockaddr_ib};
use crate::id::{Id, ask};
use ferroce_bridge::address::Address;
use libc::sockaddr;
use std::ffi::c_int;
use std::net::IpAddr;
use std::ptr;

/// Reads an address from a program's pointer, where only IPv4 and IPv6 are valid.
///
/// # Safety
/// NULL, or an address with the length of its family.
pub(crate) unsafe fn read(address: *const sockaddr) -> Result<Address, Refused> {
    // SAFETY: as the caller promises.
    unsafe { Address::read(address) }.ok_or(invalid("neither an IPv4 nor an IPv6 address"))
}

/// The same where an InfiniBand service address is valid, too.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn read_name(address: *const sockaddr) -> Result<Name, Refused> {
    // SAFETY: as the caller promises; programs need not align it.
    unsafe {
        match address.as_ref() {
            Some(found) if found.sa_family == AF_IB => {
                Ok(Name::Ib(address.cast::<sockaddr_ib>().read_unaligned()))
            }
            _ => read(address).map(Name::Ip),
        }
    }
}

/// The same where the address is optional: NULL means none.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn read_optional(address: *const sockaddr) -> Result<Option<Name>, Refused> {
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    unsafe { read_name(address).map(Some) }
}

/// The GID of an address on RoCE: an IPv4 address is mapped into IPv6.
pub(crate) fn gid_of(address: IpAddr) -> ibv_gid {
    let raw = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    ibv_gid { raw }
}

/// Binds an id.
pub(crate) fn bind(id: &Id, address: &Address) -> Result<(), Refused> {
    check(ask!(id, bind(address)))?;
    id.show_addresses();
    Ok(())
}

/// Resolves a destination. The timeout is ignored: no network traffic is needed.
pub(crate) fn resolve(id: &Id, source: Option<Address>, to: &Address) -> Result<(), Refused> {
    let source = source.as_ref().map_or(ptr::null(), ptr::from_ref);
    check(ask!(id, resolve_addr(source, to)))?;
    // SAFETY: the id's own structure.
    unsafe { (*id.abi()).route.addr.dst = to.write().0 };
    event::complete(id)
}

pub(crate) unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    guard::minus_one("rdma_bind_addr", || {
        // SAFETY: an id of ours, and an address.
        let (id, address) = unsafe { (Id::of(id)?, read_name(address)?) };
        address.bind(id)
    })
}

pub(crate) unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    to: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    guard::minus_one("rdma_resolve_addr", || {
        // SAFETY: an id of ours, and addresses, of which the first may be NULL.
        let (id, source, to) = unsafe { (Id::of(id)?, read_optional(source)?, read_name(to)?) };
        to.resolve(id, source)
    })
}

/// The port of a program's address in network byte order, or 0 if it has none.
fn port(address: &libc::sockaddr_storage) -> u16 {
    // SAFETY: a `sockaddr_storage` is as long as every address.
    match unsafe { read_name(ptr::from_ref(address).cast()) } {
        Ok(Name::Ip(address)) => address.port.to_be(),
        Ok(Name::Ib(address)) => address.shown_port().to_be(),
        Err(_) => 0,
    }
}

pub(crate) unsafe extern "C" fn src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: an id of ours.
    unsafe { id.as_ref() }.map_or(0, |id| port(&id.route.addr.src))
}

pub(crate) unsafe extern "C" fn dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: an id of ours.
    unsafe { id.as_ref() }.map_or(0, |id| port(&id.route.addr.dst))
}
