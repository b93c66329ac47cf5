//! The addresses of the device: which there are, what they carry, and what happens when they change.

use crate::gids::{self, GidEntry};
use crate::queues::{EventHub, EventSource};
use ferroce_os::interfaces::{connected_mtu, open_udp};
use ferroce_os::lock::RwLock;
use ferroce_os::watch::AddressWatch;
use ferroce_proto::Gid;
use ferroce_proto::verbs::{EventKind, Mtu};
use ferroce_proto::wire::ROCE_UDP_PORT;
use socket2::Socket;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

/// Returns the address from which the kernel sends to `to`, or the kernel's error. Routing rules may depend on the source address, which
/// `from` sets. Sends nothing.
pub(crate) fn source_towards(from: Option<IpAddr>, to: IpAddr, scope_id: u32) -> io::Result<IpAddr> {
    let socket = socket_towards(from, to, scope_id)?;
    let chosen = socket.local_addr()?.as_socket().map_or(to, |chosen| chosen.ip());
    Ok(chosen.to_canonical())
}

/// Returns the length of the longest IP packet that fits every link from `from` to `to`, as far as the kernel knows them. Sends nothing.
/// Link-local addresses of IPv6 have none without their interface.
pub(crate) fn path_mtu(from: IpAddr, to: IpAddr) -> io::Result<u32> {
    connected_mtu(&socket_towards(Some(from), to, 0)?, to.is_ipv4())
}

fn socket_towards(from: Option<IpAddr>, to: IpAddr, scope_id: u32) -> io::Result<Socket> {
    let at = |address: IpAddr, port| match address {
        IpAddr::V4(_) => SocketAddr::new(address, port),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, scope_id).into(),
    };
    let socket = Socket::from(open_udp(to.is_ipv4())?);
    if let Some(from) = from {
        socket.bind(&at(from, 0).into())?;
    }
    socket.connect(&at(to, ROCE_UDP_PORT).into())?;
    Ok(socket)
}

/// The GID table, and what keeps it up to date.
pub(crate) struct AddressTable {
    pub(crate) wanted: Option<Vec<std::net::IpAddr>>,
    /// Largest path MTU to offer.
    pub(crate) mtu_wish: Option<Mtu>,
    /// Strict mode: the active MTU is the limit of all paths, also of those on this host, as on a NIC.
    pub(crate) is_strict: bool,
    pub(crate) entries: RwLock<Vec<GidEntry>>,
    pub(crate) watch: Option<AddressWatch>,
    pub(crate) events: Arc<EventHub>,
}

impl AddressTable {
    /// Largest path MTU of any path.
    pub(crate) fn largest_mtu(&self) -> Mtu {
        if self.is_strict { self.active_mtu() } else { self.best_mtu() }
    }

    /// Largest path MTU of the best interface.
    fn best_mtu(&self) -> Mtu {
        let carried = self.entries.read().iter().map(GidEntry::path_mtu).max().unwrap_or_default();
        self.mtu_wish.map_or(carried, |wish| wish.min(carried))
    }

    /// The MTU that programs get and use for every path: the largest that all external interfaces carry. On this host more is possible.
    pub(crate) fn active_mtu(&self) -> Mtu {
        let entries = self.entries.read();
        let leads_out = |entry: &&GidEntry| entry.up && !entry.address.is_loopback();
        let carried = entries.iter().filter(leads_out).map(GidEntry::path_mtu).min();
        drop(entries);
        let best = self.best_mtu();
        carried.map_or(best, |carried| carried.min(best))
    }

    /// Largest path MTU between these two. Packets that stay on this host use no wire.
    pub(crate) fn mtu_between(&self, sgid: Gid, dgid: Gid) -> Mtu {
        let largest = self.largest_mtu();
        let entries = self.entries.read();
        let at = |gid: Gid| entries.iter().find(|entry| entry.gid == gid);
        match at(sgid) {
            Some(source) if at(dgid).is_none() => source.path_mtu().min(largest),
            _ => largest,
        }
    }

    /// The interfaces that have its addresses.
    pub(crate) fn interfaces(&self) -> Vec<u32> {
        self.entries.read().iter().map(|e| e.if_index).collect()
    }

    /// The name of an interface, or its number if no address of the device is on it.
    pub(crate) fn interface_name(&self, if_index: u32) -> String {
        let entries = self.entries.read();
        let entry = entries.iter().find(|entry| entry.if_index == if_index);
        entry.map_or_else(|| format!("interface {if_index}"), |entry| entry.interface.clone())
    }

