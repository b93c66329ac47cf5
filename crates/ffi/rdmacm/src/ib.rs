//! Addresses of the family AF_IB: a GID and a service ID instead of an IP address and a port.
//!
//! They belong to InfiniBand. On a RoCE device Linux accepts only the wildcard addresses, with which a program listens to a
//! service on all devices. It finds no device for any other GID. This library does the same.

use crate::abi::*;
use crate::address;
use crate::device::Device;
use crate::event;
use crate::guard::{Refused, check, invalid, refused};
use crate::id::{Id, ask};
use crate::verbs::ibv_query_gid;
use ferroce_bridge::address::Address;
use ferroce_bridge::cm::Setting;
use libc::sockaddr_storage;
use std::net::{Ipv6Addr, SocketAddr};

/// The family's number.
pub(crate) const AF_IB: u16 = 27;
/// The bits of a service ID that name its port space.
const SPACE_MASK: u64 = !0xffff;
/// The default partition key.
const DEFAULT_PKEY: u16 = 0xffff;

/// The structure of <infiniband/ib.h>; its numbers are in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct sockaddr_ib {
    sib_family: u16,
    sib_pkey: u16,
    sib_flowinfo: u32,
    sib_addr: [u8; 16],
    sib_sid: u64,
    sib_sid_mask: u64,
    sib_scope_id: u64,
}
layout!(sockaddr_ib, 48, sib_addr = 8, sib_sid = 24, sib_sid_mask = 32, sib_scope_id = 40);

impl sockaddr_ib {
    /// A GID without a service.
    fn of(gid: [u8; 16]) -> sockaddr_ib {
        sockaddr_ib {
            sib_family: AF_IB,
            sib_pkey: DEFAULT_PKEY.to_be(),
            sib_flowinfo: 0,
            sib_addr: gid,
            sib_sid: 0,
            sib_sid_mask: 0,
            sib_scope_id: 0,
        }
    }

    /// The AF_IB address of the same service as an IPv6 or IPv4 address and port.
    pub(crate) fn of_port(address: SocketAddr, ps: u32) -> sockaddr_ib {
        let port = address.port();
        let port_mask = if port == 0 { 0 } else { u64::from(u16::MAX) };
        let (flow, scope) = match address {
            SocketAddr::V4(_) => (0, 0),
            SocketAddr::V6(v6) => (v6.flowinfo(), v6.scope_id()),
        };
        sockaddr_ib {
            sib_flowinfo: flow,
            sib_sid: (u64::from(ps) << 16 | u64::from(port)).to_be(),
            sib_sid_mask: (if ps == 0 { port_mask } else { SPACE_MASK | port_mask }).to_be(),
            sib_scope_id: scope.into(),
            ..sockaddr_ib::of(address::gid_of(address.ip()).raw)
        }
    }

    /// The port, within the mask.
    fn port(&self) -> u16 {
        u64::from_be(self.sib_sid & self.sib_sid_mask) as u16
    }

    /// The port that `rdma_get_src_port` returns, without the mask.
    pub(crate) fn shown_port(&self) -> u16 {
        u64::from_be(self.sib_sid) as u16
    }

    /// Whether the GID is a wildcard for every device: the unspecified or the loopback GID.
    fn is_any(&self) -> bool {
        let gid = Ipv6Addr::from(self.sib_addr);
        gid.is_unspecified() || gid.is_loopback()
    }

    /// The port space of the service for an id in `ps`; `None` if the id may not use it.
    fn space(&self, ps: u32) -> Option<u32> {
        let mask = u64::from_be(self.sib_sid_mask) & SPACE_MASK;
        let wanted = u64::from_be(self.sib_sid) & mask;
        let may_have = |space: u32| ps == RDMA_PS_IB || ps == space;
        let is_it = |space: &u32| may_have(*space) && wanted == (u64::from(*space) << 16) & mask;
        [RDMA_PS_IB, RDMA_PS_TCP, RDMA_PS_UDP].into_iter().find(is_it)
    }

    /// The same address with the complete service ID.
    fn bound(self, space: u32, port: u16) -> sockaddr_ib {
        let sid = u64::from(space) << 16 | u64::from(port);
        sockaddr_ib { sib_sid: sid.to_be(), sib_sid_mask: u64::MAX, ..self }
    }

    /// Converts it for a program.
    pub(crate) fn write(self) -> sockaddr_storage {
        // SAFETY: numbers, all of which may be zero.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: the storage is larger than every address, and aligned for all.
        unsafe { (&raw mut storage).cast::<sockaddr_ib>().write(self) };
        storage
    }
}

/// The addresses of this family that a program's id has.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) local: sockaddr_ib,
    pub(crate) peer: Option<sockaddr_ib>,
}

