//! The UDP port that the processes of one user share: the owner of a queue pair number, and messages between the processes.
//!
//! Each process has a slot, and the high eight bits of a queue pair number are the slot of its owner. The link steers packets
//! to their owner, but its steering program is outdated for a moment after every join, leave and death. A process that receives
//! a misrouted packet forwards it over a Unix datagram socket per slot. Only this user may enter the directory of the sockets,
//! so forwarded packets were verified by another process of the same user.

use super::RxPacket;
use super::batch::{RX_BUFFER_LEN, RxMeta};
use super::counters::{RunningCounters, add};
use ferroce_os::clock::now;
use ferroce_os::lock::Mutex;
use ferroce_proto::qp::Arrival;
use ferroce_proto::wire::ICRC_LEN;
use ferroce_proto::{Gid, Qpn, Time};
use ferroce_shm::registry::Registry;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const MAGIC: [u8; 4] = *b"fwd1";
const KIND_PACKETS: u8 = 1;
const KIND_REATTACH: u8 = 2;

const NEVER: u64 = u64::MAX;
/// Time until a message to a full socket is sent again.
const RETRY_NS: u64 = 200_000;
/// Most bytes queued for other processes. Further packets are dropped, and the transport recovers.
const MAX_WAITING_BYTES: usize = 8 << 20;
/// How long a closing link waits for other processes to read their packets.
const LAST_PATIENCE: Duration = Duration::from_millis(200);

/// Bytes of the header in front of the packets.
pub(super) const HEADER_LEN: usize = 44;
/// Most bytes of packets in one message: header and packets fit one receive buffer.
pub(super) const MAX_RUN_LEN: usize = RX_BUFFER_LEN - HEADER_LEN;

/// A message from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forwarded {
    /// Verified packets with their ICRCs follow the header; all but the last are `segment_len` bytes long.
    Packets {
        /// Their outer headers.
        meta: RxMeta,
        /// Length of each packet but the last.
        segment_len: usize,
    },
    /// A socket left this address: the receiver attaches a new steering program.
    Reattach(IpAddr),
}

/// The outcome of sending a message to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
enum Delivery {
    /// The message is in its socket, or queued for it.
    Done,
    /// The slot has no process.
    Gone,
    /// The socket is full.
    Full,
}

impl Forwarded {
    fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[..4].copy_from_slice(&MAGIC);
        match self {
            Forwarded::Packets { meta, segment_len } => {
                (b[4], b[5], b[6]) = (KIND_PACKETS, meta.tos, meta.ttl);
                b[8..10].copy_from_slice(&meta.sport.to_be_bytes());
                b[10..12].copy_from_slice(&(segment_len as u16).to_be_bytes());
                b[12..28].copy_from_slice(&meta.sgid.0);
                b[28..].copy_from_slice(&meta.dgid.0);
            }
            Forwarded::Reattach(addr) => {
                b[4] = KIND_REATTACH;
                b[28..].copy_from_slice(&Gid::from_ip(addr).0);
            }
        }
        b
    }

    /// Reads the header of a message; `None` if it is not one of ours.
    pub(super) fn parse(message: &[u8]) -> Option<Forwarded> {
        let b: &[u8; HEADER_LEN] = message.first_chunk()?;
        let gid = |at: usize| b[at..at + 16].try_into().ok().map(Gid);
        let half = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        match (b[..4] == MAGIC, b[4]) {
            (true, KIND_PACKETS) if half(10) > 0 => {
                let meta = RxMeta { sgid: gid(12)?, dgid: gid(28)?, sport: half(8), tos: b[5], ttl: b[6] };
                Some(Forwarded::Packets { meta, segment_len: half(10).into() })
            }
            (true, KIND_REATTACH) => Some(Forwarded::Reattach(gid(28)?.to_ip())),
            _ => None,
        }
    }
}

impl Forwarded {
    /// The number of packets in a message.
    fn packets_in(message: &[u8]) -> u64 {
        match Forwarded::parse(message) {
            Some(Forwarded::Packets { segment_len, .. }) => {
                (message.len() - HEADER_LEN).div_ceil(segment_len) as u64
            }
            Some(Forwarded::Reattach(_)) | None => 0,
        }
    }
}

/// The slot that owns a queue pair number; `None` for QP1 and the multicast QPN, which every process has.
pub(super) fn owner_of(qpn: Qpn) -> Option<u8> {
    match (qpn.value() >> 16) as u8 {
        0 | 0xff => None,
        slot => Some(slot),
    }
}

/// This process's part of a shared port.
#[derive(Debug)]
pub struct SharedPort {
    socket: UnixDatagram,
    /// Socket addresses by slot, cached: sending a message must not allocate.
    peers: Box<[OnceLock<SocketAddr>]>,
    outbox: Mutex<Outbox>,
    /// When the messages of the outbox are sent again; [`NEVER`] while it is empty.
    retry_at_ns: AtomicU64,
    counters: Arc<RunningCounters>,
    /// The last field, so that the slot is freed after the socket is closed.
    registry: Arc<Registry>,
}

