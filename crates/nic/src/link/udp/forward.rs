//! Packets that reached the wrong process go to the right one, over a Unix datagram socket per slot.
//!
//! Steering (see `steer`) is only as good as our knowledge of the kernel's order, and that is stale for a moment after
//! every join, leave and death. This detour makes the staleness harmless. The sockets live in a directory that only this
//! user may enter, so what arrives here was verified by another process of ours.
//!
//! Such a socket holds ten messages, whatever its buffer. So what does not fit is held back here, up to a bound, and
//! tried again shortly: offers to QP1 from other hosts reach any process, and come in bursts.

use crate::link::batch::{RX_BUFFER_LEN, RxMeta};
use crate::registry::Registry;
use ferroce_proto::Gid;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const MAGIC: [u8; 4] = *b"fwd1";
const KIND_PACKETS: u8 = 1;
const KIND_REATTACH: u8 = 2;

/// Bytes in front of the packets.
pub(super) const HEADER_LEN: usize = 44;
/// Most bytes of packets in one message, so that header and packets fit the buffer of the receiver.
pub(super) const MAX_RUN_LEN: usize = RX_BUFFER_LEN - HEADER_LEN;

/// Most bytes that are held back.
const MAX_HELD_LEN: usize = 1 << 20;
/// When they are tried again.
pub(super) const RETRY_AFTER_NS: u64 = 200_000;

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
    /// It does not keep up; the message is tried again shortly.
    Held,
    /// It does not keep up, and too much is held back already.
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
    scratch: Mutex<Vec<u8>>,
    held: Mutex<Held>,
    /// Whether anything is held back, to be asked without the lock.
    has_held: AtomicBool,
}

/// Messages that did not fit, each with the slot it is for.
#[derive(Debug, Default)]
struct Held {
    messages: VecDeque<(u8, Vec<u8>)>,
    bytes: usize,
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
        let (scratch, held) = (Mutex::default(), Mutex::default());
        Ok(Forwarder { socket, scratch, held, has_held: AtomicBool::new(false) })
    }

    /// Hands a message, and the packets that belong to it, to the process in `slot`.
    pub(super) fn hand_over(
        &self,
        registry: &Registry,
        slot: u8,
        message: Forwarded,
        packets: &[u8],
    ) -> Handover {
        let mut scratch = self.scratch.lock();
        scratch.clear();
        scratch.extend_from_slice(&message.to_bytes());
        scratch.extend_from_slice(packets);
        // What is held back for the same process goes first.
        let outcome = match self.has_held.load(Relaxed) && self.holds_for(slot) {
            true => Handover::Full,
            false => self.try_send(registry, slot, &scratch),
        };
        match outcome {
            Handover::Full => self.hold(slot, &scratch),
            outcome => outcome,
        }
    }

    fn try_send(&self, registry: &Registry, slot: u8, message: &[u8]) -> Handover {
        match self.socket.send_to(message, registry.socket_path(slot)) {
            Ok(_) => Handover::Done,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Handover::Gone
            }
            Err(_) => Handover::Full,
        }
    }

    fn holds_for(&self, slot: u8) -> bool {
        self.held.lock().messages.iter().any(|(to, _)| *to == slot)
    }

    fn hold(&self, slot: u8, message: &[u8]) -> Handover {
        let mut held = self.held.lock();
        if held.bytes + message.len() > MAX_HELD_LEN {
            return Handover::Full;
        }
        held.bytes += message.len();
        held.messages.push_back((slot, message.to_vec()));
        self.has_held.store(true, Relaxed);
        Handover::Held
    }

    /// Tries what was held back, once round; says how many messages it got rid of, and how many of these in vain.
    #[cold]
    pub(super) fn retry(&self, registry: &Registry) -> (u64, u64) {
        let (mut sent, mut lost) = (0, 0);
        let mut held = self.held.lock();
        let mut full = SmallVec::<[u8; 8]>::new();
        for _ in 0..held.messages.len() {
            let Some((slot, message)) = held.messages.pop_front() else { break };
            let outcome =
                if full.contains(&slot) { Handover::Full } else { self.try_send(registry, slot, &message) };
            match outcome {
                Handover::Full | Handover::Held => {
                    full.push(slot);
                    held.messages.push_back((slot, message));
                    continue;
                }
                Handover::Done => sent += 1,
                Handover::Gone => lost += 1,
            }
            held.bytes -= message.len();
        }
        self.has_held.store(!held.messages.is_empty(), Relaxed);
        (sent, lost)
    }

    pub(super) fn has_held(&self) -> bool {
        self.has_held.load(Relaxed)
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
