//! Binding, listening, and resolving addresses and routes.

use super::CmId;
use super::event::{CmEventKind, UDP_QKEY, UdParam};
use super::id::{Bound, IdState};
use crate::addresses::source_towards;
use crate::error::{CmRefusal, Error};
use crate::gids::GidEntry;
use ferroce_proto::cm::{ListenerOptions, Path, Scope, ServiceId};
use ferroce_proto::{Gid, Qpn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

/// Transport timer exponent of a path: 0.5 seconds, which also suffices for a peer on a busy machine.
const ACK_TIMEOUT: u8 = 17;
const HOP_LIMIT: u8 = 64;

impl CmId {
    /// Binds to an address and port; port 0 selects a free one.
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        self.usable()?;
        let mut state = self.state.lock();
        if state.bound.is_some() || state.socket.is_some() || state.is_used() || state.is_closed {
            return Err(CmRefusal::WrongState { why: "it is bound already" }.into());
        }
        self.bind_locked(&mut state, address)
    }

    fn bind_locked(&self, state: &mut IdState, address: SocketAddr) -> Result<(), Error> {
        let ip = address.ip().to_canonical();
        if !ip.is_unspecified() && self.service.addresses.find(Gid::from_ip(ip)).is_none() {
            return Err(CmRefusal::AddressNotAvailable { address: ip }.into());
        }
        if self.service.streams.is_some() {
            return self.bind_stream(state, address);
        }
        let scope = scope_of(ip, state.options.af_only);
        let ports = self.service.ports()?;
        let space = state.options.port_space.unwrap_or(self.space);
        let bound = if address.port() == 0 {
            let port = ports.take_ephemeral(space).map_err(CmRefusal::from)?;
            Bound { space, port, scope, is_ephemeral: true, is_listed: false }
        } else {
            let share = state.options.reuse_address;
            ports.bind(space, address.port(), scope, share).map_err(CmRefusal::from)?;
            Bound { space, port: address.port(), scope, is_ephemeral: false, is_listed: true }
        };
        state.bound = Some(bound);
        state.local = Some(SocketAddr::new(ip, bound.port));
        Ok(())
    }

    /// Listens on the bound address and port. The program may leave up to `backlog` connection requests undecided.
    pub fn listen(self: &Arc<Self>, backlog: u32) -> Result<(), Error> {
        self.usable()?;
        let mut state = self.state.lock();
        if state.is_used() {
            return Err(CmRefusal::WrongState { why: "it listens or is connected already" }.into());
        }
        let backlog = if backlog == 0 { DEFAULT_BACKLOG } else { backlog };
        if state.bound.is_none() && state.socket.is_none() {
            self.bind_locked(&mut state, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))?;
        }
        if let Some(streams) = &self.service.streams {
            return self.listen_stream(streams, &mut state, backlog);
        }
        let Some(bound) = state.bound.as_mut() else { return Ok(()) };
        self.service.ports()?.listen(bound.space, bound.port, bound.scope).map_err(CmRefusal::from)?;
        bound.is_listed = true;
        let service = ServiceId::of_port(bound.space, bound.port);
        let (scope, weak) = (bound.scope, Arc::downgrade(self));
        let secret = state.secret.clone();
        let options = ListenerOptions {
            datagrams: self.is_datagram(),
            whole_private_data: state.options.full_private_data,
        };
        let listener = self.service.manage(|managed| {
            let listener = managed.cm.listen(service, scope, backlog)?;
            managed.cm.set_listener_options(listener, options);
            if let Some(secret) = secret {
                managed.cm.set_listener_secret(listener, secret);
            }
            managed.listeners.insert(listener, weak);
            Ok::<_, CmRefusal>(listener)
        })?;
        state.listener = Some(listener);
        Ok(())
    }

    /// Finds the local address from which `destination` is reached, and binds to it unless the id is bound.
    /// [`CmEventKind::AddrResolved`] or [`CmEventKind::AddrError`] follows.
    pub fn resolve_addr(
        self: &Arc<Self>,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(), Error> {
        self.usable()?;
        let mut state = self.state.lock();
        if state.is_used() {
            return Err(CmRefusal::WrongState { why: "it listens or is connected already" }.into());
        }
        let preferred = state.local.or(source).map(|s| s.ip()).filter(|ip| !ip.is_unspecified());
        let found = self.find_path(&state, preferred, destination.ip().to_canonical(), scope_id(destination));
        let path = match found {
            Ok(path) => path,
            Err(CmRefusal::Unreachable { source, .. }) => {
                let errno = source.raw_os_error().unwrap_or(libc::EHOSTUNREACH);
                drop(state);
                self.raise(CmEventKind::AddrError, -errno);
                return Ok(());
            }
            Err(refusal) => return Err(refusal.into()),
        };
        if state.bound.is_none() && state.socket.is_none() {
            let port = source.map_or(0, |s| s.port());
            self.bind_locked(&mut state, scoped(path.sgid.to_ip(), port, scope_id(destination)))?;
        }
        let port = state.local.map_or(0, |local| local.port());
        state.local = Some(SocketAddr::new(path.sgid.to_ip(), port));
        *self.peer.lock() = Some(scoped(path.dgid.to_ip(), destination.port(), scope_id(destination)));
        state.path = Some(path);
        drop(state);
        self.raise(CmEventKind::AddrResolved, 0);
        Ok(())
    }

    /// Fixes the path to the destination. [`CmEventKind::RouteResolved`] follows.
    pub fn resolve_route(self: &Arc<Self>) -> Result<(), Error> {
        self.usable()?;
        let mut state = self.state.lock();
        let options = state.options;
        let Some(path) = state.path.as_mut() else {
            return Err(CmRefusal::WrongState { why: "the address is not resolved" }.into());
        };
        // The program may have set options after the address was resolved.
        path.traffic_class = options.tos;
        path.ack_timeout = options.ack_timeout.unwrap_or(ACK_TIMEOUT);
        state.is_routed = true;
        drop(state);
        self.raise(CmEventKind::RouteResolved, 0);
        Ok(())
    }

    /// Joins a multicast group: [`CmEventKind::MulticastJoin`] follows, with the address of the group. The caller attaches the
    /// queue pair.
    pub fn join_multicast(self: &Arc<Self>, group: IpAddr) -> Result<(), Error> {
        self.usable()?;
        if self.service.streams.is_some() {
            return Err(Error::NotOnThisWire { what: "multicast" });
        }
        let state = self.state.lock();
        let preferred = state.local.map(|s| s.ip()).filter(|ip| !ip.is_unspecified());
        let mgid = Gid::from_ip(group.to_canonical());
        let path = match state.path {
            Some(path) => Path { dgid: mgid, ..path },
            None => self.find_path(&state, preferred, group.to_canonical(), 0)?,
        };
        drop(state);
        let ud =
            UdParam { private_data: Vec::new(), vector: path.vector(), qpn: Qpn::MULTICAST, qkey: UDP_QKEY };
        self.raise_with(CmEventKind::MulticastJoin, 0, |event| event.ud = Some(ud));
        Ok(())
    }

    /// The path between two addresses, if there is one.
    pub(super) fn path_between(&self, from: IpAddr, to: IpAddr) -> Option<Path> {
        self.find_path(&IdState::default(), Some(from), to, 0).ok()
    }

    fn find_path(
        &self,
        state: &IdState,
        preferred: Option<IpAddr>,
        to: IpAddr,
        scope_id: u32,
    ) -> Result<Path, CmRefusal> {
        let entries = self.service.addresses.entries.read().clone();
        let to = if to.is_unspecified() { preferred.unwrap_or_else(|| loopback(to)) } else { to };
        let from = match preferred {
            Some(address) => address.to_canonical(),
            None => source_for(&entries, to, scope_id)?,
        };
        if from.is_ipv4() != to.is_ipv4() {
            let source = io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
            return Err(CmRefusal::Unreachable { destination: to, source });
        }
        let sgid = Gid::from_ip(from);
        let (sgid_index, mtu) =
            self.service.addresses.find(sgid).ok_or(CmRefusal::AddressNotAvailable { address: from })?;
        Ok(Path {
            sgid,
            dgid: Gid::from_ip(to),
            sgid_index,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            traffic_class: state.options.tos,
            sl: 0,
            mtu,
            ack_timeout: state.options.ack_timeout.unwrap_or(ACK_TIMEOUT),
        })
    }
}

