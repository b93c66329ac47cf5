//! Packets from one process to another: a ring of bytes with one writer and one reader.
//!
//! A record consists of a length word, the fields of the outer headers unless they equal those of the previous record, and the packet. So a
//! short packet of a flow fits into one cache line. The length word behind the last record is zero. The writer writes the record, then the
//! zero behind it, then the record's own length word. So the reader polls one word only, and finds the packet right behind it.
//!
//! A short packet moves one cache line from writer to reader. The word of the line behind the next one is set to zero after the packet is
//! published, because that line must be fetched from the reader's cache, too. Positions only grow. The reader stores its position in its own
//! segment. The writer reads it there only when the ring seems full.
//!
//! The reader trusts nothing: the writer may have died in the middle of a record, or be a hostile program. An impossible length ends the ring.

use super::mapping::{FixedMapping, MappedBytes, Mapping};
use super::segment::RING_LEN;
use ferroce_os::memory::prefetch_for_write;
use ferroce_os::sync::{AtomicU64, Ordering};
use ferroce_proto::Gid;
use std::ptr::NonNull;

/// Bytes of the fields of the outer headers.
pub(crate) const META_LEN: usize = 36;
/// Bytes of the length word and the fields of the outer headers.
const HEAD_LEN: usize = 4 + META_LEN;
/// Bytes of the length word alone, padded.
const SHORT_HEAD_LEN: usize = 8;
/// Marks a record without outer headers: they equal those of the previous record.
const AS_BEFORE: u32 = 1 << 31;
/// Marks a record without a packet: the rest of the ring is skipped.
const SKIP: u32 = AS_BEFORE - 1;
/// Records begin at multiples of a cache line, so that a short one takes as few lines as possible.
const ALIGN: usize = 64;
/// Bytes of the longest record that [`Writer::push_short`] adds.
const MAX_SHORT: usize = 4 * ALIGN;
/// Distance in bytes from the next record to the prefetched cache lines.
const PREFETCH_AHEAD: u64 = 256;
/// Space for records up to this length is prefetched. For a longer one, the hardware prefetches during the copy.
const PREFETCHED_LEN: usize = 512;

/// The outer headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxMeta {
    /// Source address.
    pub sgid: Gid,
    /// Destination address.
    pub dgid: Gid,
    /// UDP source port.
    pub sport: u16,
    /// Traffic class.
    pub tos: u8,
    /// Hop limit.
    pub ttl: u8,
}

/// A piece of a packet, anywhere in memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The first byte.
    pub start: *const u8,
    /// Bytes.
    pub len: usize,
}

impl Piece {
    /// A slice. The caller keeps the slice alive as long as it uses the piece.
    #[inline]
    pub fn of(bytes: &[u8]) -> Piece {
        Piece { start: bytes.as_ptr(), len: bytes.len() }
    }
}

pub(crate) fn meta_to_bytes(meta: &RxMeta) -> [u8; META_LEN] {
    let mut bytes = [0; META_LEN];
    (bytes[0], bytes[1]) = (meta.tos, meta.ttl);
    bytes[2..4].copy_from_slice(&meta.sport.to_ne_bytes());
    bytes[4..20].copy_from_slice(&meta.sgid.0);
    bytes[20..36].copy_from_slice(&meta.dgid.0);
    bytes
}

pub(crate) fn meta_from_bytes(bytes: &[u8; META_LEN]) -> RxMeta {
    let gid = |from: usize| {
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[from..from + 16]);
        Gid(gid)
    };
    let sport = u16::from_ne_bytes([bytes[2], bytes[3]]);
    RxMeta { sgid: gid(4), dgid: gid(20), sport, tos: bytes[0], ttl: bytes[1] }
}

#[inline]
fn record_len(head_len: usize, packet_len: usize) -> usize {
    (head_len + packet_len).next_multiple_of(ALIGN)
}

/// The offset of a line. A position is a multiple of a line; because the compiler knows it too, an access to the line's first word needs no check.
#[inline]
fn offset_of(position: u64) -> usize {
    debug_assert!(position.is_multiple_of(ALIGN as u64));
    (position % RING_LEN as u64) as usize / ALIGN * ALIGN
}

