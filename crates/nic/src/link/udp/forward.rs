//! Packets that reached the wrong process go to the right one, over a Unix datagram socket per slot.
//!
//! Steering (see `steer`) is only as good as our knowledge of the kernel's order, and that is stale for a moment after
//! every join, leave and death. This detour makes the staleness harmless. The sockets live in a directory that only this
//! user may enter, so what arrives here was verified by another process of ours.

use crate::link::batch::{RX_BUFFER_LEN, RxMeta};
use crate::link::clock::now;
use crate::lock::Mutex;
use crate::registry::Registry;
use ferroce_proto::{Gid, Time};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MAGIC: [u8; 4] = *b"fwd1";
const KIND_PACKETS: u8 = 1;
const KIND_REATTACH: u8 = 2;

const NEVER: u64 = u64::MAX;
/// Time until a message that found no room is tried again.
const RETRY_NS: u64 = 200_000;
/// Most bytes that wait for other processes; beyond it packets are lost, as on any wire.
const MAX_WAITING_BYTES: usize = 8 << 20;
/// How long a link that closes waits for others to take their packets.
const LAST_PATIENCE: Duration = Duration::from_millis(200);

/// Bytes in front of the packets.
pub(super) const HEADER_LEN: usize = 44;
/// Most bytes of packets in one message, so that header and packets fit the buffer of the receiver.
pub(super) const MAX_RUN_LEN: usize = RX_BUFFER_LEN - HEADER_LEN;

/// What one process tells another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forwarded {
    /// Packets with their ICRCs, verified, all but the last `segment_len` bytes long; they follow the header.
    Packets {
        /// What the outer headers said.
        meta: RxMeta,
        /// Length of each packet but the last.
        segment_len: usize,
    },
    /// A socket left this address; steer anew.
    Reattach(IpAddr),
}

/// What became of a message to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handover {
    /// It has it.
    Done,
    /// There is no such process.
    Gone,
    /// It does not keep up.
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

/// This process's end of the detour.
#[derive(Debug)]
pub(super) struct Forwarder {
    socket: UnixDatagram,
    /// Where the others listen, by slot: nothing is allocated for a message, since programs rely on that.
    others: Box<[OnceLock<SocketAddr>]>,
    outbox: Mutex<Outbox>,
    /// When the messages of the outbox are tried again; [`NEVER`] while there are none.
    retry_at_ns: AtomicU64,
}

/// What could not be handed over yet. The kernel lets ten datagrams wait at a socket, and a process that does not run for
/// a moment has more coming.
#[derive(Debug, Default)]
struct Outbox {
    scratch: Vec<u8>,
    waiting: VecDeque<(u8, Vec<u8>)>,
    waiting_bytes: usize,
}

impl Forwarder {
    /// Listens for what others forward to this slot. The slot is ours, so a socket file in our way is a dead owner's.
    pub(super) fn open(registry: &Registry) -> io::Result<Forwarder> {
        let path = registry.socket_path(registry.slot());
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let socket = UnixDatagram::bind(&path)?;
        socket.set_nonblocking(true)?;
        let others: Box<[OnceLock<SocketAddr>]> = (0..=u8::MAX).map(|_| OnceLock::new()).collect();
        // A bell for ourselves is hung again in the middle of a poll.
        let _ = others[usize::from(registry.slot())].set(SocketAddr::from_pathname(&path)?);
        Ok(Forwarder { socket, others, outbox: Mutex::default(), retry_at_ns: AtomicU64::new(NEVER) })
    }

    /// Hands a message, and the packets that belong to it, to the process in `slot`. Packets that it has no room for are
    /// kept and count as done; the caller sees to it that [`Self::retry`] is called by [`Self::deadline`].
    pub(super) fn hand_over(
        &self,
        registry: &Registry,
        slot: u8,
        message: Forwarded,
        packets: &[u8],
    ) -> Handover {
        let mut outbox = self.outbox.lock();
        outbox.scratch.clear();
        outbox.scratch.extend_from_slice(&message.to_bytes());
        outbox.scratch.extend_from_slice(packets);
        // Packets of one flow keep their order.
        let is_behind = outbox.waiting.iter().any(|(to, _)| *to == slot);
        let handover = if is_behind { Handover::Full } else { self.send(registry, slot, &outbox.scratch) };
        // A notice to steer anew may be lost: the next detour says the same.
        let keeps = matches!(message, Forwarded::Packets { .. });
        if handover == Handover::Full
            && keeps
            && outbox.waiting_bytes + outbox.scratch.len() <= MAX_WAITING_BYTES
        {
            let message = outbox.scratch.clone();
            outbox.waiting_bytes += message.len();
            outbox.waiting.push_back((slot, message));
            self.retry_at_ns.fetch_min(now().0 + RETRY_NS, Relaxed);
            return Handover::Done;
        }
        handover
    }

