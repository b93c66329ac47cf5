//! Multicast groups: one socket per group, bound to the group's address.
//!
//! The kernel gives a copy to every socket that joined, so processes need no steering. A socket of its own per group
//! keeps the number of memberships per socket (20 by default) from limiting the number of groups.

use super::UdpLink;
use super::interfaces::local_addresses;
use super::receive::Receiver;
use super::sockets;
use super::source::{Source, SourceKind};
use ferroce_proto::Gid;
use socket2::{InterfaceIndexOrAddress, Socket};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// A group that was joined.
#[derive(Debug)]
pub(super) struct Membership {
    group: Gid,
    joins: u32,
    socket: Socket,
}

impl UdpLink {
    pub(super) fn join(&self, group: Gid) -> io::Result<()> {
        if !group.is_multicast() {
            return Err(invalid(format!("{} is no multicast address", group.to_ip())));
        }
        let mut receiver = self.receiver.lock();
        if let Some(membership) = receiver.memberships.iter_mut().find(|m| m.group == group) {
            membership.joins += 1;
            return Ok(());
        }
        let socket = sockets::open_receive_socket(group.to_ip(), &self.config)?;
        sockets::report_outer_fields(&socket, group.to_ip().is_ipv4())?;
        sockets::bind(&socket, group.to_ip()).map_err(io::Error::other)?;
        join_everywhere(&socket, group.to_ip(), self.config.bind.as_deref())?;
        self.group_poll.add(&socket)?;
        receiver.sources.push(Source::new(SourceKind::Group(group), socket.as_raw_fd()));
        receiver.memberships.push(Membership { group, joins: 1, socket });
        Ok(())
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
            let fd = memberships.swap_remove(index).socket.as_raw_fd();
            sources.retain(|s| s.fd != fd || s.kind != SourceKind::Group(group));
        }
        Ok(())
    }
}

/// Joins on every interface that is up, or on those that have one of the addresses we are bound to. Loopback is among
/// them: two processes of one host meet there.
fn join_everywhere(socket: &Socket, group: IpAddr, bound: Option<&[IpAddr]>) -> io::Result<()> {
    let wanted = |addr: &IpAddr| bound.is_none_or(|list| list.contains(addr) || is_loopback_of(list, addr));
    let local = local_addresses()?;
    let usable = local.iter().filter(|a| a.is_up && a.addr.is_ipv4() == group.is_ipv4() && wanted(&a.addr));
    let interfaces: BTreeSet<u32> = usable.map(|a| a.index).collect();
    let mut last = invalid(format!("no interface that is up can join {group}"));
    let mut joined = false;
    for index in interfaces {
        let result = match group {
            IpAddr::V4(v4) => socket.join_multicast_v4_n(&v4, &InterfaceIndexOrAddress::Index(index)),
            IpAddr::V6(v6) => socket.join_multicast_v6(&v6, index),
        };
        match result {
            Ok(()) => joined = true,
            Err(e) => last = e,
        }
    }
    if joined { Ok(()) } else { Err(last) }
}

/// Any of 127.0.0.0/8 is bindable although the interface lists only 127.0.0.1.
fn is_loopback_of(bound: &[IpAddr], addr: &IpAddr) -> bool {
    addr.is_loopback() && bound.iter().any(|b| b.is_loopback() && b.is_ipv4() == addr.is_ipv4())
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
