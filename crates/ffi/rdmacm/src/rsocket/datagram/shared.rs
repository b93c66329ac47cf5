//! The state of a datagram socket: its queue pairs, known peers, and received datagrams.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{POLLIN, POLLOUT, pollfd};

use super::endpoint::{Arrived, Endpoint, SLOT};
use super::header::{Purpose, ServiceHeader};
use super::udp::{Udp, source_for};
use crate::rsocket::address::Address;
use crate::rsocket::completions::Notification;
use crate::rsocket::errno::{Errno, Outcome};
use crate::rsocket::settings::Sizing;
use crate::rsocket::vectors::Vectors;
use crate::rsocket::wait::{Bell, Sleepers, watch};
use crate::rsocket::waiting::Watched;

/// The maximum number of known peers. At this number, all entries are discarded.
const MAX_PEERS: usize = 1024;
/// How often a caller that never sleeps polls the UDP socket; each poll is a system call.
const GLANCE: Duration = Duration::from_micros(50);

/// The state of a peer.
#[derive(Clone, Copy)]
struct Peer {
    /// Our queue pair on the path to it.
    endpoint: usize,
    /// Its queue pair, if known.
    qpn: Option<u32>,
}

/// A received datagram that the program has not read.
pub(crate) enum Waiting {
    /// It came over plain UDP.
    Copied(SocketAddr, Vec<u8>),
    /// It lies in a slot of one of our queue pairs.
    InSlot(usize, Arrived),
}

pub(crate) struct Shared {
    endpoints: Vec<Endpoint>,
    peers: HashMap<SocketAddr, Peer>,
    pub(crate) waiting: VecDeque<Waiting>,
    pub(crate) udp: Arc<Udp>,
    pub(crate) connected: Option<SocketAddr>,
    pub(crate) sizing: Sizing,
    pub(crate) sleepers: Sleepers,
    pub(crate) closed: bool,
    glanced: Instant,
}

impl Shared {
    pub(crate) fn new(udp: Arc<Udp>, sizing: Sizing) -> Self {
        Self {
            endpoints: Vec::new(),
            peers: HashMap::new(),
            waiting: VecDeque::new(),
            udp,
            connected: None,
            sizing,
            sleepers: Sleepers::default(),
            closed: false,
            glanced: Instant::now(),
        }
    }

    pub(crate) fn has_endpoints(&self) -> bool {
        !self.endpoints.is_empty()
    }