    /// Wakes the process in `slot`. A socket that is full wakes it just as well.
    pub(super) fn wake(&self, registry: &Registry, slot: u8) {
        self.send(registry, slot, &[]);
    }

    /// When [`Self::retry`] has work.
    pub(super) fn deadline(&self) -> Option<Time> {
        let at = self.retry_at_ns.load(Relaxed);
        (at != NEVER).then_some(Time(at))
    }

    /// Tries again what had no room, if it is time. Returns how many messages were lost since their process is gone.
    pub(super) fn retry(&self, registry: &Registry) -> u64 {
        if self.retry_at_ns.load(Relaxed) > now().0 {
            return 0;
        }
        let mut outbox = self.outbox.lock();
        let mut lost = 0;
        let mut full = [false; 256];
        let waiting = std::mem::take(&mut outbox.waiting);
        for (slot, message) in waiting {
            let is_full = &mut full[usize::from(slot)];
            let handover = if *is_full { Handover::Full } else { self.send(registry, slot, &message) };
            match handover {
                Handover::Full => {
                    *is_full = true;
                    outbox.waiting.push_back((slot, message));
                }
                Handover::Done => outbox.waiting_bytes -= message.len(),
                Handover::Gone => {
                    outbox.waiting_bytes -= message.len();
                    lost += 1;
                }
            }
        }
        let next = if outbox.waiting.is_empty() { NEVER } else { now().0 + RETRY_NS };
        self.retry_at_ns.store(next, Relaxed);
        lost
    }

    /// Hands over what is left, as far as the others take it in a moment: we are about to go.
    pub(super) fn drain(&self, registry: &Registry) {
        let start = Instant::now();
        while let Some(at) = self.deadline()
            && start.elapsed() < LAST_PATIENCE
        {
            std::thread::sleep(Duration::from_nanos(at.0.saturating_sub(now().0)));
            self.retry(registry);
        }
    }

    fn send(&self, registry: &Registry, slot: u8, message: &[u8]) -> Handover {
        let other = &self.others[usize::from(slot)];
        if other.get().is_none() {
            let Ok(address) = SocketAddr::from_pathname(registry.socket_path(slot)) else {
                return Handover::Gone;
            };
            let _ = other.set(address);
        }
        let Some(other) = other.get() else { return Handover::Gone };
        match self.socket.send_to_addr(message, other) {
            Ok(_) => Handover::Done,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Handover::Gone
            }
            Err(_) => Handover::Full,
        }
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_gets_everything_in_order() {
        let base = std::env::temp_dir().join(format!("ferroce-test-{}-forward", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let [here, there] = [(); 2].map(|()| Registry::open(&base).unwrap());
        let [sender, sleeper] = [&here, &there].map(|r| Forwarder::open(r).unwrap());
        let meta = RxMeta { sgid: Gid([1; 16]), dgid: Gid([2; 16]), sport: 0xC001, tos: 3, ttl: 4 };
        let message = Forwarded::Packets { meta, segment_len: 4 };
        for number in 0..100_u32 {
            let handover = sender.hand_over(&here, there.slot(), message, &number.to_be_bytes());
            assert_eq!(handover, Handover::Done);
        }
        assert!(sender.deadline().is_some(), "the kernel has no room for a hundred");
        let mut buffer = [0; 64];
        for number in 0..100_u32 {
            let len = loop {
                match sleeper.socket.recv(&mut buffer) {
                    Ok(len) => break len,
                    Err(_) => assert_eq!(sender.retry(&here), 0),
                }
            };
            assert_eq!(buffer[HEADER_LEN..len], number.to_be_bytes());
        }
        sender.drain(&here);
        assert_eq!(sender.deadline(), None);
        drop((here, there));
        let _ = std::fs::remove_dir_all(base);
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
