//! Control messages that accompany a datagram in `sendmsg` and `recvmsg`.

use ferroce_proto::Gid;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::ECN_BITS;
use std::net::IpAddr;

/// `cmsg_len`, level and type.
const HEADER_LEN: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();

/// The default hop limit of the sockets, so that most packets need no control message for it.
pub(super) const DEFAULT_HOP_LIMIT: u8 = 64;

/// Traffic class and hop limit of the packets of a socket that carry no control message for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketDefaults {
    /// 0, or [`ferroce_proto::wire::ECN_CAPABLE`].
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

/// A block of control messages.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; Control::CAPACITY],
    len: usize,
}

impl Default for Control {
    fn default() -> Self {
        Control { bytes: [0; Control::CAPACITY], len: 0 }
    }
}

impl Control {
    /// Enough for the five messages that a received datagram can have.
    pub(super) const CAPACITY: usize = 160;

    /// The control messages for a packet of this route: source address and outgoing interface if `pktinfo` contains an interface
    /// number (0: any), TOS and TTL unless they equal those of the socket, and the segment length of a GSO run.
    pub(super) fn for_route(
        route: &Route,
        of_socket: SocketDefaults,
        pktinfo: Option<u32>,
        segment_len: Option<u16>,
    ) -> Control {
        let mut control = Control::default();
        if let Some(interface) = pktinfo {
            control.push_pktinfo(route.sgid, interface);
        }
        let hop_limit = effective_hop_limit(route);
        let (level, tos, ttl) = match route.sgid.to_ipv4() {
            Some(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            None => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        let traffic_class = effective_traffic_class(route, of_socket);
        control.push_unless(level, tos, traffic_class, of_socket.traffic_class);
        control.push_unless(level, ttl, hop_limit, of_socket.hop_limit);
        if let Some(len) = segment_len {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &len.to_ne_bytes());
        }
        control
    }

    /// Whether [`Self::for_route`] is empty for a single packet from a bound socket.
    pub(super) fn is_needless(route: &Route, of_socket: SocketDefaults) -> bool {
        effective_traffic_class(route, of_socket) == of_socket.traffic_class
            && effective_hop_limit(route) == of_socket.hop_limit
    }

    fn push_pktinfo(&mut self, source: Gid, interface: u32) {
        match source.to_ip() {
            IpAddr::V4(v4) => {
                let mut info = [0; 12];
                info[..4].copy_from_slice(&interface.to_ne_bytes());
                info[4..8].copy_from_slice(&v4.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(v6) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&v6.octets());
                info[16..].copy_from_slice(&interface.to_ne_bytes());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        let at = self.len;
        let end = at + HEADER_LEN + data.len();
        self.bytes[at..at + ALIGN].copy_from_slice(&(HEADER_LEN + data.len()).to_ne_bytes());
        self.bytes[at + ALIGN..at + ALIGN + 4].copy_from_slice(&level.to_ne_bytes());
        self.bytes[at + ALIGN + 4..at + HEADER_LEN].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[at + HEADER_LEN..end].copy_from_slice(data);
        self.len = end.next_multiple_of(ALIGN);
    }

    fn push_unless(&mut self, level: libc::c_int, kind: libc::c_int, value: u8, default: u8) {
        if value != default {
            self.push(level, kind, &i32::from(value).to_ne_bytes());
        }
    }

    /// The messages: level, type and data.
    fn messages(&self) -> impl Iterator<Item = (libc::c_int, libc::c_int, &[u8])> {
        let mut rest = &self.bytes[..self.len.min(Control::CAPACITY)];
        std::iter::from_fn(move || {
            let (header, _) = rest.split_at_checked(HEADER_LEN)?;
            let len = usize::from_ne_bytes(header[..ALIGN].try_into().ok()?);
            let level = i32::from_ne_bytes(header[ALIGN..ALIGN + 4].try_into().ok()?);
            let kind = i32::from_ne_bytes(header[ALIGN + 4..ALIGN + 8].try_into().ok()?);
            let data = rest.get(HEADER_LEN..len)?;
            rest = rest.get(len.next_multiple_of(ALIGN)..).unwrap_or(&[]);
            Some((level, kind, data))
        })
    }

    /// The control messages of a received datagram.
    pub(super) fn arrival(&self) -> Arrival {
        let mut arrival =
            Arrival { dgid: None, segment_len: None, tos: 0, ttl: DEFAULT_HOP_LIMIT, stamped_ns: None };
        for (level, kind, data) in self.messages() {
            let first = data.first().copied().unwrap_or(0);
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => arrival.dgid = v4_at(data, 8),
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => arrival.dgid = v6_at(data, 0),
                (libc::IPPROTO_IP, libc::IP_TOS) => arrival.tos = first,
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    arrival.ttl = int_at(data).unwrap_or(arrival.ttl);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => arrival.tos = int_at(data).unwrap_or(0),
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    arrival.segment_len = data.first_chunk().map(|b| i32::from_ne_bytes(*b) as usize);
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => arrival.stamped_ns = timespec_at(data),
                _ => {}
            }
        }
        arrival
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
    pub(super) fn len(&self) -> usize {
        self.len
    }
    /// The kernel wrote this many bytes.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(Control::CAPACITY);
    }
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
}

/// The parsed control messages of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The address it was sent to.
    pub(super) dgid: Option<Gid>,
    /// Segment length of a GRO batch: all packets but the last have this length.
    pub(super) segment_len: Option<usize>,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// When the kernel received it, in nanoseconds since 1970; only if the link requests time stamps.
    pub(super) stamped_ns: Option<u64>,
}

/// The traffic class a packet is sent with: that of its route, with the ECN bits of the socket unless the program set some.
pub(super) fn effective_traffic_class(route: &Route, of_socket: SocketDefaults) -> u8 {
    let is_chosen = route.traffic_class & ECN_BITS != 0;
    route.traffic_class | if is_chosen { 0 } else { of_socket.traffic_class }
}

/// The hop limit a packet is sent with: 0 means the default.
pub(super) fn effective_hop_limit(route: &Route) -> u8 {
    match route.hop_limit {
        0 if route.dgid.is_multicast() => 1,
        0 => DEFAULT_HOP_LIMIT,
        given => given,
    }
}

fn v4_at(data: &[u8], at: usize) -> Option<Gid> {
    let octets: [u8; 4] = data.get(at..at + 4)?.try_into().ok()?;
    Some(Gid::from_ip(IpAddr::from(octets)))
}

fn v6_at(data: &[u8], at: usize) -> Option<Gid> {
    data.get(at..at + 16)?.try_into().ok().map(Gid)
}

/// A `timespec` in nanoseconds.
fn timespec_at(data: &[u8]) -> Option<u64> {
    let half = |at: usize| Some(i64::from_ne_bytes(data.get(at..at + 8)?.try_into().ok()?) as u64);
    half(0)?.checked_mul(1_000_000_000)?.checked_add(half(8)?)
}

fn int_at(data: &[u8]) -> Option<u8> {
    data.first_chunk().map(|b| i32::from_ne_bytes(*b) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::wire::ECN_CAPABLE;

    const PLAIN: SocketDefaults = SocketDefaults { traffic_class: 0, hop_limit: DEFAULT_HOP_LIMIT };

    fn route(ip: &str) -> Route {
        let gid = Gid::from_ip(ip.parse().unwrap());
        Route { sgid: gid, dgid: gid, traffic_class: 0x68, hop_limit: 3, ..Route::default() }
    }

    #[test]
    fn the_fullest_message_fits() {
        for ip in ["10.1.2.3", "fd00::7"] {
            let control = Control::for_route(&route(ip), PLAIN, Some(1), Some(4116));
            let kinds: Vec<_> = control.messages().map(|(level, kind, _)| (level, kind)).collect();
            assert_eq!(kinds.len(), 4, "{kinds:?}");
            let arrival = control.arrival();
            assert_eq!((arrival.tos, arrival.ttl), (0x68, 3));
        }
    }

    #[test]
    fn a_time_stamp_is_read_beside_all_other_messages() {
        let mut control = Control::for_route(&route("fd00::7"), PLAIN, Some(1), Some(4116));
        let stamp = [3i64.to_ne_bytes(), 7i64.to_ne_bytes()].concat();
        control.push(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &stamp);
        let arrival = control.arrival();
        assert_eq!((arrival.stamped_ns, arrival.tos), (Some(3_000_000_007), 0x68));
        assert_eq!(timespec_at(&[0xff; 16]), None, "nonsense");
        assert_eq!(timespec_at(&[0; 15]), None);
    }

    #[test]
    fn defaults_travel_without_a_message() {
        let mut plain = route("10.1.2.3");
        (plain.traffic_class, plain.hop_limit) = (0, 0);
        for (hop_limit, of_socket) in [(0, DEFAULT_HOP_LIMIT), (3, 3)] {
            plain.hop_limit = hop_limit;
            for traffic_class in [0, ECN_CAPABLE] {
                let of_socket = SocketDefaults { traffic_class, hop_limit: of_socket };
                assert!(Control::for_route(&plain, of_socket, None, None).is_empty());
                assert!(Control::is_needless(&plain, of_socket));
            }
        }
        assert!(!Control::is_needless(&plain, PLAIN));
        assert!(!Control::is_needless(&route("10.1.2.3"), SocketDefaults { hop_limit: 3, ..PLAIN }));
        plain.hop_limit = 0;
        plain.dgid = Gid::from_ip("239.0.0.1".parse().unwrap());
        assert_eq!(effective_hop_limit(&plain), 1);
    }

    #[test]
    fn packets_have_the_ecn_bits_of_the_socket_unless_the_program_set_some() {
        let ecn = SocketDefaults { traffic_class: ECN_CAPABLE, ..PLAIN };
        for (asked, sent) in [(0, 2), (0x68, 0x6a), (0x6a, 0x6a), (1, 1), (3, 3)] {
            let route = Route { traffic_class: asked, hop_limit: 0, ..route("10.1.2.3") };
            assert_eq!(effective_traffic_class(&route, ecn), sent);
            assert_eq!(effective_traffic_class(&route, PLAIN), asked);
            assert_eq!(Control::is_needless(&route, ecn), sent == ECN_CAPABLE);
        }
    }

    #[test]
    fn nonsense_from_the_kernel_is_survived() {
        let mut control = Control::default();
        for len in [0, 1, HEADER_LEN, Control::CAPACITY, usize::MAX] {
            control.set_len(len);
            for fill in [0, 0xff] {
                control.bytes.fill(fill);
                assert_eq!(control.arrival().segment_len, None);
            }
        }
    }
}
