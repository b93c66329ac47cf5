//! The order in which the kernel holds the sockets that share a port.
//!
//! The kernel appends a socket that joins, and moves the last one to the index of one that leaves. The steering
//! program selects sockets by that index, so the roster repeats the kernel's steps. It can be wrong: when two processes
//! die, the order in which they left is unknown. Probe packets then show which socket has which index ([`Roster::confirm`]).

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

const TITLE: &str = "ferroce roster 1";

/// The order of the sockets on every address, and further state that the processes of a host share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// The slot that was assigned last.
    pub(crate) last_slot: u8,
    /// A secret of the processes of this user, which marks a probe as one of theirs.
    pub token: u128,
    groups: BTreeMap<IpAddr, Vec<u8>>,
}

impl Roster {
    /// A roster without sockets, with a new token.
    pub(crate) fn new() -> Roster {
        Roster { last_slot: 0, token: ferroce_os::random::number(), groups: BTreeMap::new() }
    }

    /// Slots of the sockets bound to `addr`, in the kernel's order.
    pub fn order(&self, addr: IpAddr) -> &[u8] {
        self.groups.get(&addr).map_or(&[], Vec::as_slice)
    }

    /// Records that a socket of `slot` was bound to `addr`.
    pub fn join(&mut self, addr: IpAddr, slot: u8) {
        self.leave(addr, slot);
        self.groups.entry(addr).or_default().push(slot);
    }

    /// Records that the socket of `slot` at `addr` was closed.
    pub fn leave(&mut self, addr: IpAddr, slot: u8) {
        if let Some(order) = self.groups.get_mut(&addr) {
            if let Some(index) = order.iter().position(|&s| s == slot) {
                order.swap_remove(index);
            }
            if order.is_empty() {
                self.groups.remove(&addr);
            }
        }
    }

    /// Removes all sockets of `slot`: its owner died, or a new owner has just claimed it.
    pub(crate) fn forget(&mut self, slot: u8) {
        let addrs: Vec<IpAddr> = self.groups.keys().copied().collect();
        for addr in addrs {
            self.leave(addr, slot);
        }
    }

    /// Removes the sockets of dead processes from `addr`. Returns their number.
    pub fn prune(&mut self, addr: IpAddr, is_alive: impl Fn(u8) -> bool) -> usize {
        let dead: Vec<u8> = self.order(addr).iter().copied().filter(|&s| !is_alive(s)).collect();
        for &slot in &dead {
            self.leave(addr, slot);
        }
        dead.len()
    }

    /// Removes the sockets of dead processes from all addresses. Removes addresses that have no socket left.
    pub(crate) fn prune_all(&mut self, is_alive: impl Fn(u8) -> bool) {
        let addrs: Vec<IpAddr> = self.groups.keys().copied().collect();
        for addr in addrs {
            self.prune(addr, &is_alive);
        }
    }

    /// Records that `slot` received a packet that was steered to `index` of `addr`, so this is its index. The slot that was
    /// listed there gets its old index. Returns whether the roster changed.
    pub fn confirm(&mut self, addr: IpAddr, index: usize, slot: u8) -> bool {
        let Some(order) = self.groups.get_mut(&addr) else { return false };
        match order.iter().position(|&s| s == slot) {
            Some(listed) if listed != index && index < order.len() => {
                order.swap(listed, index);
                true
            }
            _ => false,
        }
    }

    /// Parses the output of `Display`; `None` for any other text.
    pub(crate) fn parse(text: &str) -> Option<Roster> {
        let mut lines = text.lines();
        if lines.next()? != TITLE {
            return None;
        }
        let last_slot = lines.next()?.strip_prefix("last ")?.parse().ok()?;
        let token = u128::from_str_radix(lines.next()?.strip_prefix("token ")?, 16).ok()?;
        let mut groups = BTreeMap::new();
        for line in lines {
            let mut words = line.split(' ');
            let addr = words.next()?.parse().ok()?;
            let order = words.map(|w| w.parse().ok()).collect::<Option<Vec<u8>>>()?;
            groups.insert(addr, order);
        }
        Some(Roster { last_slot, token, groups })
    }
}

impl fmt::Display for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}\nlast {}\ntoken {:032x}", self.last_slot, self.token)?;
        for (addr, order) in &self.groups {
            write!(f, "{addr}")?;
            for slot in order {
                write!(f, " {slot}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED);

    fn with(order: &[u8]) -> Roster {
        let mut roster = Roster::new();
        for &slot in order {
            roster.join(V4, slot);
        }
        roster
    }

    #[test]
    fn the_last_socket_fills_the_gap() {
        let mut roster = with(&[3, 4, 5, 6]);
        roster.leave(V4, 4);
        assert_eq!(roster.order(V4), [3, 6, 5]);
        roster.join(V4, 7);
        assert_eq!(roster.order(V4), [3, 6, 5, 7]);
        roster.leave(V4, 7);
        assert_eq!(roster.order(V4), [3, 6, 5]);
    }

    #[test]
    fn the_dead_are_pruned_and_addresses_are_apart() {
        let mut roster = with(&[1, 2, 3]);
        roster.join(V6, 2);
        assert_eq!(roster.prune(V4, |slot| slot != 2), 1);
        assert_eq!(roster.order(V4), [1, 3]);
        assert_eq!(roster.order(V6), [2]);
        roster.forget(2);
        assert!(roster.order(V6).is_empty());
    }

    #[test]
    fn a_confirmed_index_swaps_two() {
        let mut roster = with(&[1, 2, 3]);
        assert!(!roster.confirm(V4, 1, 2));
        assert!(roster.confirm(V4, 0, 3));
        assert_eq!(roster.order(V4), [3, 2, 1]);
        assert!(!roster.confirm(V4, 9, 3));
        assert!(!roster.confirm(V6, 0, 3));
    }

    #[test]
    fn text_and_roster_are_the_same_thing() {
        let mut roster = with(&[9, 254]);
        roster.join(V6, 9);
        roster.last_slot = 254;
        assert_eq!(Roster::parse(&roster.to_string()), Some(roster));
        for broken in ["", "ferroce roster 2", "ferroce roster 1\nlast 300\ntoken 0\n"] {
            assert_eq!(Roster::parse(broken), None);
        }
    }
}
