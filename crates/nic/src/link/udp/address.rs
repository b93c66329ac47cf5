//! Socket addresses in the kernel's format.

use ferroce_proto::Gid;
use ferroce_proto::wire::ROCE_UDP_PORT;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a `sockaddr_in6`, the longer of the two.
const LEN_V6: usize = 28;
const LEN_V4: usize = 16;

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(4))]
pub(super) struct SockAddr([u8; LEN_V6]);

impl SockAddr {
    /// The size of the longer kind, in bytes.
    pub(super) const CAPACITY: libc::socklen_t = LEN_V6 as libc::socklen_t;

    /// The RoCE port at a GID.
    pub(super) fn roce(gid: Gid) -> SockAddr {
        let mut b = [0; LEN_V6];
        b[2..4].copy_from_slice(&ROCE_UDP_PORT.to_be_bytes());
        match gid.to_ip() {
            IpAddr::V4(v4) => {
                b[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                b[4..8].copy_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => {
                b[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                b[8..24].copy_from_slice(&v6.octets());
            }
        }
        SockAddr(b)
    }

    /// GID and port, or `None` if this is no internet address.
    pub(super) fn to_gid_and_port(self) -> Option<(Gid, u16)> {
        let b = &self.0;
        let port = u16::from_be_bytes([b[2], b[3]]);
        let addr = match self.family() {
            libc::AF_INET => IpAddr::V4(Ipv4Addr::new(b[4], b[5], b[6], b[7])),
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&b[8..24]).ok()?)),
            _ => return None,
        };
        Some((Gid::from_ip(addr), port))
    }

    /// Bytes in use.
    pub(super) fn len(&self) -> libc::socklen_t {
        (if self.family() == libc::AF_INET { LEN_V4 } else { LEN_V6 }) as libc::socklen_t
    }
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn family(&self) -> libc::c_int {
        libc::c_int::from(u16::from_ne_bytes([self.0[0], self.0[1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_come_back() {
        for ip in ["127.0.0.5", "fe80::1:2"] {
            let gid = Gid::from_ip(ip.parse().unwrap());
            assert_eq!(SockAddr::roce(gid).to_gid_and_port(), Some((gid, 4791)));
        }
        assert_eq!(SockAddr::default().to_gid_and_port(), None);
    }
}
