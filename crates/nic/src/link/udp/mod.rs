//! RoCEv2 over UDP port 4791.

use super::{Link, LinkCounters, LinkError, RxBatch, TxBatch};
use ferroce_proto::{Gid, Time};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// How to open a [`UdpLink`].
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Addresses to receive on; `None` receives on all of them, IPv4 and IPv6.
    pub bind: Option<Vec<IpAddr>>,
    /// Send runs of equal packets as one segmentation batch where the path can do it.
    pub gso: bool,
    /// Let the kernel merge runs of packets that arrive.
    pub gro: bool,
    /// Source ports per address family; the route's entropy picks one.
    pub send_sockets: usize,
}

impl Default for UdpConfig {
    fn default() -> Self {
        UdpConfig { bind: None, gso: true, gro: true, send_sockets: 4 }
    }
}

/// RoCEv2 over UDP port 4791, shared with the other processes of this user.
pub struct UdpLink {}

impl UdpLink {
    /// Opens the port, claims a process slot and joins the processes that share the port.
    pub fn open(_cfg: &UdpConfig) -> Result<UdpLink, LinkError> {
        todo!()
    }
}

impl Link for UdpLink {
    fn send(&self, _batch: &mut TxBatch) {
        todo!()
    }
    fn receive(&self, _rx: &mut RxBatch, _thorough: bool) -> usize {
        todo!()
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        todo!()
    }
    fn deadline(&self) -> Option<Time> {
        None
    }
    fn join_multicast(&self, _group: Gid) -> io::Result<()> {
        todo!()
    }
    fn leave_multicast(&self, _group: Gid) -> io::Result<()> {
        todo!()
    }
    fn counters(&self) -> LinkCounters {
        todo!()
    }
    fn slot(&self) -> u8 {
        todo!()
    }
}
