//! Packets that found no room in a ring, in their order.
//!
//! All its memory is asked for at once, when two processes meet: a full ring is met while a program sends, and programs
//! rely on nothing being allocated then. (perftest's alarm handler reads a file; were it to interrupt an allocation of
//! ours, it would wait for itself.) Pages that no packet ever waited in are never touched.

use super::mapping::Mapping;
use super::ring::Piece;
use crate::link::RxMeta;
use std::collections::VecDeque;
use std::io;

/// Most bytes that wait for one neighbour; beyond it packets are lost, as on any wire.
const MAX_BYTES: usize = 16 << 20;
/// Most packets that wait for one neighbour.
const MAX_PACKETS: usize = 1 << 14;

#[derive(Debug)]
pub(super) struct Backlog {
    bytes: Mapping,
    packets: VecDeque<Packet>,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    meta: RxMeta,
    at: usize,
    len: usize,
}

impl Backlog {
    pub(super) fn new() -> io::Result<Backlog> {
        Ok(Backlog { bytes: Mapping::private(MAX_BYTES)?, packets: VecDeque::with_capacity(MAX_PACKETS) })
    }

    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.packets.clear();
    }

    /// The packet that has waited longest. It stays until it is dropped.
    pub(super) fn first(&self) -> Option<(&RxMeta, Piece)> {
        let packet = self.packets.front()?;
        Some((&packet.meta, Piece { start: self.bytes.bytes_at(packet.at).as_ptr(), len: packet.len }))
    }

    /// Forgets the packet that has waited longest.
    pub(super) fn drop_first(&mut self) {
        self.packets.pop_front();
    }

    /// Keeps a packet of `len` bytes; false if there is no room even here.
    ///
    /// # Safety
    /// The pieces are readable and have `len` bytes together.
    pub(super) unsafe fn keep(
        &mut self,
        meta: &RxMeta,
        len: usize,
        pieces: impl Iterator<Item = Piece>,
    ) -> bool {
        let Some(at) = self.room_for(len) else { return false };
        let mut to = at;
        for piece in pieces {
            // SAFETY: the caller's promise.
            unsafe { self.bytes.write_raw(to, piece.start, piece.len) };
            to += piece.len;
        }
        debug_assert_eq!(to, at + len);
        self.packets.push_back(Packet { meta: *meta, at, len });
        true
    }

    /// Where `len` bytes in a row are free. An empty backlog begins at its beginning again, where pages were touched.
    fn room_for(&self, len: usize) -> Option<usize> {
        if self.packets.len() == MAX_PACKETS || len > MAX_BYTES {
            return None;
        }
        let (Some(first), Some(last)) = (self.packets.front(), self.packets.back()) else { return Some(0) };
        let end = last.at + last.len;
        if last.at >= first.at && end + len <= MAX_BYTES {
            return Some(end);
        }
        let begin = if last.at >= first.at { 0 } else { end };
        // Strictly less: what ends where the first begins would look as if nothing lay between.
        (begin + len < first.at).then_some(begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::Gid;

    fn meta(number: usize) -> RxMeta {
        RxMeta { sgid: Gid([1; 16]), dgid: Gid([2; 16]), sport: number as u16, tos: 4, ttl: 5 }
    }

    fn keep(backlog: &mut Backlog, number: usize, bytes: &[u8]) -> bool {
        let (first, rest) = bytes.split_at(bytes.len() / 3);
        let pieces = [first, rest].map(|part| Piece { start: part.as_ptr(), len: part.len() });
        // SAFETY: the pieces are parts of a slice.
        unsafe { backlog.keep(&meta(number), bytes.len(), pieces.into_iter()) }
    }

    #[test]
    fn packets_leave_in_order_and_whole_over_many_laps() {
        let mut backlog = Backlog::new().unwrap();
        let bytes_of = |number: usize| vec![number as u8; 1 + number * 7919 % 40_000];
        let (mut kept, mut left, mut full) = (0, 0, 0);
        while left < 5_000 {
            while kept < 5_000 && keep(&mut backlog, kept, &bytes_of(kept)) {
                kept += 1;
            }
            full += usize::from(kept < 5_000);
            for _ in 0..37 {
                let Some((found, piece)) = backlog.first() else { break };
                // SAFETY: a packet that lies in the backlog.
                let bytes = unsafe { std::slice::from_raw_parts(piece.start, piece.len) };
                assert_eq!((*found, bytes), (meta(left), &bytes_of(left)[..]));
                backlog.drop_first();
                left += 1;
            }
        }
        assert!(backlog.is_empty());
        assert!(full > 50, "it was full {full} times");
    }

    #[test]
    fn it_is_bounded_in_packets_and_bytes() {
        let mut backlog = Backlog::new().unwrap();
        let most = (0..).take_while(|&number| keep(&mut backlog, number, &[7])).count();
        assert_eq!((most, backlog.len()), (MAX_PACKETS, MAX_PACKETS));
        backlog.clear();
        assert!(keep(&mut backlog, 0, &vec![1; MAX_BYTES]));
        assert!(!keep(&mut backlog, 1, &[1]));
        assert!(!keep(&mut Backlog::new().unwrap(), 0, &vec![1; MAX_BYTES + 1]));
    }
}
