//! Notifications of the kernel about address changes. The device updates its GID table and reports an event to programs.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A netlink socket that becomes readable when a link or an address changes.
pub struct AddressWatch(OwnedFd);

impl AddressWatch {
    /// Subscribes to changes of links and addresses.
    pub fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a plain system call; the result is checked and owned from here on.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a descriptor that nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero is a valid sockaddr_nl.
        let mut addr: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        addr.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        addr.nl_groups = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
        let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the address is a sockaddr_nl and `len` is its size.
        if unsafe { libc::bind(fd, (&raw const addr).cast(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(AddressWatch(socket))
    }

    /// Reads and discards the announcements: the caller reads the whole table again.
    pub fn drain(&self) {
        let mut bytes = [0u8; 8192];
        loop {
            // SAFETY: receives at most the length of the buffer into it.
            let n = unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            let overflow = n < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
            if n <= 0 && !overflow {
                return;
            }
        }
    }
}

/// Whether the machine has an interface with this number.
pub fn has_interface(index: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: `name` has `IF_NAMESIZE` bytes, the length that the call requires.
    !unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null()
}

impl AsRawFd for AddressWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