/// Messages for full sockets. The kernel queues only ten datagrams per Unix socket; a process that is descheduled for a moment
/// can receive more than that.
#[derive(Debug, Default)]
struct Outbox {
    scratch: Vec<u8>,
    waiting: VecDeque<(u8, Vec<u8>)>,
    waiting_bytes: usize,
}

impl SharedPort {
    /// Opens the socket of this process's slot. A socket file in its place is left over from a dead owner of the slot.
    pub(super) fn open(registry: Arc<Registry>, counters: Arc<RunningCounters>) -> io::Result<SharedPort> {
        let path = registry.socket_path(registry.slot());
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let socket = UnixDatagram::bind(&path)?;
        socket.set_nonblocking(true)?;
        let peers: Box<[OnceLock<SocketAddr>]> = (0..=u8::MAX).map(|_| OnceLock::new()).collect();
        // Cache this address in advance: a poller may wake its own process, and polling must not allocate.
        let _ = peers[usize::from(registry.slot())].set(SocketAddr::from_pathname(&path)?);
        let (outbox, retry_at_ns) = (Mutex::default(), AtomicU64::new(NEVER));
        Ok(SharedPort { socket, peers, outbox, retry_at_ns, counters, registry })
    }

    /// The slot of this process: the high eight bits of all its queue pair numbers.
    pub fn slot(&self) -> u8 {
        self.registry.slot()
    }

    /// The registry of the host's processes.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Wakes the background thread of the process in `slot`: the descriptors of its link become readable. A full socket has
    /// the same effect.
    pub fn wake(&self, slot: u8) {
        add(&self.counters.local_bells, 1);
        let _ = self.deliver(slot, &[]);
    }

    /// Forwards a received packet to the process in `slot`. The ICRC of the copy is zero: receivers of forwarded packets do
    /// not verify it again.
    pub fn forward(&self, slot: u8, packet: &RxPacket<'_>) {
        let &RxPacket { arrival, sport, bytes } = packet;
        let Arrival { sgid, dgid, traffic_class: tos, hop_limit: ttl, .. } = *arrival;
        let whole = [bytes, &[0; ICRC_LEN]].concat();
        self.forward_run(slot, RxMeta { sgid, dgid, sport, tos, ttl }, whole.len(), &whole);
    }

    /// Forwards verified packets of one flow to the process in `slot`. All but the last are `segment_len` bytes long.
    pub(super) fn forward_run(&self, slot: u8, meta: RxMeta, segment_len: usize, packets: &[u8]) {
        let message = Forwarded::Packets { meta, segment_len };
        let fits = packets.len() <= MAX_RUN_LEN;
        let delivery = if fits { self.send(slot, message, packets) } else { Delivery::Full };
        let done = delivery == Delivery::Done;
        let counter = if done { &self.counters.forwarded_out } else { &self.counters.forward_errors };
        add(counter, packets.len().div_ceil(segment_len) as u64);
    }

    /// Requests that the process in `slot` attaches a new steering program for an address that this process left.
    pub(super) fn request_reattach(&self, slot: u8, addr: IpAddr) {
        // A lost request does no harm: the next misrouted packet has the same effect.
        let _ = self.send(slot, Forwarded::Reattach(addr), &[]);
    }

    /// Sends a message and the packets that belong to it. Packets that find a full socket are queued and count as
    /// [`Delivery::Done`]; the caller must call [`Self::retry`] by [`Self::deadline`].
    fn send(&self, slot: u8, message: Forwarded, packets: &[u8]) -> Delivery {
        let mut outbox = self.outbox.lock();
        outbox.scratch.clear();
        outbox.scratch.extend_from_slice(&message.to_bytes());
        outbox.scratch.extend_from_slice(packets);
        // Packets of one flow keep their order.
        let is_behind = outbox.waiting.iter().any(|(to, _)| *to == slot);
        let delivery = if is_behind { Delivery::Full } else { self.deliver(slot, &outbox.scratch) };
        let is_queueable = matches!(message, Forwarded::Packets { .. });
        if delivery == Delivery::Full
            && is_queueable
            && outbox.waiting_bytes + outbox.scratch.len() <= MAX_WAITING_BYTES
        {
            let message = outbox.scratch.clone();
            outbox.waiting_bytes += message.len();
            outbox.waiting.push_back((slot, message));
            self.retry_at_ns.fetch_min(now().0 + RETRY_NS, Relaxed);
            return Delivery::Done;
        }
        delivery
    }

    /// When [`Self::retry`] has work.
    pub(super) fn deadline(&self) -> Option<Time> {
        let at = self.retry_at_ns.load(Relaxed);
        (at != NEVER).then_some(Time(at))
    }

