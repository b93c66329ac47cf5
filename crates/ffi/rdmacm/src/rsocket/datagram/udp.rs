//! The UDP socket behind a datagram socket. Its descriptor is the socket's number.
//!
//! It is created by a direct system call: librspreload replaces `socket`, and this must be a socket of the kernel.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{iovec, msghdr, socklen_t};

use crate::rsocket::address::Address;
use crate::rsocket::errno::{Errno, Outcome};
use crate::rsocket::vectors::Vectors;

pub(crate) struct Udp(OwnedFd);

/// The length of an address as a `socklen_t`.
fn length_of(address: &Address) -> socklen_t {
    address.length() as socklen_t
}

impl Udp {
    pub(crate) fn new(domain: c_int) -> Outcome<Self> {
        // SAFETY: the new descriptor has no other owner.
        unsafe {
            let fd = libc::syscall(libc::SYS_socket, domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
            let fd = Errno::check(fd as c_int)?;
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn bind(&self, mut address: Address) -> Outcome<()> {
        // SAFETY: a complete address and its length.
        Errno::check(unsafe { libc::bind(self.fd(), address.as_ptr(), length_of(&address)) }).map(drop)
    }

    pub(crate) fn connect(&self, mut address: Address) -> Outcome<()> {
        // SAFETY: a complete address and its length.
        Errno::check(unsafe { libc::connect(self.fd(), address.as_ptr(), length_of(&address)) }).map(drop)
    }

    pub(crate) fn local(&self) -> Outcome<Address> {
        self.query(libc::getsockname)
    }

    pub(crate) fn peer(&self) -> Outcome<Address> {
        self.query(libc::getpeername)
    }

    fn query(
        &self,
        call: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int,
    ) -> Outcome<Address> {
        let mut address = Address::unspecified(0);
        let mut length = size_of::<libc::sockaddr_storage>() as socklen_t;
        // SAFETY: the buffers have the given lengths.
        Errno::check(unsafe { call(self.fd(), address.as_ptr(), &mut length) })?;
        Ok(address)
    }

    /// Sends a header and the program's bytes behind it.
    pub(crate) fn send(
        &self,
        to: SocketAddr,
        header: &[u8],
        mut from: Vectors<'_>,
        flags: c_int,
    ) -> Outcome<()> {
        let mut list = vec![iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: header.len() }];
        from.walk(from.left(), |start, count| list.push(iovec { iov_base: start.cast(), iov_len: count }));
        let mut address = Address::from(to);
        // SAFETY: all zeros are an empty message; its pointers are valid until the call returns.
        let sent = unsafe {
            let mut message: msghdr = std::mem::zeroed();
            message.msg_name = address.as_ptr().cast();
            message.msg_namelen = length_of(&address);
            message.msg_iov = list.as_mut_ptr();
            message.msg_iovlen = list.len();
            libc::sendmsg(self.fd(), &message, flags | libc::MSG_NOSIGNAL)
        };
        if sent < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    /// The next packet, if there is one.
    pub(crate) fn receive<'a>(&self, into: &'a mut [u8]) -> Option<(SocketAddr, &'a [u8])> {
        let mut address = Address::unspecified(0);
        let mut length = size_of::<libc::sockaddr_storage>() as socklen_t;
        let (start, capacity) = (into.as_mut_ptr().cast(), into.len());
        // SAFETY: the buffers have the given lengths.
        let got = unsafe {
            libc::recvfrom(self.fd(), start, capacity, libc::MSG_DONTWAIT, address.as_ptr(), &mut length)
        };
        let got = usize::try_from(got).ok()?;
        Some((address.ip()?, &into[..got]))
    }
}

/// The local address that the system uses for a destination.
pub(crate) fn source_for(to: SocketAddr) -> Outcome<SocketAddr> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = Udp::new(family)?;
    socket.connect(Address::from(to))?;
    socket.local()?.ip().ok_or(Errno(libc::EADDRNOTAVAIL))
}