/// The writing end. A lock of its owner guards it.
#[derive(Debug)]
pub(crate) struct Writer {
    memory: FixedMapping<RING_LEN>,
    position: u64,
    /// The position of the reader when the writer last read it.
    consumed: u64,
    /// The position at which the current reader began.
    start: u64,
    /// The outer headers of the previous record.
    before: Option<RxMeta>,
    /// The first words of all lines from `position` up to here are zero.
    clear_to: u64,
}

impl Writer {
    /// A ring without a reader. Positions begin at a random lap, so that a position from an earlier ring is never valid.
    pub(crate) fn new(memory: Mapping) -> Writer {
        let position = RING_LEN as u64 * (1 + u64::from(ferroce_os::random::number::<u32>()));
        Writer {
            memory: memory.fixed(),
            position,
            consumed: position,
            start: position,
            before: None,
            clear_to: position,
        }
    }

    /// Drops all records and begins again for another reader. Returns the position at which that reader begins.
    pub(crate) fn restart(&mut self) -> u64 {
        self.memory.word(offset_of(self.position)).store(0, Ordering::Relaxed);
        (self.consumed, self.start, self.before) = (self.position, self.position, None);
        self.clear_to = self.position + ALIGN as u64;
        self.position
    }

    /// Whether the current reader will read everything: nothing was written for it, or it has opened the ring.
    pub(crate) fn is_settled(&self, consumed: &AtomicU64) -> bool {
        self.position == self.start
            || (self.start..=self.position).contains(&consumed.load(Ordering::Acquire))
    }

    /// Whether the current reader has released everything that was written for it.
    pub(crate) fn is_read(&self, consumed: &AtomicU64) -> bool {
        self.position == self.start || self.position == consumed.load(Ordering::Acquire)
    }

    /// Whether `len` more bytes and the zero word behind them fit.
    fn has_space(&mut self, len: usize, consumed: &AtomicU64) -> bool {
        let fits = |consumed: u64| self.position + (len + ALIGN) as u64 - consumed <= RING_LEN as u64;
        if fits(self.consumed) {
            return true;
        }
        let read = consumed.load(Ordering::Acquire);
        // Zero: the reader has not begun. Other values outside of this range are from a hostile reader.
        if (self.consumed..=self.position).contains(&read) {
            self.consumed = read;
        }
        fits(self.consumed)
    }

    /// Adds a packet of `len` bytes. Returns whether it fit.
    ///
    /// # Safety
    /// The pieces are readable and have `len` bytes together.
    pub(crate) unsafe fn push(
        &mut self,
        meta: &RxMeta,
        len: usize,
        pieces: impl Iterator<Item = Piece>,
        consumed: &AtomicU64,
    ) -> bool {
        let is_as_before = self.before == Some(*meta);
        let (head_len, flag) = if is_as_before { (SHORT_HEAD_LEN, AS_BEFORE) } else { (HEAD_LEN, 0) };
        let whole = record_len(head_len, len);
        let at = offset_of(self.position);
        let skipped = if at + whole > RING_LEN { RING_LEN - at } else { 0 };
        if whole > RING_LEN / 2 || !self.has_space(skipped + whole, consumed) {
            return false;
        }
        let first = at;
        let at = if skipped > 0 { 0 } else { at };
        if !is_as_before {
            self.write_head(at, meta);
            self.before = Some(*meta);
        }
        let mut to = at + head_len;
        for piece in pieces {
            debug_assert!(to + piece.len <= at + head_len + len);
            // SAFETY: the caller guarantees the piece; `write_raw` checks the destination.
            unsafe { self.memory.write_raw(to, piece.start, piece.len) };
            to += piece.len;
        }
        let next = self.position + (skipped + whole) as u64;
        if next >= self.clear_to {
            self.memory.word(offset_of(next)).store(0, Ordering::Relaxed);
            self.clear_to = next + ALIGN as u64;
        }
        if skipped > 0 {
            self.memory.word(at).store(len as u32 | flag, Ordering::Relaxed);
            self.memory.word(first).store(SKIP, Ordering::Release);
        } else {
            self.memory.word(at).store(len as u32 | flag, Ordering::Release);
        }
        self.position = next;
        if whole <= PREFETCHED_LEN {
            self.clear_ahead(whole);
            self.prefetch_ahead(whole);
        }
        true
    }

