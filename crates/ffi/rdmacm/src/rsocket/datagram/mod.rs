//! A datagram socket: UDP until both ends have exchanged their queue pair numbers, UD messages afterwards.
//!
//! | file | content |
//! |---|---|
//! | `header` | the two headers on the wire |
//! | `udp` | the UDP socket |
//! | `endpoint` | a UD queue pair with its slots |
//! | `shared` | the state: queue pairs, peers, received datagrams |

mod endpoint;
mod header;
mod shared;
mod udp;

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::address::Address;
use super::errno::{Errno, Outcome};
use super::flags::Flags;
use super::option::{Given, RDMA_INLINE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA, Taken};
use super::settings::Defaults;
use super::vectors::Vectors;
use super::waiting::{self, Pollable, Watched};
use shared::Shared;
use udp::Udp;

/// How long a close waits for datagrams to leave.
const LINGER: Duration = Duration::from_secs(1);

/// A datagram socket.
pub(crate) struct Datagrams {
    udp: Arc<Udp>,
    shared: Mutex<Shared>,
    pub(crate) flags: Flags,
}

/// A received datagram.
pub(crate) struct Received {
    pub(crate) source: Address,
    /// Bytes copied to the program.
    pub(crate) copied: usize,
    /// Length of the datagram.
    pub(crate) length: usize,
}

impl Datagrams {
    pub(crate) fn new(domain: c_int, status_flags: c_int, descriptor_flags: c_int) -> Outcome<Self> {
        let udp = Arc::new(Udp::new(domain)?);
        Ok(Self {
            shared: Mutex::new(Shared::new(udp.clone(), Defaults::of_machine().sizing)),
            udp,
            flags: Flags::new(status_flags, descriptor_flags),
        })
    }

    /// The socket's number.
    pub(crate) fn fd(&self) -> RawFd {
        self.udp.fd()
    }

    pub(crate) fn pollable(&self) -> &dyn Pollable {
        &self.shared
    }

    pub(crate) fn bind(&self, address: Address) -> Outcome<()> {
        self.udp.bind(address)
    }

    pub(crate) fn connect(&self, address: Address) -> Outcome<()> {
        let mut shared = self.shared.lock();
        self.udp.connect(address)?;
        let peer = address.ip().ok_or(Errno(libc::EAFNOSUPPORT))?;
        shared.meet(peer)?;
        shared.connected = Some(peer);
        Ok(())
    }

    /// Sends one datagram to `to`, or to the connected peer.
    pub(crate) fn send(&self, from: Vectors<'_>, to: Option<Address>, flags: c_int) -> Outcome<usize> {
        let to: Option<SocketAddr> = match to {
            Some(address) => Some(address.ip().ok_or(Errno(libc::EAFNOSUPPORT))?),
            None => None,
        };
        let mut shared = self.shared.lock();
        let to = to.or(shared.connected).ok_or(Errno(libc::EDESTADDRREQ))?;
        if !shared.has_room() {
            drop(shared);
            shared = waiting::wait(&self.shared, self.flags.forbid_waiting(flags), Shared::has_room)?;
        }
        let length = from.left();
        shared.send(to, from, flags & libc::MSG_DONTWAIT)?;
        Ok(length)
    }

    /// Receives one datagram. Bytes that do not fit are lost.
    pub(crate) fn receive(&self, into: Vectors<'_>, flags: c_int) -> Outcome<Received> {
        let must_not_wait = self.flags.forbid_waiting(flags);
        let mut shared = self.shared.lock();
        if shared.waiting.is_empty() {
            drop(shared);
            shared = waiting::wait(&self.shared, must_not_wait, |shared| !shared.waiting.is_empty())?;
        }
        let read = shared.read(into, flags & libc::MSG_PEEK != 0);
        let (source, length, copied) = read.ok_or(Errno::WOULD_BLOCK)?;
        Ok(Received { source: source.into(), copied, length })
    }

    pub(crate) fn local_address(&self) -> Outcome<Address> {
        self.udp.local()
    }

    pub(crate) fn peer_address(&self) -> Outcome<Address> {
        self.udp.peer()
    }

    /// Waits until all datagrams were sent, at most [`LINGER`].
    pub(crate) fn shut_down(&self) -> Outcome<()> {
        let shared = self.shared.lock();
        // A datagram that is not sent in time counts as lost, which is not an error.
        drop(waiting::sleep_until(shared, Some(Instant::now() + LINGER), Shared::is_flushed));
        Ok(())
    }

    pub(crate) fn close(&self) {
        let _ = self.shut_down();
        let mut shared = self.shared.lock();
        shared.closed = true;
        shared.sleepers().wake(None);
    }

    /// Sets sizes here, and all other options on the UDP socket.
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: &Given) -> Outcome<()> {
        let mut shared = self.shared.lock();
        let fresh = !shared.has_endpoints();
        match (level, name) {
            (SOL_RDMA, _) if !fresh => return Err(Errno(libc::EINVAL)),
            (SOL_RDMA, RDMA_SQSIZE) => shared.sizing.set_send_queue(value.size()?),
            (SOL_RDMA, RDMA_RQSIZE) => shared.sizing.set_recv_queue(value.size()?),
            (SOL_RDMA, RDMA_INLINE) => shared.sizing.set_inline(value.size()?),
            (SOL_RDMA, _) => return Err(Errno(libc::ENOTSUP)),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if fresh => shared.sizing.set_recv_ring(value.size()?),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if fresh => shared.sizing.set_send_ring(value.size()?),
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
            _ => {
                let bytes = value.bytes();
                let (pointer, length) = (bytes.as_ptr().cast(), bytes.len() as libc::socklen_t);
                // SAFETY: the slice and its length.
                Errno::check(unsafe { libc::setsockopt(self.fd(), level, name, pointer, length) })?;
            }
        }
        Ok(())
    }

    pub(crate) fn option(&self, level: c_int, name: c_int, into: &mut Taken) -> Outcome<()> {
        let sizing = self.shared.lock().sizing;
        let number = match (level, name) {
            (SOL_RDMA, RDMA_SQSIZE) => c_int::from(sizing.send_queue),
            (SOL_RDMA, RDMA_RQSIZE) => c_int::from(sizing.recv_queue),
            (SOL_RDMA, RDMA_INLINE) => sizing.inline as c_int,
            (SOL_RDMA, _) => return Err(Errno(libc::ENOTSUP)),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizing.recv_ring as c_int,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizing.send_ring as c_int,
            _ => return into.ask(self.fd(), level, name),
        };
        into.put(&number)
    }
}
