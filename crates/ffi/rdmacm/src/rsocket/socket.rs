//! Sockets of both kinds, and their numbers.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::connection::{Connection, Liveness};
use super::datagram::Datagrams;
use super::errno::{Errno, Outcome};
use super::table::Table;
use super::waiting::Pollable;

/// A socket.
pub(crate) enum Socket {
    Stream(Box<Connection>),
    Datagram(Box<Datagrams>),
}

/// Makes the same call for a socket of either kind.
macro_rules! either {
    ($socket:expr, $kind:ident => $call:expr) => {
        match $socket {
            Socket::Stream($kind) => $call,
            Socket::Datagram($kind) => $call,
        }
    };
}
pub(crate) use either;

static SOCKETS: Table<Socket> = Table::new();

const AF_IB: c_int = 27;

impl Socket {
    /// `rsocket`.
    pub(crate) fn open(domain: c_int, kind: c_int, protocol: c_int) -> Outcome<RawFd> {
        let unsupported = Err(Errno(libc::ENOTSUP));
        if ![libc::AF_INET, libc::AF_INET6, AF_IB].contains(&domain) {
            return unsupported;
        }
        let status = if kind & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
        let descriptor = if kind & libc::SOCK_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
        let socket = match (kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                Socket::Stream(Box::new(Connection::new(domain, status, descriptor)?))
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) if domain != AF_IB => {
                Socket::Datagram(Box::new(Datagrams::new(domain, status, descriptor)?))
            }
            _ => return unsupported,
        };
        Ok(socket.publish())
    }

    /// Assigns its number.
    pub(crate) fn publish(self) -> RawFd {
        let fd = either!(&self, socket => socket.fd());
        SOCKETS.insert(fd, Arc::new(self));
        fd
    }

    /// The socket behind a number; `None` for any other descriptor.
    pub(crate) fn find(fd: RawFd) -> Option<Arc<Socket>> {
        SOCKETS.find(fd)
    }

    /// The socket behind a number; EBADF if there is none.
    pub(crate) fn of(fd: RawFd) -> Outcome<Arc<Socket>> {
        Self::find(fd).ok_or(Errno(libc::EBADF))
    }

    /// `rclose`: frees the number.
    pub(crate) fn close(fd: RawFd) -> Outcome<()> {
        let socket = Self::of(fd)?;
        super::keepalive::stop(&socket);
        // `close` may wait for the peer and wakes other threads, so the number stays in use until it is done.
        either!(&*socket, socket => socket.close());
        SOCKETS.remove(fd).map(drop).ok_or(Errno(libc::EBADF))
    }

    /// The stream socket; EOPNOTSUPP for a datagram socket.
    pub(crate) fn stream(&self) -> Outcome<&Connection> {
        match self {
            Socket::Stream(stream) => Ok(stream),
            Socket::Datagram(_) => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    pub(crate) fn pollable(&self) -> &dyn Pollable {
        either!(self, socket => socket.pollable())
    }

    /// Sends a probe.
    pub(crate) fn keep_alive(&self) -> Liveness {
        match self {
            Socket::Stream(stream) => stream.keep_alive(),
            Socket::Datagram(_) => Liveness::Ended,
        }
    }
}
