//! Addresses and ports, as the CM table and as sockets represent them.

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// An address and a port. All zeros: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Address {
    /// 0 for none, 4 or 6.
    pub version: u16,
    /// In the byte order of the machine.
    pub port: u16,
    /// Interface of a link-local address.
    pub scope: u32,
    /// The first four for version 4.
    pub bytes: [u8; 16],
}

impl From<SocketAddr> for Address {
    fn from(from: SocketAddr) -> Self {
        let mut bytes = [0; 16];
        let (version, scope) = match from {
            SocketAddr::V4(v4) => {
                bytes[..4].copy_from_slice(&v4.ip().octets());
                (4, 0)
            }
            SocketAddr::V6(v6) => {
                bytes = v6.ip().octets();
                (6, v6.scope_id())
            }
        };
        Address { version, port: from.port(), scope, bytes }
    }
}

impl Address {
    /// As a standard library address; `None` for none.
    pub fn to_socket(self) -> Option<SocketAddr> {
        let [a, b, c, d, ..] = self.bytes;
        match self.version {
            4 => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), self.port)),
            6 => Some(SocketAddrV6::new(Ipv6Addr::from(self.bytes), self.port, 0, self.scope).into()),
            _ => None,
        }
    }

    /// Reads a program's pointer: `None` for NULL and for families other than IPv4 and IPv6.
    ///
    /// # Safety
    /// The pointer is NULL, or leads to an address as long as its family says.
    pub unsafe fn read(from: *const sockaddr) -> Option<Address> {
        // SAFETY: as the caller promises.
        match c_int_family(unsafe { from.as_ref()? }.sa_family) {
            AF_INET => {
                // SAFETY: as the caller promises, for this family. Programs need not align it.
                let v4 = unsafe { from.cast::<sockaddr_in>().read_unaligned() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)).into())
            }
            AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { from.cast::<sockaddr_in6>().read_unaligned() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id)).into())
            }
            _ => None,
        }
    }

    /// Writes it for a program: the address and its length; zeros for none.
    pub fn write(self) -> (sockaddr_storage, socklen_t) {
        // SAFETY: numbers, all of which may be zero.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        let place = &raw mut storage;
        match self.version {
            4 => {
                // SAFETY: numbers again.
                let mut v4: sockaddr_in = unsafe { std::mem::zeroed() };
                v4.sin_family = AF_INET as u16;
                v4.sin_port = self.port.to_be();
                v4.sin_addr.s_addr = u32::from_ne_bytes([0, 1, 2, 3].map(|i| self.bytes[i]));
                // SAFETY: the storage is larger than every address, and aligned for all.
                unsafe { place.cast::<sockaddr_in>().write(v4) };
                (storage, size_of::<sockaddr_in>() as socklen_t)
            }
            6 => {
                // SAFETY: numbers again.
                let mut v6: sockaddr_in6 = unsafe { std::mem::zeroed() };
                v6.sin6_family = AF_INET6 as u16;
                v6.sin6_port = self.port.to_be();
                v6.sin6_addr.s6_addr = self.bytes;
                v6.sin6_scope_id = self.scope;
                // SAFETY: as above.
                unsafe { place.cast::<sockaddr_in6>().write(v6) };
                (storage, size_of::<sockaddr_in6>() as socklen_t)
            }
            _ => (storage, 0),
        }
    }
}

fn c_int_family(family: libc::sa_family_t) -> i32 {
    i32::from(family)
}
