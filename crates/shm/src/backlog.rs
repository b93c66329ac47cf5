//! Queue of packets that did not fit into a full ring, in their order.
//!
//! All its memory is mapped when two processes open each other's segments. A ring becomes full while a program sends, and sending must not
//! allocate. (perftest's alarm handler reads a file. If it interrupted an allocation of ours, it would deadlock.) Pages that no packet used
//! stay untouched and take no memory.

use super::mapping::{MappedBytes, Mapping};
use super::ring::{META_LEN, Piece, RxMeta, meta_from_bytes, meta_to_bytes};
use std::io;

/// Most bytes that wait for one local peer. Further packets are lost, as on any wire. Large enough for a full send queue of unreliable messages
/// with the smallest MTU.
const MAX_BYTES: usize = 16 << 20;

/// Bytes in front of each packet: its length, and the fields of the outer headers.
const HEAD_LEN: usize = 4 + META_LEN;

/// Contiguous records from `head` to `tail`; or from `head` to `end` and then from the beginning to `tail`.
#[derive(Debug)]
pub(crate) struct Backlog {
    bytes: Mapping,
    head: usize,
    tail: usize,
    /// End of the records behind `head`, if further records are at the beginning.
    end: Option<usize>,
    packets: usize,
}

impl Backlog {
    pub(crate) fn new() -> io::Result<Backlog> {
        Ok(Backlog { bytes: Mapping::private(MAX_BYTES)?, head: 0, tail: 0, end: None, packets: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.packets
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Empties the backlog. It starts at offset 0 again, where pages were touched already.
    pub(crate) fn clear(&mut self) {
        (self.head, self.tail, self.end, self.packets) = (0, 0, None, 0);
    }

    fn first_len(&self) -> usize {
        let mut len = [0; 4];
        self.bytes.read(self.head, &mut len);
        u32::from_ne_bytes(len) as usize
    }

    /// The oldest packet. It stays until it is dropped.
    pub(crate) fn first(&self) -> Option<(RxMeta, Piece)> {
        if self.is_empty() {
            return None;
        }
        let mut meta = [0; META_LEN];
        self.bytes.read(self.head + 4, &mut meta);
        let start = self.bytes.bytes_at(self.head + HEAD_LEN).as_ptr();
        Some((meta_from_bytes(&meta), Piece { start, len: self.first_len() }))
    }

    /// Drops the oldest packet.
    pub(crate) fn drop_first(&mut self) {
        if self.packets <= 1 {
            return self.clear();
        }
        self.head += HEAD_LEN + self.first_len();
        self.packets -= 1;
        if self.end == Some(self.head) {
            (self.head, self.end) = (0, None);
        }
    }

    /// Appends a packet of `len` bytes. Returns whether it fit.
    ///
    /// # Safety
    /// The pieces are readable and have `len` bytes together.
    pub(crate) unsafe fn keep(
        &mut self,
        meta: &RxMeta,
        len: usize,
        pieces: impl Iterator<Item = Piece>,
    ) -> bool {
        let Some(at) = self.allocate(HEAD_LEN + len) else { return false };
        self.bytes.write(at, &(len as u32).to_ne_bytes());
        self.bytes.write(at + 4, &meta_to_bytes(meta));
        let mut to = at + HEAD_LEN;
        for piece in pieces {
            // SAFETY: the caller's promise.
            unsafe { self.bytes.write_raw(to, piece.start, piece.len) };
            to += piece.len;
        }
        debug_assert_eq!(to, at + HEAD_LEN + len);
        self.tail = to;
        self.packets += 1;
        true
    }

    /// The offset of `len` contiguous free bytes.
    fn allocate(&mut self, len: usize) -> Option<usize> {
        if self.end.is_some() {
            return (self.tail + len <= self.head).then_some(self.tail);
        }
        if self.tail + len <= MAX_BYTES {
            return Some(self.tail);
        }
        if len > self.head {
            return None;
        }
        self.end = Some(self.tail);
        Some(0)
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
                assert_eq!((found, bytes), (meta(left), &bytes_of(left)[..]));
                backlog.drop_first();
                left += 1;
            }
        }
        assert!(backlog.is_empty());
        assert!(full > 50, "it was full {full} times");
    }

    #[test]
    fn it_is_bounded() {
        let mut backlog = Backlog::new().unwrap();
        let most = (0..).take_while(|&number| keep(&mut backlog, number, &[7; 256])).count();
        assert_eq!((most, backlog.len()), (MAX_BYTES / (HEAD_LEN + 256), most));
        assert!(most > 128 * 256, "128 messages of 64 KiB with the smallest MTU");
        backlog.clear();
        assert!(keep(&mut backlog, 0, &vec![1; MAX_BYTES - HEAD_LEN]));
        assert!(!keep(&mut backlog, 1, &[1]));
        backlog.drop_first();
        assert!(!keep(&mut backlog, 0, &vec![1; MAX_BYTES]), "longer than all of it");
        assert!(backlog.is_empty());
    }
}