    /// Adds a short packet of headers and payload, if its outer headers are those of the previous record and the word behind it is already zero.
    /// Otherwise returns `false`, and the caller uses [`Self::push`].
    ///
    /// # Safety
    /// The payload is readable.
    #[inline(always)]
    pub(crate) unsafe fn push_short(&mut self, meta: &RxMeta, head: &[u8], payload: Piece) -> bool {
        let whole = record_len(SHORT_HEAD_LEN, head.len() + payload.len);
        // SAFETY: the caller's promise. A constant length of one line, the most frequent one, saves instructions.
        unsafe {
            if whole <= ALIGN {
                self.push_lines(ALIGN, meta, head, payload)
            } else {
                whole <= MAX_SHORT && self.push_further_lines(whole, meta, head, payload)
            }
        }
    }

    /// The same for a record of several lines.
    #[inline(never)] // a copy in each sender would take registers from the record of one line
    unsafe fn push_further_lines(
        &mut self,
        whole: usize,
        meta: &RxMeta,
        head: &[u8],
        payload: Piece,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.push_lines(whole, meta, head, payload) }
    }

    /// The same for a record of `whole` bytes.
    #[inline(always)]
    unsafe fn push_lines(&mut self, whole: usize, meta: &RxMeta, head: &[u8], payload: Piece) -> bool {
        let (at, next) = (offset_of(self.position), self.position + whole as u64);
        // The reader has released the lines whose words are zero.
        if self.clear_to < next + ALIGN as u64 || at + whole > RING_LEN || self.before != Some(*meta) {
            return false;
        }
        let unpadded = head.len() + payload.len;
        let (start, len) = (at + SHORT_HEAD_LEN, unpadded.next_multiple_of(4));
        if unpadded < len {
            self.memory.word(start + len - 4).store(0, Ordering::Relaxed);
        }
        self.memory.write(start, head);
        // SAFETY: the caller guarantees the payload; `write_raw` checks the destination.
        unsafe { self.memory.write_raw(start + head.len(), payload.start, payload.len) };
        self.memory.word(at).store(len as u32 | AS_BEFORE, Ordering::Release);
        self.position = next;
        self.clear_ahead(whole);
        self.prefetch_ahead(whole);
        true
    }

    /// Sets the words at which a next record of the same length would end to zero, as far as the reader has released their lines.
    #[inline(always)]
    fn clear_ahead(&mut self, len: usize) {
        let (line, wanted) = (ALIGN as u64, self.position + (len + ALIGN) as u64);
        while self.clear_to < wanted && self.clear_to + line - self.consumed <= RING_LEN as u64 {
            self.memory.word(offset_of(self.clear_to)).store(0, Ordering::Relaxed);
            self.clear_to += line;
        }
    }

    /// Prefetches as many bytes as the last record took, some records ahead. The reader's cache has these lines from the previous lap. Fetching
    /// one takes as long as sending a short packet, and every atomic read-modify-write instruction of the sender waits for it.
    #[inline(always)]
    fn prefetch_ahead(&self, len: usize) {
        let mut position = self.position + PREFETCH_AHEAD;
        let end = position + len as u64;
        loop {
            prefetch_for_write(self.memory.bytes_at(offset_of(position)).as_ptr().addr());
            position += ALIGN as u64;
            if position >= end {
                break;
            }
        }
    }

    /// The address of the next record.
    #[inline]
    pub(crate) fn next_line(&self) -> usize {
        self.memory.bytes_at(offset_of(self.position)).as_ptr() as usize
    }

    fn write_head(&self, at: usize, meta: &RxMeta) {
        self.memory.write(at + 4, &meta_to_bytes(meta));
    }
}

/// The state of the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is no record yet.
    Nothing,
    /// A packet of `len` bytes, behind a head of `head_len` bytes.
    Packet { len: usize, head_len: usize },
    /// An invalid record, which only a hostile writer writes.
    Nonsense,
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Reader {
    memory: FixedMapping<RING_LEN>,
    position: u64,
    /// The outer headers of the previous record.
    before: Option<RxMeta>,
}

