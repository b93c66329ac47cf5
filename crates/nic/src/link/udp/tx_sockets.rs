//! TX sockets.
//!
//! Each pair of source address and hop limit gets its own few sockets with its first packet. Their packets need no control
//! message for either, which makes the shortest send a third cheaper. Source addresses that cannot be bound (link-local ones
//! need an interface) or exceed the table use an unbound socket.

use super::control::{DEFAULT_HOP_LIMIT, SocketDefaults, effective_hop_limit};
use super::sockets::{TxSocket, open_tx_socket, unspecified};
use ferroce_os::lock::Mutex;
use ferroce_proto::Gid;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::ECN_CAPABLE;
use ferroce_shm::SourcePorts;
use std::io;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sockets per address, at most.
const MAX_SOCKETS: usize = 16;
/// Source addresses with sockets of their own, at most; one with two hop limits counts twice.
const MAX_ADDRESSES: usize = 64;

/// All TX sockets, each with a number.
#[derive(Debug)]
pub(super) struct TxSockets {
    per_address: usize,
    /// Traffic class of packets whose route has none.
    traffic_class: u8,
    any_v4: TxSocket,
    /// Missing where the machine has no IPv6.
    any_v6: Option<TxSocket>,
    /// Filled from the front; never changed once filled, so readers need no lock.
    addresses: Box<[OnceLock<Address>]>,
    /// How many are filled. [`Self::choose`] reads this before it returns the number of a socket. ThreadSanitizer recognises this
    /// order, but not that of `OnceLock`, which is hidden in the standard library.
    filled: AtomicUsize,
    adding: Mutex<()>,
    /// The table in which local peers read the ports of these sockets.
    published: OnceLock<SourcePorts>,
}

/// A source address, a hop limit and their sockets.
#[derive(Debug)]
struct Address {
    gid: Gid,
    hop_limit: u8,
    sockets: Vec<TxSocket>,
}

/// Numbers of the sockets bound to no address; those of address i begin at `i * MAX_SOCKETS`.
const ANY_V4: u16 = u16::MAX - 1;
const ANY_V6: u16 = u16::MAX - 2;

impl TxSockets {
    /// Opens the sockets bound to no address; the others follow with the first packet of each address. With `ecn`, switches may
    /// mark packets.
    pub(super) fn open(per_address: usize, ecn: bool) -> io::Result<TxSockets> {
        let traffic_class = if ecn { ECN_CAPABLE } else { 0 };
        let defaults = SocketDefaults { traffic_class, hop_limit: DEFAULT_HOP_LIMIT };
        let any_v6 = match open_tx_socket(unspecified(false), defaults, false) {
            Ok(socket) => Some(socket),
            Err(e) if has_no_ipv6(&e) => None,
            Err(e) => return Err(e),
        };
        Ok(TxSockets {
            per_address: per_address.clamp(1, MAX_SOCKETS),
            traffic_class,
            any_v4: open_tx_socket(unspecified(true), defaults, false)?,
            any_v6,
            addresses: (0..MAX_ADDRESSES).map(|_| OnceLock::new()).collect(),
            filled: AtomicUsize::new(0),
            adding: Mutex::new(()),
            published: OnceLock::new(),
        })
    }

    /// Publishes the ports of all sockets, including those opened later. Called before the first packet is sent.
    pub(super) fn publish(&self, ports: SourcePorts) {
        let _adding = self.adding.lock();
        [Some(&self.any_v4), self.any_v6.as_ref()]
            .into_iter()
            .flatten()
            .for_each(|any| ports.publish(any.port));
        let _ = self.published.set(ports);
    }

    /// The number of the socket for a route; `None` if its addresses are of two families, or of one that this machine
    /// does not have.
    pub(super) fn choose(&self, route: &Route) -> Option<u16> {
        let is_ipv4 = route.dgid.to_ipv4().is_some();
        if route.sgid.to_ipv4().is_some() != is_ipv4 {
            return None;
        }
        let hop_limit = effective_hop_limit(route);
        let address = self.find(route.sgid, hop_limit).or_else(|| self.add(route.sgid, hop_limit));
        match address {
            Some(i) => Some((i * MAX_SOCKETS + usize::from(route.entropy) % self.per_address) as u16),
            None if is_ipv4 => Some(ANY_V4),
            None => self.any_v6.as_ref().map(|_| ANY_V6),
        }
    }

    fn find(&self, sgid: Gid, hop_limit: u8) -> Option<usize> {
        let filled = &self.addresses[..self.filled.load(Ordering::Acquire)];
        let is_it = |a: &Address| a.gid == sgid && a.hop_limit == hop_limit;
        filled.iter().position(|address| address.get().is_some_and(is_it))
    }

    /// The socket with this number, which [`Self::choose`] returned.
    pub(super) fn socket(&self, number: u16) -> &TxSocket {
        let (address, index) = (usize::from(number) / MAX_SOCKETS, usize::from(number) % MAX_SOCKETS);
        let of_address = self.addresses.get(address).and_then(OnceLock::get);
        match (of_address, number, &self.any_v6) {
            (Some(address), ..) => &address.sockets[index],
            (None, ANY_V6, Some(any_v6)) => any_v6,
            _ => &self.any_v4,
        }
    }