impl Names {
    /// The addresses of the id of a connection request: from the path of the request, or from the listener without a path.
    pub(crate) fn of_request(listener: &Names, id: &Id) -> Names {
        let none = sockaddr_ib { sib_pkey: 0, ..sockaddr_ib::of([0; 16]) };
        let standing = id.standing();
        if id.is_datagram() || standing.has_path == 0 {
            return Names { peer: Some(none), ..*listener };
        }
        let flow = standing.flow_label.to_be();
        let local = sockaddr_ib { sib_flowinfo: flow, sib_addr: standing.sgid, ..listener.local };
        let peer = sockaddr_ib { sib_flowinfo: flow, ..sockaddr_ib::of(standing.dgid) };
        Names { local, peer: Some(peer) }
    }
}

const NO_DEVICE: Refused =
    refused(libc::ENODEV, "a GID of the family AF_IB is InfiniBand's; on RoCE use the IP address");

/// Binds an id to a service on all addresses.
pub(crate) fn bind(id: &Id, to: sockaddr_ib) -> Result<(), Refused> {
    if id.standing().local.version != 0 {
        return Err(invalid("it is bound already"));
    }
    if !to.is_any() {
        return Err(NO_DEVICE);
    }
    // SAFETY: the id's own structure.
    let ps = unsafe { (*id.abi()).ps };
    let space = to.space(ps);
    let space = space.ok_or(refused(libc::EPROTONOSUPPORT, "the service is in another port space"))?;
    id.set(Setting::PortSpace, space)?;
    id.set(Setting::FullPrivateData, 1)?;
    let everywhere = Address::from(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), to.port()));
    if let Err(refused) = check(ask!(id, bind(&everywhere))) {
        id.set(Setting::PortSpace, 0)?;
        id.set(Setting::FullPrivateData, 0)?;
        return Err(refused);
    }
    let local = to.bound(space, id.standing().local.port);
    id.state.lock().ib = Some(Names { local, peer: None });
    id.show_addresses();
    Ok(())
}

/// Resolves a destination, which can only be this host.
pub(crate) fn resolve(id: &Id, source: Option<sockaddr_ib>, to: sockaddr_ib) -> Result<(), Refused> {
    if id.standing().local.version == 0 {
        let pkey = to.sib_pkey;
        bind(id, source.unwrap_or(sockaddr_ib { sib_pkey: pkey, ..sockaddr_ib::of([0; 16]) }))?;
    }
    if !to.is_any() {
        return Err(NO_DEVICE);
    }
    {
        let mut state = id.state.lock();
        let names = state.ib.as_mut().ok_or(invalid("it is bound to an address of another family"))?;
        names.peer = Some(to);
        names.local.sib_addr = Ipv6Addr::LOCALHOST.octets();
    }
    let here = first_address(id.device)?;
    check(ask!(id, resolve_addr(std::ptr::null(), &here)))?;
    event::complete(id)
}

/// The address of entry 0 of the GID table, which represents this host.
fn first_address(device: &Device) -> Result<Address, Refused> {
    let mut gid = ibv_gid { raw: [0; 16] };
    // SAFETY: an open context, and a variable for the result.
    if unsafe { ibv_query_gid(device.context, 1, 0, &mut gid) } != 0 {
        return Err(refused(libc::ENODEV, "the device has no address"));
    }
    let ip = Ipv6Addr::from(gid.raw).to_canonical();
    Ok(Address::from(SocketAddr::new(ip, 0)))
}

/// Refuses AF_IB: paths between GIDs belong to InfiniBand's subnet administration. RoCE has none, on Linux, too.
pub(crate) fn check_route(id: &Id) -> Result<(), Refused> {
    if id.state.lock().ib.is_some() { Err(NO_DEVICE) } else { Ok(()) }
}

/// An address of either family.
#[derive(Clone, Copy)]
pub(crate) enum Name {
    Ip(Address),
    Ib(sockaddr_ib),
}

impl Name {
    /// Binds an id to it.
    pub(crate) fn bind(self, id: &Id) -> Result<(), Refused> {
        match self {
            Name::Ip(ip) => address::bind(id, &ip),
            Name::Ib(ib) => bind(id, ib),
        }
    }

    /// Resolves the route to it. Both ends have the same family.
    pub(crate) fn resolve(self, id: &Id, source: Option<Name>) -> Result<(), Refused> {
        let is_ib = id.state.lock().ib.is_some();
        let is_bound = id.standing().local.version != 0;
        let other = invalid("source and destination are of different families");
        match (self, source) {
            (Name::Ip(_), _) if is_ib => Err(other),
            (Name::Ib(_), _) if is_bound && !is_ib => Err(other),
            (Name::Ip(to), None) => address::resolve(id, None, &to),
            (Name::Ip(to), Some(Name::Ip(from))) => address::resolve(id, Some(from), &to),
            (Name::Ib(to), None) => resolve(id, None, to),
            (Name::Ib(to), Some(Name::Ib(from))) => resolve(id, Some(from), to),
            _ => Err(other),
        }
    }
}
