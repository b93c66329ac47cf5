//! The machine's network interfaces and their addresses.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// MTU of an interface that reports none.
const ETHERNET_MTU: u32 = 1500;

/// An address of this machine and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub addr: IpAddr,
    /// Name of the interface.
    pub interface: String,
    /// Number of the interface.
    pub index: u32,
    /// Whether the interface is up.
    pub is_up: bool,
    /// Longest IP packet that the interface carries, in bytes.
    pub mtu: u32,
}

/// Every address of every interface, in the kernel's order.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a valid place for the answer.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is an entry of the list, which lives until `freeifaddrs` below.
        let entry = unsafe { &*next };
        found.extend(local_address(entry));
        next = entry.ifa_next;
    }
    // SAFETY: `list` came from `getifaddrs`, and nothing made from it outlives this point.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The Ethernet address of an interface; zeros for one that has none, such as loopback.
pub fn hardware_address(interface: &str) -> io::Result<[u8; 6]> {
    let socket = open_udp(true)?;
    // SAFETY: all zero is a valid request: an empty name and an empty answer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the descriptor is open, and the request is what this call reads and writes.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call wrote this member of the union.
    let bytes = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|at| bytes[at].cast_unsigned()))
}

/// A UDP socket, created by a bare system call. A preloaded library may replace libc's `socket` (librspreload turns the program's sockets
/// into ours). The NIC's own sockets must stay kernel sockets.
pub fn open_udp(is_ipv4: bool) -> io::Result<OwnedFd> {
    open_socket(is_ipv4, libc::SOCK_DGRAM, libc::IPPROTO_UDP)
}

/// The MTU in bytes of the path of a connected socket.
pub fn connected_mtu(socket: &impl AsRawFd, is_ipv4: bool) -> io::Result<u32> {
    let (level, name) =
        if is_ipv4 { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let mut mtu: libc::c_int = 0;
    let mut len = size_of_val(&mtu) as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed; `mtu` is writable for `len` bytes.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut mtu).cast(), &mut len) };
    if rc == 0 { Ok(mtu.cast_unsigned()) } else { Err(io::Error::last_os_error()) }
}

/// A non-blocking TCP socket, created in the same way.
pub fn open_tcp(is_ipv4: bool) -> io::Result<OwnedFd> {
    open_socket(is_ipv4, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, libc::IPPROTO_TCP)
}

fn open_socket(is_ipv4: bool, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    let domain = if is_ipv4 { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a plain system call; the result is checked and owned from here on.
    let fd = unsafe { libc::syscall(libc::SYS_socket, domain, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that nobody else owns; descriptors are small numbers.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn local_address(entry: &libc::ifaddrs) -> Option<LocalAddress> {
    if entry.ifa_addr.is_null() {
        return None;
    }
    // SAFETY: not null, so it points to a socket address of the family it names; the casts follow that family.
    let addr = unsafe {
        match libc::c_int::from((*entry.ifa_addr).sa_family) {
            libc::AF_INET => {
                let v4 = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                IpAddr::V4(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => {
                let v6 = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr))
            }
            _ => return None,
        }
    };
    // SAFETY: the name is a terminated string of the same list.
    let (name, index) = unsafe { (CStr::from_ptr(entry.ifa_name), libc::if_nametoindex(entry.ifa_name)) };
    let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
    let mtu = interface_mtu(name).unwrap_or(ETHERNET_MTU);
    Some(LocalAddress { addr, interface: name.to_string_lossy().into_owned(), index, is_up, mtu })
}

/// The MTU of an interface, read through a socket: /sys/class/net shows the network namespace in which it was mounted, which may be another.
fn interface_mtu(name: &CStr) -> Option<u32> {
    let socket = open_udp(true).ok()?;
    // SAFETY: all zero is a valid `ifreq`: an empty name and an empty answer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero and terminates the name.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.to_bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the descriptor is open, and `request` is what this call reads and writes.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &mut request) };
    // SAFETY: the call succeeded, so it has written this member of the union.
    (failed == 0).then(|| unsafe { request.ifr_ifru.ifru_mtu }.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_there() {
        let all = local_addresses().unwrap();
        let lo = all.iter().find(|a| a.addr == IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("127.0.0.1");
        assert!(lo.index > 0 && lo.is_up && lo.mtu > ETHERNET_MTU);
    }
}
