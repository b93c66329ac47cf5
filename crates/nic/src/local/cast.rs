//! Packets to multicast groups, each to every member once.
//!
//! Members that can be reached through a ring get their copy there. The others (of another user, another network namespace,
//! another host, with `FERROCE_LINK=udp`) can only be reached by UDP, and nobody can know whether there are any. So the packet
//! leaves by UDP as well, and the kernel gives a copy to every socket of the host that has joined: to members with a ring
//! that is a second one. They must be able to tell it from a first one, exactly:
//!
//! - packets that also went through rings leave from sockets of their own, whose ports the sender publishes in its segment before it
//!   uses them. A port has one owner in a network namespace. Such a packet is an *echo* to whoever reads a ring of that sender;
//! - the sender puts the packet into the rings first. So when the echo arrives, its receiver can know of the ring;
//! - the sender uses rings only if all NICs of this host that show the group can be reached through one. Otherwise the
//!   packet leaves by UDP alone, from the ordinary sockets, and is nobody's echo;
//! - a receiver that does not publish the group, for want of room, gets nothing through rings and drops no echo. One that publishes
//!   it does so as long as its socket exists;
//! - a sender that is gone is remembered until what it sent by UDP was read.
//!
//! Once a receiver has seen echoes of a sender, it has the kernel drop the others before they reach its socket.

use super::link::LocalLink;
use crate::link::{RxBatch, TxBatch, local_addresses, now};
use ferroce_os::lock::Mutex;
use ferroce_proto::Gid;
use ferroce_proto::qp::Arrival;
use ferroce_proto::verbs::Route;
use ferroce_shm::{GroupDescriptors, LocalPeer, LocalPeers, NOBODY_FOR_NS, RxRings};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long it is believed which interface has an address.
const INTERFACES_FOR_NS: u64 = 1_000_000_000;
/// Groups whose members are remembered.
const MOST_AUDIENCES: usize = 64;
/// How often the members are looked up anew because they changed meanwhile, before the packet goes by UDP.
const LOOKS: usize = 4;

/// Members of a group that hear what is sent from an address.
#[derive(Clone, Debug)]
struct Audience {
    group: Gid,
    sgid: Gid,
    /// What the table counted when they were looked up.
    changes: u64,
    until_ns: u64,
    /// Nothing: rings cannot be used.
    members: Option<Arc<[Arc<LocalPeer>]>>,
}

/// What a NIC needs to send to groups.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) table: GroupDescriptors,
    audiences: Mutex<Vec<Audience>>,
    pub(super) echoes: AtomicU64,
}

impl Cast {
    pub(super) fn open(local_peers: &LocalPeers) -> io::Result<Cast> {
        let table = local_peers.group_descriptors()?;
        Ok(Cast { table, audiences: Mutex::default(), echoes: AtomicU64::new(0) })
    }

    /// Whom rings lead to, of those who hear what is sent to `group` from `sgid`. Nothing if rings cannot be used.
    fn members(&self, local_peers: &LocalPeers, group: Gid, sgid: Gid) -> Option<Arc<[Arc<LocalPeer>]>> {
        let mut audiences = self.audiences.lock();
        let known = audiences.iter().position(|a| (a.group, a.sgid) == (group, sgid));
        if let Some(known) = known.map(|index| &audiences[index])
            && known.changes == self.table.changes()
            && now().0 < known.until_ns
        {
            return known.members.clone();
        }
        let fresh = self.look_up(local_peers, group, sgid);
        let members = fresh.members.clone();
        match known {
            Some(index) => audiences[index] = fresh,
            None => {
                audiences.truncate(MOST_AUDIENCES - 1);
                audiences.insert(0, fresh);
            }
        }
        members
    }

