//! The Ethernet address of a GID: our own, a group's, or that of the kernel's neighbour table.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid};
use crate::guard;
use ferroce_proto::Gid;
use socket2::{Socket, Type};
use std::ffi::c_int;
use std::io::Read;
use std::net::IpAddr;

type Mac = [u8; 6];

/// The kernel's value for no VLAN.
const NO_VLAN: u16 = 0xffff;
const UNREACHABLE: Refused =
    Refused::Errno(libc::EHOSTUNREACH, "the kernel's neighbour table does not have the address");

/// Returns negative numbers on failure, as the real one. It sends no packets, so an address that was never used may
/// be unknown.
pub(crate) unsafe extern "C" fn resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut Mac,
    vlan: *mut u16,
) -> c_int {
    let found = guard::run("ibv_resolve_eth_l2_from_gid", || {
        // SAFETY: a context of ours, the program's address, and room for the answers.
        let (context, attr, mac, vlan) =
            unsafe { (Context::of(context)?, attr.as_ref(), mac.as_mut(), vlan.as_mut()) };
        let (Some(attr), Some(mac)) = (attr, mac) else { return Err(invalid("attr or eth_mac is NULL")) };
        let table = context.nic.gids();
        let source = table.get(usize::from(attr.grh.sgid_index)).ok_or(invalid("no such sgid_index"))?;
        let to = Gid(attr.grh.dgid.raw);
        *mac = match table.iter().find(|entry| entry.gid == to) {
            Some(own) => own.hardware_address()?,
            None if to.is_multicast() => group(to.to_ip()),
            None => neighbour(source.if_index, to.to_ip())?,
        };
        if let Some(vlan) = vlan {
            *vlan = NO_VLAN;
        }
        Ok(())
    });
    found.map_or_else(|errno| -errno, |()| 0)
}

/// RFC 1112 and RFC 2464.
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

/// Searches the kernel's neighbour table for the address.
fn neighbour(if_index: u32, address: IpAddr) -> Result<Mac, Refused> {
    let mut socket = Socket::new(libc::AF_NETLINK.into(), Type::RAW, Some(libc::NETLINK_ROUTE.into()))?;
    let mut request = [0u8; 28];
    request[..4].copy_from_slice(&28u32.to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETNEIGH.to_ne_bytes());
    request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    request[16] = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    socket.send(&request)?;
    let mut answer = vec![0u8; 1 << 16];
    loop {
        let n = socket.read(&mut answer)?;
        let mut rest = &answer[..n];
        while let Some((kind, body)) = next_message(&mut rest) {
            if kind != libc::RTM_NEWNEIGH {
                return Err(UNREACHABLE);
            }
            if let Some(mac) = entry(body, if_index, address) {
                return Ok(mac);
            }
        }
        if n == 0 {
            return Err(UNREACHABLE);
        }
    }
}

/// Takes one message off the front: its type and what follows its header.
fn next_message<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    const HEADER: usize = 16;
    let len = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(rest.get(4..6)?.try_into().ok()?);
    let body = rest.get(HEADER..len)?;
    *rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, body))
}

/// The hardware address of a table entry, if it is the one for this address.
fn entry(body: &[u8], if_index: u32, address: IpAddr) -> Option<Mac> {
    const FIXED: usize = 12;
    if u32::from_ne_bytes(body.get(4..8)?.try_into().ok()?) != if_index {
        return None;
    }
    let wanted = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let (mut rest, mut is_it, mut mac) = (body.get(FIXED..)?, false, None);
    while let Some(head) = rest.get(..4) {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let Some(value) = rest.get(4..len) else { break };
        match u16::from_ne_bytes([head[2], head[3]]) {
            libc::NDA_DST => is_it = value == wanted,
            libc::NDA_LLADDR => mac = value.try_into().ok(),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    mac.filter(|_| is_it)
}
