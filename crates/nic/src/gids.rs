//! The GID table: every local address, IPv4 mapped and IPv6, in an order that puts the useful ones first.

use crate::config::{ConfigError, Wire};
use crate::error::Error;
use crate::link::{LocalAddress, local_addresses};
use ferroce_proto::Gid;
use ferroce_proto::verbs::Mtu;
use serde::Serialize;
use std::io;
use std::net::IpAddr;

/// An entry of the GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GidEntry {
    /// The GID.
    #[serde(serialize_with = "as_text")]
    pub gid: Gid,
    /// The IP address that it is derived from.
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

    /// The LID of a NIC whose first entry this is: the low 16 bits of the address, 0 for none.
    ///
    /// RoCE has no LIDs, and hardware refuses an address without a GRH. But programs written for InfiniBand use only LIDs
    /// (qperf over UC and UD). They work between machines whose addresses differ only in these bits.
    pub fn lid(&self) -> u16 {
        u16::from_be_bytes([self.gid.0[14], self.gid.0[15]])
    }

    /// The GID of a LID, for a NIC whose first entry this is; `None` for LID 0.
    pub fn gid_of_lid(&self, lid: u16) -> Option<Gid> {
        let mut gid = self.gid;
        gid.0[14..].copy_from_slice(&lid.to_be_bytes());
        (lid != 0).then_some(gid)
    }

    /// The Ethernet address of its interface; zeros for loopback.
    pub fn hardware_address(&self) -> io::Result<[u8; 6]> {
        ferroce_os::interfaces::hardware_address(&self.interface)
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

/// A locally administered Ethernet address for a device whose interface has none.
const NO_ETHERNET: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// The GID table of the port, made from the addresses of the device. RoCE has a GID for each address. An iWARP device has one GID, as siw:
/// the Ethernet address of its first interface, followed by zeros.
pub fn port_gids(wire: Wire, addresses: Vec<GidEntry>) -> Vec<GidEntry> {
    if wire == Wire::Roce {
        return addresses;
    }
    let of_interface = |first: GidEntry| {
        let ethernet = first.hardware_address().ok().filter(|address| *address != [0; 6]);
        let mut gid = Gid([0; 16]);
        gid.0[..6].copy_from_slice(&ethernet.unwrap_or(NO_ETHERNET));
        GidEntry { gid, ..first }
    };
    addresses.into_iter().next().map(of_interface).into_iter().collect()
}

/// The table: all addresses, or only those in `wanted`. A wanted loopback address that no interface lists (all of 127.0.0.0/8
/// is local) gets the loopback interface.
pub(crate) fn read(wanted: Option<&[IpAddr]>) -> Result<Vec<GidEntry>, Error> {
    let table = present(wanted)?;
    let is_missing = |address: &&IpAddr| table.iter().all(|entry| entry.address != **address);
    match wanted.unwrap_or_default().iter().find(is_missing) {
        None => Ok(table),
        Some(address) => Err(Error::Config(ConfigError {
            variable: "FERROCE_ADDR",
            value: address.to_string(),
            why: "this machine does not have this address".into(),
        })),
    }
}

/// The same at a later time, when wanted addresses may be missing. Returns those that are present.
pub(crate) fn present(wanted: Option<&[IpAddr]>) -> Result<Vec<GidEntry>, Error> {
    let found = local_addresses().map_err(Error::system("listing local addresses"))?;
    let mut all: Vec<GidEntry> = found.into_iter().map(entry_of).collect();
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
    Ok(wanted.iter().filter_map(entry).collect())
}

fn entry_of(local: LocalAddress) -> GidEntry {
    let LocalAddress { addr: address, interface, index: if_index, is_up: up, mtu: if_mtu } = local;
    GidEntry { gid: Gid::from_ip(address), address, interface, if_index, if_mtu, up }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn loopback_is_there_and_last() {
        let table = read(None).unwrap();
        assert!(table.iter().any(|e| e.address == IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let ranks: Vec<u8> = table.iter().map(|e| e.rank().0).collect();
        assert!(ranks.is_sorted());
    }

    #[test]
    fn an_rnic_has_one_gid() {
        let table = read(None).unwrap();
        assert_eq!(port_gids(Wire::Roce, table.clone()), table);
        let loopback = table.into_iter().filter(|entry| entry.address.is_loopback()).collect();
        let [only] = &port_gids(Wire::Iwarp, loopback)[..] else { panic!("one GID") };
        assert_eq!(only.gid.to_string(), "0200:0000:0001:0000:0000:0000:0000:0000");
        assert_eq!(port_gids(Wire::Iwarp, Vec::new()), []);
    }

    #[test]
    fn any_loopback_address_can_be_asked_for() {
        let five = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 5));
        let table = read(Some(&[five])).unwrap();
        assert_eq!((table.len(), table[0].address), (1, five));
        let foreign = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 77));
        let refusal = read(Some(&[five, foreign])).unwrap_err().to_string();
        assert!(refusal.starts_with("FERROCE_ADDR=192.0.2.77: this machine does not have"), "{refusal}");
    }

    #[test]
    fn a_lid_is_the_end_of_an_address() {
        let five = read(Some(&[IpAddr::V4(Ipv4Addr::new(127, 0, 3, 5))])).unwrap().remove(0);
        assert_eq!(five.lid(), 0x0305);
        assert_eq!(five.gid_of_lid(five.lid()), Some(five.gid));
        assert_eq!(five.gid_of_lid(0x0309), Some(Gid::from(IpAddr::V4(Ipv4Addr::new(127, 0, 3, 9)))));
        assert_eq!(five.gid_of_lid(0), None, "LID 0 is nobody's");
    }
}