    /// Sends the queued messages again, if it is time. Counts the packets whose process is gone.
    pub(super) fn retry(&self) {
        if self.retry_at_ns.load(Relaxed) > now().0 {
            return;
        }
        let mut outbox = self.outbox.lock();
        let mut full = [false; 256];
        let waiting = std::mem::take(&mut outbox.waiting);
        for (slot, message) in waiting {
            let is_full = &mut full[usize::from(slot)];
            let delivery = if *is_full { Delivery::Full } else { self.deliver(slot, &message) };
            match delivery {
                Delivery::Full => {
                    *is_full = true;
                    outbox.waiting.push_back((slot, message));
                }
                Delivery::Done => outbox.waiting_bytes -= message.len(),
                Delivery::Gone => {
                    outbox.waiting_bytes -= message.len();
                    add(&self.counters.forward_errors, Forwarded::packets_in(&message));
                }
            }
        }
        let next = if outbox.waiting.is_empty() { NEVER } else { now().0 + RETRY_NS };
        self.retry_at_ns.store(next, Relaxed);
    }

    /// Sends the queued messages for a limited time: the link is about to close.
    pub(super) fn drain(&self) {
        let start = Instant::now();
        while let Some(at) = self.deadline()
            && start.elapsed() < LAST_PATIENCE
        {
            std::thread::sleep(Duration::from_nanos(at.0.saturating_sub(now().0)));
            self.retry();
        }
    }

    fn deliver(&self, slot: u8, message: &[u8]) -> Delivery {
        let peer = &self.peers[usize::from(slot)];
        if peer.get().is_none() {
            let Ok(address) = SocketAddr::from_pathname(self.registry.socket_path(slot)) else {
                return Delivery::Gone;
            };
            let _ = peer.set(address);
        }
        let Some(peer) = peer.get() else { return Delivery::Gone };
        match self.socket.send_to_addr(message, peer) {
            Ok(_) => Delivery::Done,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Delivery::Gone
            }
            Err(_) => Delivery::Full,
        }
    }
}

impl AsRawFd for SharedPort {
    /// The socket that other processes forward to.
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for SharedPort {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.registry.socket_path(self.slot()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_gets_everything_in_order() {
        let base = std::env::temp_dir().join(format!("ferroce-test-{}-forward", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let [sender, sleeper] = [(); 2]
            .map(|()| SharedPort::open(Arc::new(Registry::open(&base).unwrap()), Arc::default()).unwrap());
        let meta = RxMeta { sgid: Gid([1; 16]), dgid: Gid([2; 16]), sport: 0xC001, tos: 3, ttl: 4 };
        for number in 0..100_u32 {
            sender.forward_run(sleeper.slot(), meta, 4, &number.to_be_bytes());
        }
        assert!(sender.deadline().is_some(), "the kernel has no room for a hundred");
        let mut buffer = [0; 64];
        for number in 0..100_u32 {
            let len = loop {
                match sleeper.socket.recv(&mut buffer) {
                    Ok(len) => break len,
                    Err(_) => sender.retry(),
                }
            };
            assert_eq!(buffer[HEADER_LEN..len], number.to_be_bytes());
        }
        sender.drain();
        assert_eq!(sender.deadline(), None);
        let counters = sender.counters.snapshot();
        assert_eq!((counters.forwarded_out, counters.forward_errors), (100, 0));
        drop((sender, sleeper));
        let _ = std::fs::remove_dir_all(base);
    }

    #[test]
    fn every_packet_for_a_process_that_is_gone_counts() {
        let base = std::env::temp_dir().join(format!("ferroce-test-{}-gone", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let [sender, sleeper] = [(); 2]
            .map(|()| SharedPort::open(Arc::new(Registry::open(&base).unwrap()), Arc::default()).unwrap());
        let meta = RxMeta { sgid: Gid([1; 16]), dgid: Gid([2; 16]), sport: 0xC001, tos: 3, ttl: 4 };
        while sender.deadline().is_none() {
            sender.forward_run(sleeper.slot(), meta, 4, b"one two 3");
        }
        drop(sleeper);
        while sender.deadline().is_some() {
            sender.retry();
        }
        assert_eq!(sender.counters.snapshot().forward_errors, 3, "one run of three packets was queued");
        drop(sender);
        let _ = std::fs::remove_dir_all(base);
    }

    #[test]
    fn special_queue_pairs_belong_to_everybody() {
        assert_eq!(owner_of(Qpn::GSI), None);
        assert_eq!(owner_of(Qpn::MULTICAST), None);
        assert_eq!(owner_of(Qpn::new(0x07_1234)), Some(7));
    }

    #[test]
    fn messages_come_back() {
        let meta = RxMeta { sgid: Gid([1; 16]), dgid: Gid([2; 16]), sport: 0xC001, tos: 3, ttl: 4 };
        for message in [
            Forwarded::Packets { meta, segment_len: 4116 },
            Forwarded::Reattach("127.0.0.5".parse().unwrap()),
            Forwarded::Reattach("::".parse().unwrap()),
        ] {
            assert_eq!(Forwarded::parse(&message.to_bytes()), Some(message));
        }
        assert_eq!(Forwarded::parse(&[0; HEADER_LEN]), None);
        assert_eq!(Forwarded::parse(b"fwd1"), None);
        let endless = Forwarded::Packets { meta, segment_len: 0 };
        assert_eq!(Forwarded::parse(&endless.to_bytes()), None);
    }
}
