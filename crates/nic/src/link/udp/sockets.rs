//! The sockets of the link and their options for RoCEv2.

use super::control::SocketDefaults;
use super::sys::set_option;
use super::{UdpConfig, owner};
use crate::link::LinkError;
use ferroce_os::interfaces::open_udp;
use ferroce_proto::wire::ROCE_UDP_PORT;
use rand::Rng;
use socket2::{SockFilter, Socket};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Source ports that RoCEv2 senders use (annex A17.4.5.1: entropy in the dynamic range).
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 0xC000..=0xFFFF;
/// Most source ports to try. The range is large, so after this many failures in a row no port is free.
const PORT_TRIES: usize = 128;
/// Requested size of socket buffers; the kernel grants what `net.core.rmem_max` allows.
const BUFFER_BYTES: usize = 8 << 20;
/// These two are not in the `libc` crate.
const IPV6_MULTICAST_ALL: libc::c_int = 29;
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// A TX socket and the source port of its packets.
#[derive(Debug)]
pub(super) struct TxSocket {
    pub(super) socket: Socket,
    pub(super) port: u16,
    /// Whether it is bound to its source address; otherwise each packet needs a control message with its source.
    pub(super) is_bound: bool,
    /// Traffic class and hop limit of packets without a control message.
    pub(super) defaults: SocketDefaults,
    /// Keeps the port from being bound at any other address of the host.
    _reservation: Option<Socket>,
}

/// Opens a socket that receives on `addr`, not yet bound: binding belongs under the registry's lock.
pub(super) fn open_receive_socket(addr: IpAddr, cfg: &UdpConfig) -> io::Result<Socket> {
    let socket = open(addr.is_ipv4())?;
    socket.set_reuse_port(true)?;
    let on: libc::c_int = 1;
    let off: libc::c_int = 0;
    // A socket bound to one address receives packets to that address only, so it needs no control message for the destination.
    let tell_address = libc::c_int::from(addr.is_unspecified());
    if addr.is_ipv4() {
        set_option(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, tell_address)?;
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, off)?;
    } else {
        socket.set_only_v6(true)?;
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, tell_address)?;
        // Older kernels lack the option; they deliver groups that nobody here joined, and the NIC drops those.
        let _ = set_option(&socket, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, off);
        // RoCEv2 senders leave the UDP checksum zero over IPv6 too (annex A17.4.5.2), since the ICRC covers more. Without
        // this the kernel drops all that Soft-RoCE and hardware send.
        set_option(&socket, libc::SOL_UDP, UDP_NO_CHECK6_RX, on)?;
    }
    if cfg.gro {
        // Kernels before 5.0 lack it and deliver packet by packet.
        let _ = set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, on);
    }
    enlarge(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
    Ok(socket)
}

/// Makes the kernel report traffic class and hop limit of received packets.
pub(super) fn report_outer_fields(socket: &Socket, is_ipv4: bool) -> io::Result<()> {
    let on: libc::c_int = 1;
    if is_ipv4 {
        set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, on)?;
        set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTTL, on)
    } else {
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, on)?;
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, on)
    }
}

/// Binds a receiving socket to the RoCE port.
pub(super) fn bind(socket: &Socket, addr: IpAddr) -> Result<(), LinkError> {
    bind_in_scope(socket, addr, 0)
}

/// The same, for an address that is valid on one interface only; `scope` is 0 for all others.
pub(super) fn bind_in_scope(socket: &Socket, addr: IpAddr, scope: u32) -> Result<(), LinkError> {
    let mut addr = SocketAddr::new(addr, ROCE_UDP_PORT);
    if let SocketAddr::V6(v6) = &mut addr {
        v6.set_scope_id(scope);
    }
    socket.bind(&addr.into()).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => LinkError::PortTaken { addr, owner: owner::describe() },
        io::ErrorKind::AddrNotAvailable => LinkError::NoSuchAddress { addr },
        _ => LinkError::Socket { what: format!("bind to {addr}"), source },
    })
}

/// Opens a socket that sends from `addr`, or from any address if that is the wildcard, with its own source port and these
/// defaults.
///
/// Unconnected and with "don't fragment": only then does the kernel write identification 0, which the ICRC covers.
///
/// `reserves`: no other user of this host can send from `addr` with the same port. Otherwise a socket that is bound to the port at another
/// address of the host could do so: it may set any local address as the source of a packet (`IP_PKTINFO`).
pub(super) fn open_tx_socket(addr: IpAddr, defaults: SocketDefaults, reserves: bool) -> io::Result<TxSocket> {
    let is_ipv4 = addr.is_ipv4();
    let socket = open(is_ipv4)?;
    let on: libc::c_int = 1;
    let (class, hops) = (libc::c_int::from(defaults.traffic_class), libc::c_int::from(defaults.hop_limit));
    if is_ipv4 {
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set_option(&socket, libc::IPPROTO_IP, libc::IP_TOS, class)?;
        set_option(&socket, libc::IPPROTO_IP, libc::IP_TTL, hops)?;
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, hops)?;
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, on)?;
    } else {
        socket.set_only_v6(true)?;
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, on)?;
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class)?;
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hops)?;
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, hops)?;
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, on)?;
    }
    enlarge(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
    drop_arrivals(&socket)?;
    // The wildcard reserves its port itself.
    let reservation = if reserves && !addr.is_unspecified() { Some(open(is_ipv4)?) } else { None };
    let port = match &reservation {
        None => bind_source_port(&socket, addr)?,
        Some(reservation) => {
            if !is_ipv4 {
                reservation.set_only_v6(true)?;
            }
            drop_arrivals(reservation)?;
            let port = bind_source_port(reservation, unspecified(is_ipv4))?;
            // Only sockets of one user share a port in this way, and only once the port is theirs.
            reservation.set_reuse_port(true)?;
            socket.set_reuse_port(true)?;
            socket.bind(&SocketAddr::new(addr, port).into())?;
            port
        }
    };
    Ok(TxSocket { socket, port, is_bound: !addr.is_unspecified(), defaults, _reservation: reservation })
}

/// Drops all packets to a socket that is never read, so that they do not fill its buffer.
fn drop_arrivals(socket: &Socket) -> io::Result<()> {
    let drop_all = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
    socket.attach_filter(&[drop_all])
}

fn bind_source_port(socket: &Socket, addr: IpAddr) -> io::Result<u16> {
    let mut rng = ferroce_os::random::generator();
    let mut last_error = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..PORT_TRIES {
        let port = rng.random_range(SOURCE_PORTS);
        match socket.bind(&SocketAddr::new(addr, port).into()) {
            Ok(()) => return Ok(port),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => last_error = e,
            Err(e) => return Err(e),
        }
    }
    Err(last_error)
}

/// The wildcard address.
pub(super) fn unspecified(is_ipv4: bool) -> IpAddr {
    if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn open(is_ipv4: bool) -> io::Result<Socket> {
    let socket = Socket::from(open_udp(is_ipv4)?);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Enlarges a buffer as far as allowed, with CAP_NET_ADMIN beyond the system's limit. A small buffer is not an error.
fn enlarge(socket: &Socket, forced: libc::c_int, ordinary: libc::c_int) {
    let bytes = BUFFER_BYTES as libc::c_int;
    if set_option(socket, libc::SOL_SOCKET, forced, bytes).is_err() {
        let _ = set_option(socket, libc::SOL_SOCKET, ordinary, bytes);
    }
}