    fn look_up(&self, local_peers: &LocalPeers, group: Gid, sgid: Gid) -> Audience {
        let mut audience = Audience { group, sgid, changes: 0, until_ns: 0, members: None };
        let interface = interface_of(sgid);
        for _ in 0..LOOKS {
            audience.changes = self.table.changes();
            audience.members = interface.and_then(|interface| self.listeners(local_peers, group, interface));
            if audience.changes == self.table.changes() {
                break;
            }
            audience.members = None;
        }
        let good_for_ns = if audience.members.is_some() { INTERFACES_FOR_NS } else { NOBODY_FOR_NS };
        audience.until_ns = now().0 + good_for_ns;
        audience
    }

    /// All who listen; nothing if somebody who may be among them cannot be reached.
    fn listeners(
        &self,
        local_peers: &LocalPeers,
        group: Gid,
        interface: u32,
    ) -> Option<Arc<[Arc<LocalPeer>]>> {
        let mut found = Vec::new();
        for slot in self.table.slots(group) {
            match local_peers.in_slot(slot) {
                Some(local_peer) if local_peer.listens(group, interface) => found.push(local_peer),
                Some(_) => {}
                None if local_peers.is_alive(slot) => return None,
                None => {}
            }
        }
        Some(found.into())
    }
}

/// The interface by which the kernel sends what comes from an address to a group; nothing if that is not certain.
fn interface_of(sgid: Gid) -> Option<u32> {
    let (ip, all) = (sgid.to_ip(), local_addresses().ok()?);
    let mut has_it = all.iter().filter(|local| local.addr == ip).map(|local| local.index);
    match (has_it.next(), has_it.next()) {
        (Some(index), None) => Some(index),
        // All of 127.0.0.0/8 is there, although only one address is listed.
        (None, _) if ip.is_ipv4() && ip.is_loopback() => {
            all.iter().find(|local| local.addr.is_ipv4() && local.addr.is_loopback()).map(|local| local.index)
        }
        _ => None,
    }
}

impl LocalLink {
    /// Puts a packet to a group into the rings that lead to its members. If so, it must leave as an echo.
    pub(super) fn push_to_group(&self, batch: &TxBatch, index: usize) -> bool {
        let route = &batch.entries()[index].route;
        let local_peers = self.local_peers();
        let Some(members) = self.cast.members(local_peers, route.dgid, route.sgid) else { return false };
        if members.is_empty() || !self.has_echo_exit(route) {
            return false;
        }
        for member in members.iter().filter(|member| member.lives()) {
            self.push(member, batch, index);
            self.wake_if_asleep(member);
        }
        true
    }

    fn has_echo_exit(&self, route: &Route) -> bool {
        let exit = self.udp.echo_socket(route);
        exit.is_some_and(|exit| self.cast.table.publish_echo_socket(exit))
    }

    /// Drops what came through a ring as well. Returns how many packets are left.
    pub(super) fn drop_echoes(&self, rings: &mut RxRings, rx: &mut RxBatch) -> usize {
        if !self.cast.table.publishes_any() || !rx.packets().any(|packet| packet.arrival.dgid.is_multicast())
        {
            return rx.len();
        }
        // Its sender has rung before it sent the echo.
        rings.open_new(self.local_peers());
        let before = rx.len();
        rx.retain(|&Arrival { sgid, dgid, .. }, sport| {
            let is_twice = dgid.is_multicast() && self.cast.table.is_published(dgid);
            !(is_twice && rings.is_echo(sgid, sport))
        });
        let echoes = before - rx.len();
        self.cast.echoes.fetch_add(echoes as u64, Ordering::Relaxed);
        if echoes > 0 {
            rings.saw_echo();
        }
        rx.len()
    }

    /// Has the kernel drop the echoes of all whose rings are read, and of nobody else.
    pub(super) fn ignore_echoes(&self, rings: &mut RxRings) {
        if let Some(origins) = rings.changed_echo_sockets() {
            self.udp.ignore_in_groups(&origins, |group| self.cast.table.is_published(group));
        }
    }
}