/// Backlog of a listener that requests 0.
const DEFAULT_BACKLOG: u32 = 1024;

fn loopback(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// The interface that a link-local address belongs to; 0 for all others.
fn scope_id(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

fn scoped(address: IpAddr, port: u16, scope_id: u32) -> SocketAddr {
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, port),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, scope_id).into(),
    }
}

fn scope_of(address: IpAddr, af_only: bool) -> Scope {
    match address {
        IpAddr::V4(a) if a.is_unspecified() => Scope::AnyV4,
        IpAddr::V6(a) if a.is_unspecified() && af_only => Scope::AnyV6,
        IpAddr::V6(a) if a.is_unspecified() => Scope::Any,
        address => Scope::Only(Gid::from_ip(address)),
    }
}

/// The source address that the kernel would choose, or another one of the same kind if the device does not have it. For example, a device
/// that has only 127.0.0.5 reaches 127.0.0.6 from there, although the kernel would choose 127.0.0.1.
fn source_for(entries: &[GidEntry], to: IpAddr, scope_id: u32) -> Result<IpAddr, CmRefusal> {
    let unreachable = |source| CmRefusal::Unreachable { destination: to, source };
    let chosen = source_towards(None, to, scope_id).map_err(unreachable)?;
    if entries.iter().any(|e| e.address == chosen) {
        return Ok(chosen);
    }
    let same = |e: &&GidEntry| {
        e.address.is_ipv4() == chosen.is_ipv4() && e.address.is_loopback() == chosen.is_loopback()
    };
    let other = entries.iter().find(same).map(|e| e.address);
    other.ok_or_else(|| unreachable(io::Error::from_raw_os_error(libc::ENODEV)))
}