    /// Whether all datagrams were sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.endpoints.iter().all(Endpoint::is_idle)
    }

    /// The queue pair at the local address for `to`; created if necessary.
    fn endpoint_for(&mut self, to: SocketAddr) -> Outcome<usize> {
        let mut local = self.local_port(to)?;
        if local.ip().is_unspecified() || local.ip().is_loopback() {
            local.set_ip(source_for(to)?.ip());
        }
        if let Some(at) = self.endpoints.iter().position(|endpoint| endpoint.local == local) {
            return Ok(at);
        }
        let mut sizing = self.sizing;
        sizing.fit(u32::from(u16::MAX));
        self.endpoints.push(Endpoint::new(local, &sizing)?);
        Ok(self.endpoints.len() - 1)
    }

    /// Our address with a port, to which the peer replies.
    fn local_port(&self, to: SocketAddr) -> Outcome<SocketAddr> {
        let unknown = Errno(libc::EADDRNOTAVAIL);
        let local = self.udp.local()?.ip().ok_or(unknown)?;
        if local.port() != 0 {
            return Ok(local);
        }
        let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        self.udp.bind(Address::unspecified(family))?;
        self.udp.local()?.ip().ok_or(unknown)
    }

    fn peer(&mut self, address: SocketAddr) -> Outcome<Peer> {
        if let Some(peer) = self.peers.get(&address) {
            return Ok(*peer);
        }
        let endpoint = self.endpoint_for(address)?;
        if self.peers.len() >= MAX_PEERS {
            self.peers.clear();
        }
        let peer = Peer { endpoint, qpn: None };
        self.peers.insert(address, peer);
        Ok(peer)
    }

    /// Prepares a queue pair on the path to a peer.
    pub(crate) fn meet(&mut self, address: SocketAddr) -> Outcome<()> {
        self.peer(address).map(drop)
    }

    /// Whether a datagram can be sent without waiting.
    pub(crate) fn has_room(&self) -> bool {
        self.endpoints.iter().all(Endpoint::has_room)
    }

    /// Sends a datagram: as a UD message if the peer's queue pair is known and it fits, otherwise over UDP.
    pub(crate) fn send(&mut self, to: SocketAddr, from: Vectors<'_>, flags: i32) -> Outcome<()> {
        let mut peer = self.peer(to)?;
        if peer.qpn.is_none() {
            // The peer's reply with its queue pair may have arrived.
            self.take_packets();
            peer = self.peer(to)?;
        }
        let Some(endpoint) = self.endpoints.get_mut(peer.endpoint) else { return Err(Errno(libc::ENODEV)) };
        match peer.qpn {
            Some(qpn) if from.left() <= endpoint.capacity => endpoint.send(to.ip(), qpn, from),
            _ => {
                let header = service_header(endpoint, Purpose::Data);
                if header.len() + from.left() > SLOT as usize {
                    return Err(Errno(libc::EMSGSIZE));
                }
                self.udp.send(to, &header, from, flags)
            }
        }
    }

    /// Reads UDP packets until the queue is full. Returns their number.
    fn take_packets(&mut self) -> usize {
        let mut count = 0;
        let most = usize::from(self.sizing.recv_queue.max(1));
        let mut packet = [0; SLOT as usize];
        while self.waiting.len() < most {
            let udp = self.udp.clone();
            let Some((source, bytes)) = udp.receive(&mut packet) else { break };
            count += 1;
            // An invalid packet, or one without a path back, is dropped. A failure to reply is ignored.
            let _ = self.take_packet(source, bytes);
        }
        count
    }

    fn take_packet(&mut self, source: SocketAddr, bytes: &[u8]) -> Outcome<()> {
        let Ok((header, length)) = ServiceHeader::parse(bytes, &source) else { return Ok(()) };
        let mut peer = self.peer(source)?;
        peer.qpn = Some(header.qpn);
        self.peers.insert(source, peer);
        if header.purpose == Purpose::Data {
            self.waiting.push_back(Waiting::Copied(source, bytes[length..].to_vec()));
            let Some(endpoint) = self.endpoints.get(peer.endpoint) else { return Ok(()) };
            let answer = service_header(endpoint, Purpose::Answer);
            self.udp.send(source, &answer, Vectors::new(&[])?, libc::MSG_DONTWAIT)?;
        }
        Ok(())
    }

    /// Copies the oldest datagram to the program, and removes it unless `peek` is set. Returns `None` if there is none.
    pub(crate) fn read(&mut self, mut into: Vectors<'_>, peek: bool) -> Option<(SocketAddr, usize, usize)> {
        let (source, length, copied) = match self.waiting.front()? {
            Waiting::Copied(source, bytes) => {
                let (capacity, mut at) = (into.left(), 0);
                let count = bytes.len().min(capacity);
                into.walk(count, |start, part| {
                    // SAFETY: the program's buffers have the lengths in its list; `at` and `part` stay within `count`.
                    unsafe { std::ptr::copy_nonoverlapping(bytes[at..at + part].as_ptr(), start, part) };
                    at += part;
                });
                (*source, bytes.len(), count)
            }
            Waiting::InSlot(at, arrived) => {
                let length = arrived.data.length as usize;
                let count = length.min(into.left());
                self.endpoints.get(*at)?.copy(arrived, &mut into);
                (arrived.source, length, count)
            }
        };
        if !peek
            && let Some(Waiting::InSlot(at, arrived)) = self.waiting.pop_front()
            && let Some(endpoint) = self.endpoints.get_mut(at)
        {
            endpoint.release(&arrived);
        }
        Some((source, length, copied))
    }
}

fn service_header(endpoint: &Endpoint, purpose: Purpose) -> Vec<u8> {
    ServiceHeader { purpose, qpn: endpoint.qpn(), address: endpoint.local.ip() }.to_bytes()
}

impl Watched for Shared {
    fn progress(&mut self, own: Option<&Arc<Bell>>) {
        let mut changes = 0;
        for (at, endpoint) in self.endpoints.iter_mut().enumerate() {
            changes += endpoint.progress(|arrived| self.waiting.push_back(Waiting::InSlot(at, arrived)));
        }
        if changes > 0 {
            self.sleepers.wake(own);
        }
    }

    fn glance(&mut self) {
        if self.glanced.elapsed() >= GLANCE {
            self.glanced = Instant::now();
            if self.take_packets() > 0 {
                self.sleepers.wake(None);
            }
        }
    }

    fn arm(&mut self) {
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.completions.arm());
    }

    fn watch(&self, fds: &mut Vec<pollfd>) {
        fds.push(watch(self.udp.fd(), POLLIN));
        fds.extend(self.endpoints.iter().map(|endpoint| watch(endpoint.completions.fd(), POLLIN)));
    }

    fn take_events(&mut self, own: Option<&Arc<Bell>>) {
        let mut changes = self.take_packets();
        for endpoint in &mut self.endpoints {
            changes += usize::from(endpoint.completions.take_event() == Notification::Taken);
        }
        if changes > 0 {
            self.sleepers.wake(own);
        }
    }

    fn on_silence(&mut self) {}

    fn readiness(&self, events: i16) -> i16 {
        let mut ready = if self.waiting.is_empty() { 0 } else { POLLIN };
        ready |= if self.has_room() { POLLOUT } else { 0 };
        ready & events
    }

    fn sleepers(&mut self) -> &mut Sleepers {
        &mut self.sleepers
    }

    fn is_closed(&self) -> bool {
        self.closed
    }
}
