//! Addresses and ports, as the CM table and as sockets represent them.

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use socket2::{SockAddr, SockAddrStorage};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// An address and a port. All zeros mean none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Address {
    /// 0 for none, 4 or 6.
    pub version: u16,
    /// In the byte order of the machine.
    pub port: u16,
    /// Interface of a link-local address.
    pub scope: u32,
    /// The address in network byte order. Version 4 uses the first four bytes.
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
    /// The pointer is NULL, or leads to an address with the length of its family.
    pub unsafe fn read(from: *const sockaddr) -> Option<Address> {
        // SAFETY: as the caller promises.
        let length = match i32::from(unsafe { from.as_ref()? }.sa_family) {
            AF_INET => size_of::<sockaddr_in>(),
            AF_INET6 => size_of::<sockaddr_in6>(),
            _ => return None,
        };
        let mut storage = SockAddrStorage::zeroed();
        // SAFETY: as the caller promises, for this family; the storage is longer. Programs need not align theirs.
        let address = unsafe {
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut storage).cast(), length);
            SockAddr::new(storage, length as socklen_t)
        };
        address.as_socket().map(Address::from)
    }

    /// Converts it for a program: the address and its length, or zeros for none.
    pub fn write(self) -> (sockaddr_storage, socklen_t) {
        let address = self.to_socket().map(SockAddr::from);
        let length = address.as_ref().map_or(0, SockAddr::len);
        let mut storage = address.map_or_else(SockAddrStorage::zeroed, SockAddr::as_storage);
        // SAFETY: `SockAddrStorage` is a `sockaddr_storage`.
        (*unsafe { storage.view_as() }, length)
    }
}