    /// Reads the table again. If it has changed, returns the old and the new entries.
    pub(crate) fn refresh(&self) -> Option<(Vec<GidEntry>, Vec<GidEntry>)> {
        if let Some(watch) = &self.watch {
            watch.drain();
        }
        let fresh = gids::present(self.wanted.as_deref()).ok()?;
        let mut entries = self.entries.write();
        if *entries == fresh {
            return None;
        }
        let was_up = entries.iter().any(|e| e.up);
        let is_up = fresh.iter().any(|e| e.up);
        let old = std::mem::replace(&mut *entries, fresh.clone());
        drop(entries);
        self.events.raise(EventKind::GidChange, EventSource::Port(1));
        match (was_up, is_up) {
            (true, false) => self.events.raise(EventKind::PortErr, EventSource::Port(1)),
            (false, true) => self.events.raise(EventKind::PortActive, EventSource::Port(1)),
            _ => {}
        }
        Some((old, fresh))
    }

    /// The index of `gid` in the table, and the largest path MTU from there.
    pub(crate) fn find(&self, gid: Gid) -> Option<(u8, Mtu)> {
        let largest = self.largest_mtu();
        let entries = self.entries.read();
        let index = entries.iter().position(|e| e.gid == gid)?;
        Some((u8::try_from(index).ok()?, entries[index].path_mtu().min(largest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn entry(address: &str, if_mtu: u32, up: bool) -> GidEntry {
        let address: IpAddr = address.parse().unwrap();
        let (interface, if_index) = (String::from("any"), if_mtu);
        GidEntry { gid: Gid::from_ip(address), address, interface, if_index, if_mtu, up }
    }

    fn table(entries: &[GidEntry], mtu_wish: Option<Mtu>) -> AddressTable {
        let (entries, events) = (RwLock::new(entries.to_vec()), Arc::new(EventHub::default()));
        AddressTable { wanted: None, mtu_wish, is_strict: false, entries, watch: None, events }
    }

    /// The CM takes the path MTU of an address; a queue pair checks it for both ends.
    #[test]
    fn in_strict_mode_no_path_exceeds_the_active_mtu() {
        let (lo, ethernet) = (entry("127.0.0.1", 65_536, true), entry("10.1.0.1", 1500, true));
        let mut table = table(&[lo.clone(), ethernet.clone()], None);
        for (is_strict, on_this_host) in [(false, Mtu::B4096), (true, Mtu::B1024)] {
            table.is_strict = is_strict;
            assert_eq!(table.find(lo.gid), Some((0, on_this_host)));
            assert_eq!(table.mtu_between(lo.gid, lo.gid), on_this_host);
            assert_eq!(table.mtu_between(ethernet.gid, lo.gid), on_this_host);
            assert_eq!((table.active_mtu(), table.largest_mtu()), (Mtu::B1024, on_this_host));
        }
    }

    /// Programs use this MTU for all paths: between machines it must fit every wire.
    #[test]
    fn the_active_mtu_fits_every_wire() {
        let lo = entry("127.0.0.1", 65_536, true);
        let ethernet = entry("10.1.0.1", 1500, true);
        let jumbo = entry("10.2.0.1", 9000, true);
        let unplugged = entry("10.3.0.1", 576, false);
        let active = |entries: &[GidEntry], wish| table(entries, wish).active_mtu();
        assert_eq!(active(std::slice::from_ref(&lo), None), Mtu::B4096);
        assert_eq!(active(&[jumbo.clone(), lo.clone()], None), Mtu::B4096);
        let all = [ethernet.clone(), jumbo, unplugged, lo.clone()];
        assert_eq!(active(&all, None), Mtu::B1024);
        assert_eq!(active(&all, Some(Mtu::B512)), Mtu::B512);
        assert_eq!(active(&[lo, ethernet], Some(Mtu::B4096)), Mtu::B1024);
        assert_eq!(active(&[], None), Mtu::default());
    }

    #[test]
    fn a_path_has_the_mtu_of_its_interface_unless_it_stays_here() {
        let (ethernet, jumbo) = (entry("10.1.0.1", 1500, true), entry("10.2.0.1", 9000, true));
        let (here, there) = ([ethernet.gid, jumbo.gid], Gid::from_ip([10, 9, 9, 9].into()));
        let table = table(&[ethernet, jumbo, entry("127.0.0.1", 65_536, true)], None);
        assert_eq!(table.mtu_between(here[0], there), Mtu::B1024);
        assert_eq!(table.mtu_between(here[1], there), Mtu::B4096);
        assert_eq!(table.mtu_between(here[0], here[1]), Mtu::B4096);
        assert_eq!(table.mtu_between(here[0], here[0]), Mtu::B4096);
    }
}