impl Reader {
    /// Reads from `position` on. Limits the position, so that a hostile writer cannot make it overflow.
    pub(crate) fn new(memory: Mapping, position: u64) -> Reader {
        let position = (position % (1 << 62)).next_multiple_of(ALIGN as u64);
        Reader { memory: memory.fixed(), position, before: None }
    }

    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Examines the next record without taking it. A packet longer than `most` is [`Found::Nonsense`].
    #[inline]
    pub(crate) fn look(&mut self, most: usize) -> Found {
        let at = offset_of(self.position);
        match self.memory.word(at).load(Ordering::Acquire) {
            0 => Found::Nothing,
            SKIP if at > 0 => {
                self.position += (RING_LEN - at) as u64;
                self.look(most)
            }
            SKIP => Found::Nonsense,
            word => self.examine(at, word, most),
        }
    }

    #[inline]
    fn examine(&self, at: usize, word: u32, most: usize) -> Found {
        let is_as_before = word & AS_BEFORE != 0;
        let len = (word & !AS_BEFORE) as usize;
        let head_len = if is_as_before { SHORT_HEAD_LEN } else { HEAD_LEN };
        let is_nonsense = len > most
            || at + record_len(head_len, len) > RING_LEN
            || (is_as_before && self.before.is_none());
        if is_nonsense { Found::Nonsense } else { Found::Packet { len, head_len } }
    }

    /// Moves behind the packet that [`Self::look`] found. Returns its address and its outer headers. Its bytes stay in the ring until the new
    /// position is stored for the writer.
    #[inline]
    pub(crate) fn take(&mut self, len: usize, head_len: usize) -> (NonNull<u8>, &RxMeta) {
        let at = offset_of(self.position);
        self.position += record_len(head_len, len) as u64;
        let start = self.memory.bytes_at((at + head_len).min(RING_LEN - len));
        if head_len == HEAD_LEN {
            self.before = None;
        }
        (start, self.before.get_or_insert_with(|| read_meta(&self.memory, at)))
    }
}

/// Reads the fields of the outer headers from a record.
#[cold]
fn read_meta(memory: &FixedMapping<RING_LEN>, at: usize) -> RxMeta {
    let mut bytes = [0; META_LEN];
    memory.read(at + 4, &mut bytes);
    meta_from_bytes(&bytes)
}

