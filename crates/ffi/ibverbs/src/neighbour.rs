//! The Ethernet address of a GID: the device's own, that of a multicast group, or the one in the kernel's neighbour table.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid};
use crate::guard;
use ferroce_nic::Neighbour;
use ferroce_proto::Gid;
use std::ffi::c_int;
use std::net::IpAddr;

type Mac = [u8; 6];

/// The kernel's value for no VLAN.
const NO_VLAN: u16 = 0xffff;
const UNREACHABLE: Refused =
    Refused::Errno(libc::EHOSTUNREACH, "the kernel's neighbour table does not have the address");

/// Returns negative numbers on failure, as rdma-core does. It sends no packets, so an address without a neighbour entry is
/// unknown.
pub(crate) unsafe extern "C" fn resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut Mac,
    vlan: *mut u16,
) -> c_int {
    let found = guard::run("ibv_resolve_eth_l2_from_gid", || {
        // SAFETY: a context of ours, the program's address, and NULL or memory for the result.
        let (context, attr, mac, vlan) =
            unsafe { (Context::of(context)?, attr.as_ref(), mac.as_mut(), vlan.as_mut()) };
        let (Some(attr), Some(mac)) = (attr, mac) else { return Err(invalid("attr or eth_mac is NULL")) };
        let table = context.nic.gids();
        let source = table.get(usize::from(attr.grh.sgid_index)).ok_or(invalid("no such sgid_index"))?;
        let to = Gid(attr.grh.dgid.raw);
        *mac = match table.iter().find(|entry| entry.gid == to) {
            Some(own) => own.hardware_address()?,
            None if to.is_multicast() => group(to.to_ip()),
            None => Neighbour::find(source.if_index, to.to_ip())?
                .and_then(|entry| entry.mac)
                .ok_or(UNREACHABLE)?,
        };
        if let Some(vlan) = vlan {
            *vlan = NO_VLAN;
        }
        Ok(())
    });
    found.map_or_else(|errno| -errno, |()| 0)
}

/// The Ethernet address of a multicast group (RFC 1112, RFC 2464).
fn group(address: IpAddr) -> Mac {
    match address {
        IpAddr::V4(v4) => {
            let [_, b, c, d] = v4.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(v6) => {
            let low = v6.octets();
            [0x33, 0x33, low[12], low[13], low[14], low[15]]
        }
    }
}
