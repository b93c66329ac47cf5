//! The GID table: every local address, IPv4 mapped and IPv6, in an order that puts the useful ones first.

use crate::error::Error;
use ferroce_proto::Gid;
use ferroce_proto::verbs::Mtu;
use serde::Serialize;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An entry of the GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GidEntry {
    /// The GID.
    #[serde(serialize_with = "as_text")]
    pub gid: Gid,
    /// The address behind it.
    pub address: IpAddr,
    /// Interface that has the address.
    pub interface: String,
    /// Its number.
    pub if_index: u32,
    /// Its MTU in bytes.
    pub if_mtu: u32,
    /// Whether it is up.
    pub up: bool,
}

fn as_text<S: serde::Serializer>(gid: &Gid, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(gid)
}

impl GidEntry {
    /// Largest path MTU whose packets fit the interface.
    pub fn path_mtu(&self) -> Mtu {
        Mtu::fitting(self.if_mtu)
    }

    /// Routable IPv4 first, then routable IPv6, then link-local, loopback last: index 0 is what programs try first.
    fn rank(&self) -> (u8, u32, IpAddr) {
        let rank = match self.address {
            IpAddr::V4(a) if a.is_loopback() => 3,
            IpAddr::V6(a) if a.is_loopback() => 4,
            IpAddr::V6(a) if a.is_unicast_link_local() => 2,
            IpAddr::V4(_) => 0,
            IpAddr::V6(_) => 1,
        };
        (rank, self.if_index, self.address)
    }
}

/// The table: all addresses, or only those in `wanted`. Addresses that are wanted but that no interface lists (all of
/// 127.0.0.0/8 is local) stand on the loopback interface.
pub(crate) fn read(wanted: Option<&[IpAddr]>) -> Result<Vec<GidEntry>, Error> {
    let mut all = local_addresses().map_err(Error::system("listing local addresses"))?;
    all.sort_by_key(GidEntry::rank);
    all.dedup_by_key(|e| e.gid);
    let Some(wanted) = wanted else { return Ok(all) };
    let loopback = all.iter().find(|e| e.address.is_loopback()).cloned();
    let entry = |address: &IpAddr| {
        let listed = all.iter().find(|e| e.address == *address).cloned();
        listed.or_else(|| {
            let lo = loopback.clone().filter(|_| address.is_loopback())?;
            Some(GidEntry { gid: Gid::from_ip(*address), address: *address, ..lo })
        })
    };
    let missing =
        Error::Invalid { attribute: "FERROCE_ADDR", why: "names an address that this machine does not have" };
    wanted.iter().map(entry).collect::<Option<Vec<_>>>().ok_or(missing)
}

fn local_addresses() -> io::Result<Vec<GidEntry>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` receives a list that is freed below; the result is checked.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut entries = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is an element of the list that getifaddrs made and nobody has freed.
        let item = unsafe { &*next };
        entries.extend(entry_of(item));
        next = item.ifa_next;
    }
    // SAFETY: `list` came from getifaddrs and is not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    Ok(entries)
}

fn entry_of(item: &libc::ifaddrs) -> Option<GidEntry> {
    if item.ifa_addr.is_null() {
        return None;
    }
    // SAFETY: a non-null ifa_addr leads to a sockaddr whose family says which structure it is; both are read
    // unaligned, and ifa_name is a C string of the same list.
    let (address, name) = unsafe {
        let address = match i32::from((*item.ifa_addr).sa_family) {
            libc::AF_INET => {
                let v4 = item.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                let v6 = item.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr))
            }
            _ => return None,
        };
        (address, CStr::from_ptr(item.ifa_name).to_owned())
    };
    // SAFETY: `name` is a C string.
    let if_index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let interface = name.to_string_lossy().into_owned();
    let if_mtu = interface_mtu(&interface).unwrap_or(1500);
    let up = item.ifa_flags & libc::IFF_UP as u32 != 0;
    Some(GidEntry { gid: Gid::from_ip(address), address, interface, if_index, if_mtu, up })
}

fn interface_mtu(name: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_and_last() {
        let table = read(None).unwrap();
        assert!(table.iter().any(|e| e.address == IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let ranks: Vec<u8> = table.iter().map(|e| e.rank().0).collect();
        assert!(ranks.is_sorted());
    }

    #[test]
    fn any_loopback_address_can_be_asked_for() {
        let five = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 5));
        let table = read(Some(&[five])).unwrap();
        assert_eq!((table.len(), table[0].address), (1, five));
        assert!(read(Some(&[IpAddr::V4(Ipv4Addr::new(192, 0, 2, 77))])).is_err());
    }
}
