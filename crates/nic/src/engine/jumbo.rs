//! Whether the path of a queue pair carries jumbo packets: whether it is loopback.

use crate::addresses::path_mtu;
use ferroce_proto::verbs::Route;
use std::sync::atomic::{AtomicU8, Ordering};

/// The MTU of loopback as the kernel reports it: the length of the longest IP packet. Ethernet and InfiniBand have less.
const LOOPBACK_MTU: u32 = 65_535;

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// The answer of the kernel about the path of one queue pair. The first long message queries it, which takes a few microseconds.
#[derive(Debug, Default)]
pub(crate) struct JumboPath(AtomicU8);

impl JumboPath {
    /// Whether the path carries jumbo packets.
    pub(super) fn carries_jumbo(&self, route: &Route) -> bool {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => self.query(route),
            known => known == YES,
        }
    }

    #[cold]
    fn query(&self, route: &Route) -> bool {
        let carries = path_mtu(route.sgid.to_ip(), route.dgid.to_ip()).is_ok_and(|mtu| mtu >= LOOPBACK_MTU);
        self.0.store(if carries { YES } else { NO }, Ordering::Relaxed);
        carries
    }

    /// The queue pair was modified and may have another path.
    pub(super) fn invalidate(&self) {
        self.0.store(UNKNOWN, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::Gid;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    #[test]
    fn loopback_carries_jumbo_packets() {
        let on_loopback = |ip: IpAddr| {
            let gid = Gid::from_ip(ip);
            let path = JumboPath::default();
            let route = Route { sgid: gid, dgid: gid, ..Route::default() };
            let first = path.carries_jumbo(&route);
            assert_eq!(first, path.carries_jumbo(&route));
            first
        };
        assert!(on_loopback(Ipv4Addr::LOCALHOST.into()));
        assert!(on_loopback(Ipv4Addr::new(127, 0, 0, 9).into()));
        // Documentation addresses: this host has none of them, so no path begins there.
        assert!(!on_loopback(Ipv4Addr::new(203, 0, 113, 1).into()));
        assert!(!on_loopback(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()));
    }
}
