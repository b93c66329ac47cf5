//! Multicast groups: one socket per group, bound to the group's address.
//!
//! The kernel delivers a copy to every socket that joined, so no steering is needed. With one socket per group, the limit of
//! memberships per socket (20 by default) does not limit the number of groups.

use super::UdpLink;
use super::ignore::Origin;
use super::receive::Receiver;
use super::sockets;
use super::source::{Source, SourceKind};
use ferroce_os::interfaces::local_addresses;
use ferroce_proto::Gid;
use socket2::{InterfaceIndexOrAddress, Socket};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// A group that was joined.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) group: Gid,
    joins: u32,
    /// One socket, or one per interface for groups with interface or link scope.
    pub(super) sockets: Vec<Socket>,
    /// The origins whose packets the kernel drops.
    pub(super) ignored: Vec<Origin>,
}

impl UdpLink {
    /// Interfaces on which a group is joined.
    pub(crate) fn group_interfaces(&self, group: Gid) -> io::Result<Vec<u32>> {
        if !group.is_multicast() {
            return Err(invalid(format!("{} is no multicast address", group.to_ip())));
        }
        interfaces(group.to_ip(), self.config.bind.as_deref())
    }

    /// Joins a group on these interfaces, unless it was joined before.
    pub(crate) fn join_on(&self, group: Gid, interfaces: &[u32]) -> io::Result<()> {
        let mut receiver = self.receiver.lock();
        if let Some(membership) = receiver.memberships.iter_mut().find(|m| m.group == group) {
            membership.joins += 1;
            return Ok(());
        }
        let sockets = match is_scoped(group.to_ip()) {
            false => vec![self.group_socket(group, 0, interfaces)?],
            true => first_good(interfaces, |index| self.group_socket(group, index, &[index]))?,
        };
        // All of them before the first one becomes a source: an error closes them, and a closed descriptor leaves the poll set by itself.
        sockets.iter().try_for_each(|socket| self.group_poll.enter(socket.as_raw_fd()))?;
        let source = |socket: &Socket| Source::new(SourceKind::Group(group), socket.as_raw_fd());
        receiver.sources.extend(sockets.iter().map(source));
        receiver.memberships.push(Membership { group, joins: 1, sockets, ignored: Vec::new() });
        Ok(())
    }

    /// A socket for a group on these interfaces.
    fn group_socket(&self, group: Gid, scope: u32, interfaces: &[u32]) -> io::Result<Socket> {
        let addr = group.to_ip();
        let socket = sockets::open_receive_socket(addr, &self.config)?;
        sockets::report_outer_fields(&socket, addr.is_ipv4())?;
        sockets::bind_in_scope(&socket, addr, scope).map_err(io::Error::other)?;
        first_good(interfaces, |index| match addr {
            IpAddr::V4(v4) => socket.join_multicast_v4_n(&v4, &InterfaceIndexOrAddress::Index(index)),
            IpAddr::V6(v6) => socket.join_multicast_v6(&v6, index),
        })?;
        Ok(socket)
    }

    pub(super) fn leave(&self, group: Gid) -> io::Result<()> {
        let mut receiver = self.receiver.lock();
        let Receiver { sources, memberships, .. } = &mut *receiver;
        let Some(index) = memberships.iter().position(|m| m.group == group) else {
            return Err(invalid(format!("group {} was not joined", group.to_ip())));
        };
        memberships[index].joins -= 1;
        if memberships[index].joins == 0 {
            // The descriptor leaves the poll set when it is closed.
            let gone = memberships.swap_remove(index).sockets;
            let is_gone = |s: &Source| gone.iter().any(|socket| socket.as_raw_fd() == s.fd);
            sources.retain(|s| s.kind != SourceKind::Group(group) || !is_gone(s));
        }
        Ok(())
    }
}

/// The interfaces on which to join: all that are up, or those that have one of the bound addresses. This includes loopback, over
/// which processes of one host reach each other.
fn interfaces(group: IpAddr, bound: Option<&[IpAddr]>) -> io::Result<Vec<u32>> {
    let wanted = |addr: &IpAddr| bound.is_none_or(|list| list.contains(addr) || is_loopback_of(list, addr));
    let local = local_addresses()?;
    let usable = local.iter().filter(|a| a.is_up && a.addr.is_ipv4() == group.is_ipv4() && wanted(&a.addr));
    let interfaces: BTreeSet<u32> = usable.map(|a| a.index).collect();
    if interfaces.is_empty() {
        return Err(invalid(format!("no interface that is up can join {group}")));
    }
    Ok(interfaces.into_iter().collect())
}

/// The results of the successful attempts; an error if none succeeded.
fn first_good<T>(interfaces: &[u32], attempt: impl FnMut(u32) -> io::Result<T>) -> io::Result<Vec<T>> {
    let (good, mut bad): (Vec<_>, Vec<_>) = interfaces.iter().copied().map(attempt).partition(Result::is_ok);
    match bad.pop() {
        Some(Err(error)) if good.is_empty() => Err(error),
        _ => Ok(good.into_iter().flatten().collect()),
    }
}

/// Groups of one interface (`ff01`) or one link (`ff02`): the address alone does not name the group.
fn is_scoped(group: IpAddr) -> bool {
    matches!(group, IpAddr::V6(v6) if matches!(v6.segments()[0] & 0xf, 1 | 2))
}

/// Any of 127.0.0.0/8 is bindable although the interface lists only 127.0.0.1.
fn is_loopback_of(bound: &[IpAddr], addr: &IpAddr) -> bool {
    addr.is_loopback() && bound.iter().any(|b| b.is_loopback() && b.is_ipv4() == addr.is_ipv4())
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