    /// A socket for what is not a packet of a route.
    pub(super) fn any(&self, is_ipv4: bool) -> Option<&TxSocket> {
        if is_ipv4 { Some(&self.any_v4) } else { self.any_v6.as_ref() }
    }

    /// Opens the sockets of an address. `None` if it cannot have any.
    #[cold]
    fn add(&self, sgid: Gid, hop_limit: u8) -> Option<usize> {
        let addr = sgid.to_ip();
        let is_bindable = match addr {
            IpAddr::V4(v4) => !v4.is_unspecified() && !v4.is_multicast(),
            IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_multicast() && !v6.is_unicast_link_local(),
        };
        if !is_bindable {
            return None;
        }
        let _adding = self.adding.lock();
        if let Some(added_meanwhile) = self.find(sgid, hop_limit) {
            return Some(added_meanwhile);
        }
        let filled = self.filled.load(Ordering::Relaxed);
        let free = self.addresses.get(filled)?;
        let published = self.published.get();
        let defaults = SocketDefaults { traffic_class: self.traffic_class, hop_limit };
        let open = |_| open_tx_socket(addr, defaults, published.is_some());
        let sockets = (0..self.per_address).map(open).collect::<io::Result<Vec<_>>>().ok()?;
        if let Some(ports) = published {
            sockets.iter().for_each(|socket| ports.publish(socket.port));
        }
        free.set(Address { gid: sgid, hop_limit, sockets }).ok()?;
        self.filled.store(filled + 1, Ordering::Release);
        Some(filled)
    }
}

/// Whether this is the error of a machine without IPv6.
pub(super) fn has_no_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::EPROTONOSUPPORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(from: &str, to: &str, entropy: u16) -> Route {
        let gid = |s: &str| Gid::from_ip(s.parse().unwrap());
        Route { sgid: gid(from), dgid: gid(to), entropy, ..Route::default() }
    }

    #[test]
    fn a_hop_limit_has_sockets_of_its_own() {
        let tx_sockets = TxSockets::open(1, false).unwrap();
        let number = |hop_limit| {
            tx_sockets
                .choose(&Route { hop_limit, ..route("127.48.0.3", "127.0.0.1", 0) })
                .expect("it can be bound")
        };
        for hop_limit in [64, 255, 1] {
            assert_eq!(number(hop_limit), number(hop_limit));
            let socket = tx_sockets.socket(number(hop_limit));
            assert_eq!(
                (socket.defaults.hop_limit, socket.socket.ttl_v4().unwrap()),
                (hop_limit, hop_limit.into())
            );
        }
        assert_eq!(number(0), number(64));
        assert_ne!(number(64), number(255));
    }

    #[test]
    fn every_address_has_its_own_ports() {
        let tx_sockets = TxSockets::open(3, false).unwrap();
        let mut ports = std::collections::BTreeSet::new();
        for from in ["127.48.0.1", "127.48.0.2"] {
            for entropy in 0..6 {
                let number = tx_sockets.choose(&route(from, "127.0.0.1", entropy)).unwrap();
                assert_eq!(tx_sockets.choose(&route(from, "127.0.0.9", entropy + 3)), Some(number));
                let socket = tx_sockets.socket(number);
                assert!(socket.is_bound);
                ports.insert((from, socket.port));
            }
        }
        assert_eq!(ports.len(), 6);
    }

    #[test]
    fn an_address_that_cannot_be_bound_uses_the_unbound_socket() {
        let tx_sockets = TxSockets::open(4, false).unwrap();
        for from in ["198.51.100.1", "0.0.0.0"] {
            let number = tx_sockets.choose(&route(from, "127.0.0.1", 0)).unwrap();
            assert_eq!(number, ANY_V4);
            assert!(!tx_sockets.socket(number).is_bound);
        }
        assert_eq!(tx_sockets.choose(&route("127.0.0.1", "::1", 0)), None);
        if tx_sockets.any_v6.is_some() {
            assert_eq!(tx_sockets.choose(&route("fe80::1", "fe80::2", 0)), Some(ANY_V6));
        }
    }

    #[test]
    fn more_addresses_than_fit_still_send() {
        let tx_sockets = TxSockets::open(1, false).unwrap();
        for i in 0..MAX_ADDRESSES {
            let number = tx_sockets.choose(&route(&format!("127.48.1.{}", i + 1), "127.0.0.1", 7)).unwrap();
            assert_eq!(usize::from(number), i * MAX_SOCKETS);
        }
        assert_eq!(tx_sockets.choose(&route("127.48.2.1", "127.0.0.1", 7)), Some(ANY_V4));
        assert_eq!(tx_sockets.choose(&route("127.48.1.64", "127.0.0.1", 7)), Some(63 * 16));
    }
}
