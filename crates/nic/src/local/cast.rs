//! Packets to multicast groups, delivered once to every member.
//!
//! Members that have a ring from the sender get their copy there. Other members (of another user, network namespace or host, or with
//! `FERROCE_LINK=udp`) can only be reached by UDP, and the sender cannot detect whether there are any. So the packet leaves by UDP as well,
//! and the kernel delivers a copy to every socket of the host that has joined. For members with a ring that is a duplicate, which they
//! must recognise reliably:
//!
//! - Packets that also went through rings leave from separate sockets. The sender publishes their ports in its segment before it uses them,
//!   and a port has one owner in a network namespace. Such a packet is an *echo* for every reader of a ring of that sender.
//! - The sender puts the packet into the rings first. So the receiver of the echo can find the ring.
//! - The sender uses rings only if all NICs of this host that publish the group have one. Otherwise the packet leaves by UDP alone, from the
//!   ordinary sockets, and is no echo.
//! - A receiver that cannot publish the group, because its table is full, gets no packets through rings and drops no echoes. A receiver that
//!   publishes the group does so as long as its socket exists.
//! - A receiver remembers a sender that ended until it has read all packets that this sender sent by UDP.
//!
//! Once a receiver has seen echoes of a sender, it lets the kernel drop further ones before they reach its socket.

use super::link::LocalLink;
use crate::link::{RxBatch, TxBatch, local_addresses, now};
use ferroce_os::lock::Mutex;
use ferroce_proto::Gid;
use ferroce_proto::qp::{Arrival, Attempt};
use ferroce_proto::verbs::Route;
use ferroce_shm::{GroupDescriptors, LocalPeer, LocalPeers, NOBODY_FOR_NS, RxRings};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long the interface of an address is cached.
const INTERFACES_FOR_NS: u64 = 1_000_000_000;
/// Groups whose members are cached.
const MAX_CACHED: usize = 64;
/// Most lookups of the members, if they change during each lookup. After that the packet goes by UDP alone.
const LOOKUPS: usize = 4;

/// Members of a group that receive what is sent from an address.
#[derive(Clone, Debug)]
struct CachedMembers {
    group: Gid,
    sgid: Gid,
    /// The table's count of changes at the lookup.
    changes: u64,
    until_ns: u64,
    /// `None` if rings cannot be used.
    members: Option<Arc<[Arc<LocalPeer>]>>,
}

/// The state that a NIC needs to send to groups.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) table: GroupDescriptors,
    cached: Mutex<Vec<CachedMembers>>,
    pub(super) echoes: AtomicU64,
}

impl Cast {
    pub(super) fn open(local_peers: &LocalPeers) -> io::Result<Cast> {
        let table = local_peers.group_descriptors()?;
        Ok(Cast { table, cached: Mutex::default(), echoes: AtomicU64::new(0) })
    }

    /// The local peers that receive what is sent to `group` from `sgid`; `None` if rings cannot be used.
    fn members(&self, local_peers: &LocalPeers, group: Gid, sgid: Gid) -> Option<Arc<[Arc<LocalPeer>]>> {
        let mut cached = self.cached.lock();
        let known = cached.iter().position(|a| (a.group, a.sgid) == (group, sgid));
        if let Some(known) = known.map(|index| &cached[index])
            && known.changes == self.table.changes()
            && now().0 < known.until_ns
        {
            return known.members.clone();
        }
        let fresh = self.look_up(local_peers, group, sgid);
        let members = fresh.members.clone();
        match known {
            Some(index) => cached[index] = fresh,
            None => {
                cached.truncate(MAX_CACHED - 1);
                cached.insert(0, fresh);
            }
        }
        members
    }

    fn look_up(&self, local_peers: &LocalPeers, group: Gid, sgid: Gid) -> CachedMembers {
        let mut entry = CachedMembers { group, sgid, changes: 0, until_ns: 0, members: None };
        let interface = interface_of(sgid);
        for _ in 0..LOOKUPS {
            entry.changes = self.table.changes();
            entry.members = interface.and_then(|interface| self.listeners(local_peers, group, interface));
            if entry.changes == self.table.changes() {
                break;
            }
            entry.members = None;
        }
        let good_for_ns = if entry.members.is_some() { INTERFACES_FOR_NS } else { NOBODY_FOR_NS };
        entry.until_ns = now().0 + good_for_ns;
        entry
    }

    /// All local peers that are members; `None` if a possible member has no ring.
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

/// The interface by which the kernel sends from an address to a group; `None` if that is ambiguous.
fn interface_of(sgid: Gid) -> Option<u32> {
    let (ip, all) = (sgid.to_ip(), local_addresses().ok()?);
    let mut has_it = all.iter().filter(|local| local.addr == ip).map(|local| local.index);
    match (has_it.next(), has_it.next()) {
        (Some(index), None) => Some(index),
        // All of 127.0.0.0/8 is local, although the kernel lists one address.
        (None, _) if ip.is_ipv4() && ip.is_loopback() => {
            all.iter().find(|local| local.addr.is_ipv4() && local.addr.is_loopback()).map(|local| local.index)
        }
        _ => None,
    }
}

impl LocalLink {
    /// Puts a packet to a group into the rings of its members, or declines. If done, the packet must also leave as an echo.
    pub(super) fn push_to_group(&self, batch: &TxBatch, index: usize) -> Attempt {
        let route = &batch.entries()[index].route;
        let local_peers = self.local_peers();
        let Some(members) = self.cast.members(local_peers, route.dgid, route.sgid) else {
            return Attempt::Declined;
        };
        if members.is_empty() || !self.has_echo_socket(route) {
            return Attempt::Declined;
        }
        for member in members.iter().filter(|member| member.lives()) {
            self.push(member, batch, index);
            self.wake_if_asleep(member);
        }
        Attempt::Done
    }

    fn has_echo_socket(&self, route: &Route) -> bool {
        let socket = self.udp.echo_socket(route);
        socket.is_some_and(|socket| self.cast.table.publish_echo_socket(socket))
    }

    /// Drops packets that came through a ring as well. Returns how many packets are left.
    pub(super) fn drop_echoes(&self, rings: &mut RxRings, rx: &mut RxBatch) -> usize {
        if !self.cast.table.publishes_any() || !rx.packets().any(|packet| packet.arrival.dgid.is_multicast())
        {
            return rx.len();
        }
        // The sender announced its ring before it sent the echo.
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

    /// Makes the kernel drop the echoes of exactly those senders whose rings are read.
    pub(super) fn ignore_echoes(&self, rings: &mut RxRings) {
        if let Some(origins) = rings.changed_echo_sockets() {
            self.udp.ignore_in_groups(&origins, |group| self.cast.table.is_published(group));
        }
    }
}
