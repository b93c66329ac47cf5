//! A stream socket: an id, an endpoint once there is a peer, and its waiters.
//!
//! One thread may read and one may write at the same time; others wait for a lock. One further lock protects all state. It is
//! released while a thread sleeps, and while it copies bytes between a ring and a program.
//!
//! | file | content |
//! |---|---|
//! | `shared` | the state, and how events and completions change it |
//! | `waiting` | its implementation of `Watched` |
//! | `establish` | bind and connect |
//! | `listen` | listen and accept |
//! | `transfer` | send and receive |
//! | `mappings` | memory that the peer writes to directly |
//! | `finish` | shut down and close |
//! | `options` | `rsetsockopt` and `rgetsockopt` |

mod establish;
mod finish;
mod listen;
mod mappings;
mod options;
mod shared;
mod transfer;
mod waiting;

use std::ffi::c_int;
use std::os::fd::RawFd;

use parking_lot::{Mutex, MutexGuard};

use super::address::Address;
use super::channel::Channel;
use super::errno::{Errno, Outcome};
use super::flags::Flags;
use super::settings::{Defaults, Sizing};
use super::waiting::{Pollable, wait};
use crate::abi::RDMA_PS_TCP;
use options::Options;
pub(crate) use options::{KeepAlive, Liveness};
use shared::{Shared, State};

/// A stream socket.
pub(crate) struct Connection {
    fd: RawFd,
    domain: c_int,
    shared: Mutex<Shared>,
    reading: Mutex<()>,
    writing: Mutex<()>,
    pub(crate) flags: Flags,
}

impl Connection {
    pub(crate) fn new(domain: c_int, status_flags: c_int, descriptor_flags: c_int) -> Outcome<Self> {
        let channel = Channel::new(RDMA_PS_TCP)?;
        let sizing = Defaults::of_machine().sizing;
        Ok(Self::of(channel, domain, sizing, State::Fresh, Flags::new(status_flags, descriptor_flags)))
    }

    fn of(channel: Channel, domain: c_int, sizing: Sizing, state: State, flags: Flags) -> Self {
        Self {
            fd: channel.fd(),
            domain,
            shared: Mutex::new(Shared::new(channel, sizing, Options::default(), state)),
            reading: Mutex::new(()),
            writing: Mutex::new(()),
            flags,
        }
    }

    /// The socket's number.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    /// The interface for `rpoll`.
    pub(crate) fn pollable(&self) -> &dyn Pollable {
        &self.shared
    }

    fn wait(&self, must_not_wait: bool, ready: impl Fn(&Shared) -> bool) -> Outcome<MutexGuard<'_, Shared>> {
        wait(&self.shared, must_not_wait, ready)
    }

    /// The local address, or only the family of a socket without one.
    pub(crate) fn local_address(&self) -> Address {
        let shared = self.shared.lock();
        // SAFETY: the id lives as long as the channel.
        let storage = unsafe { (*shared.channel.id()).route.addr.src };
        if storage.ss_family == 0 { Address::unspecified(self.domain) } else { Address { storage } }
    }

    /// The peer's address.
    pub(crate) fn peer_address(&self) -> Outcome<Address> {
        let shared = self.shared.lock();
        // SAFETY: as above.
        let storage = unsafe { (*shared.channel.id()).route.addr.dst };
        if storage.ss_family == 0 { Err(Errno(libc::ENOTCONN)) } else { Ok(Address { storage }) }
    }
}