#[cfg(any(fuzzing, all(test, not(loom))))]
pub(crate) mod hostile;
#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn memory() -> (File, [Mapping; 2]) {
        let path = std::env::temp_dir().join(format!(
            "ferroce-ring-{}-{:x}",
            std::process::id(),
            ferroce_os::random::number::<u64>()
        ));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(RING_LEN as u64).unwrap();
        std::fs::remove_file(path).unwrap();
        let map = |writable| Mapping::new(&file, 0, RING_LEN, writable).unwrap();
        let both = [map(true), map(false)];
        (file, both)
    }

    const META: RxMeta = RxMeta { sgid: Gid([1; 16]), dgid: Gid([2; 16]), sport: 3, tos: 4, ttl: 5 };

    /// Three flows that alternate after five packets each.
    fn meta_of(number: usize) -> RxMeta {
        RxMeta { sport: (number / 5 % 3) as u16, ..META }
    }

    fn push(writer: &mut Writer, bytes: &[u8], consumed: &AtomicU64) -> bool {
        push_as(writer, &META, bytes, consumed)
    }

    fn push_as(writer: &mut Writer, meta: &RxMeta, bytes: &[u8], consumed: &AtomicU64) -> bool {
        let (first, rest) = bytes.split_at(bytes.len() / 3);
        let pieces = [first, rest].map(|part| Piece { start: part.as_ptr(), len: part.len() });
        // SAFETY: the pieces are parts of a slice.
        unsafe { writer.push(meta, bytes.len(), pieces.into_iter(), consumed) }
    }

    #[test]
    fn everything_arrives_in_order_over_many_laps() {
        let (_file, [ours, theirs]) = memory();
        let consumed = AtomicU64::new(0);
        let mut writer = Writer::new(ours);
        let mut reader = Reader::new(theirs, writer.restart());
        let len_of = |number: usize| 12 + number * 7919 % 9000;
        let (mut sent, mut received, mut full) = (0, 0, 0);
        while received < 3000 {
            while sent < 3000
                && push_as(&mut writer, &meta_of(sent), &vec![sent as u8; len_of(sent)], &consumed)
            {
                sent += 1;
            }
            full += usize::from(sent < 3000);
            // Reads few packets at a time, so that the ring becomes full at every offset.
            for _ in 0..17 {
                let Found::Packet { len, head_len } = reader.look(10_000) else { break };
                let (start, meta) = reader.take(len, head_len);
                assert_eq!((len, *meta), (len_of(received), meta_of(received)));
                // SAFETY: in the ring, and not overwritten before the writer is told below.
                let out = unsafe { std::slice::from_raw_parts(start.as_ptr(), len) };
                assert!(out.iter().all(|&byte| byte == received as u8));
                received += 1;
            }
            consumed.store(reader.position(), Ordering::Release);
        }
        assert_eq!(reader.look(10_000), Found::Nothing);
        assert!(full > 100);
    }

    /// Packets of one to four lines, with longer ones in between, in a ring that initially contains valid length words.
    #[test]
    fn short_packets_are_records_like_all_others() {
        let (_file, [ours, theirs]) = memory();
        ours.write(0, &vec![1; RING_LEN]);
        let consumed = AtomicU64::new(0);
        let mut writer = Writer::new(ours);
        let mut reader = Reader::new(theirs, writer.restart());
        let packet_of = |number: usize| vec![number as u8; 12 + number % 237 + number % 53 / 52 * 3000];
        let (mut sent, mut received, mut short) = (0, 0, 0);
        while received < 60_000 {
            while sent < 60_000 && sent < received + 1 + sent % 97 {
                let packet = packet_of(sent);
                let payload = Piece::of(&packet[12..]);
                // SAFETY: the payload is part of the packet.
                let is_short = unsafe { writer.push_short(&META, &packet[..12], payload) };
                short += usize::from(is_short);
                if !is_short && !push(&mut writer, &packet, &consumed) {
                    break;
                }
                sent += 1;
            }
            for _ in 0..1 + received % 3 {
                let Found::Packet { len, head_len } = reader.look(10_000) else { break };
                let (start, meta) = reader.take(len, head_len);
                assert_eq!(*meta, META);
                // SAFETY: in the ring, and not overwritten before the writer is told below.
                let out = unsafe { std::slice::from_raw_parts(start.as_ptr(), len) };
                let packet = packet_of(received);
                // A short packet is padded with zeros.
                assert_eq!((&out[..packet.len()], len - packet.len() < 4), (&packet[..], true));
                assert!(out[packet.len()..].iter().all(|&byte| byte == 0));
                received += 1;
            }
            if received % 5 == 0 || sent < received + 50 {
                consumed.store(reader.position(), Ordering::Release);
            }
        }
        assert_eq!((sent, reader.look(10_000)), (60_000, Found::Nothing));
        assert!(short > 50_000, "{short}");
    }

    #[test]
    fn a_new_reader_begins_where_the_writer_stands() {
        let (_file, [ours, theirs]) = memory();
        let consumed = AtomicU64::new(0);
        let mut writer = Writer::new(ours);
        while push(&mut writer, &[7; 5000], &consumed) {}
        let mut reader = Reader::new(theirs, writer.restart());
        assert_eq!(reader.look(10_000), Found::Nothing);
        assert!(push(&mut writer, &[8; 12], &consumed), "what the last reader left is in nobody's way");
        assert!(matches!(reader.look(10_000), Found::Packet { len: 12, .. }));
    }

    #[test]
    fn a_writer_may_begin_at_any_number() {
        for start in [u64::MAX, u64::MAX - 62, 1 << 62, 1] {
            let (_file, [ours, theirs]) = memory();
            let mut reader = Reader::new(theirs, start);
            ours.word(offset_of(reader.position())).store(100, Ordering::Relaxed);
            let Found::Packet { len, head_len } = reader.look(10_000) else { panic!("a packet") };
            reader.take(len, head_len);
        }
    }

    #[test]
    fn nonsense_is_seen() {
        let (_file, [ours, theirs]) = memory();
        let mut reader = Reader::new(theirs, RING_LEN as u64);
        for word in [SKIP, 10_001, 1 << 30, AS_BEFORE | 12] {
            ours.word(0).store(word, Ordering::Relaxed);
            assert_eq!(reader.look(10_000), Found::Nonsense);
        }
        let mut late = Reader { position: (RING_LEN - ALIGN) as u64, ..reader };
        ours.word(RING_LEN - ALIGN).store(100, Ordering::Relaxed);
        assert_eq!(late.look(10_000), Found::Nonsense, "reaches past the end");
    }
}
