//! Packets to send, in one arena.

use super::icrc::{IcrcInputs, LastChoice, WeakChooser};
use crate::memory::External;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{Bth, ICRC_LEN, IcrcPrefix};
use std::ops::Range;

/// Holds two full GSO runs: small enough to stay in the L2 cache between the copy that fills it and the copy of the kernel.
/// In 128 KiB, a single packet would fit behind two runs of 15 packets of 4 KiB.
const ARENA_LEN: usize = 124 * 1024;

/// Most packets in one batch; bounds the time that one `send` takes when all of them are small.
const MAX_PACKETS: usize = 256;

/// Packets to send, in one arena. Each is BTH to padding, followed by four bytes that the link fills with the ICRC.
///
/// Packets lie one behind the other without gaps, so the kernel takes a GSO run without copying it first. The payload of a
/// packet may lie in registered memory (`reserve_external`); its headers and ICRC then lie in the arena without a gap.
pub struct TxBatch {
    pub(super) arena: Box<[u8]>,
    /// Used bytes of the arena.
    pub(super) used: usize,
    /// Bytes of all packets, including external payloads.
    pub(super) wire_len: usize,
    pub(super) packets: Vec<TxPacket>,
    pub(super) chooser: WeakChooser,
    /// The TX socket of the last route.
    pub(super) last_choice: Option<LastChoice>,
    pub(super) prefixes: IcrcPrefix,
}

/// The position and the route of one packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxPacket {
    pub(crate) route: Route,
    /// The inputs of its ICRC; `None` until the packet is final.
    pub(crate) icrc_inputs: Option<IcrcInputs>,
    pub(super) start: u32,
    pub(super) len: u32,
    /// Bit to invert when the packet is final (fault injection); counted from the first bit of the packet.
    pub(super) flip_bit: Option<u32>,
    pub(super) payload: Option<Payload>,
}

/// An external payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload {
    pub(super) external: External,
    /// Bytes of the packet in front of it.
    pub(super) head_len: u32,
}

/// A contiguous part of consecutive packets, for the kernel to read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TxPiece<'a> {
    /// In the arena.
    Arena(&'a [u8]),
    /// In a region.
    External(External),
}

impl TxPacket {
    /// Bytes on the wire behind the UDP header: the packet and its ICRC.
    pub(crate) fn wire_len(&self) -> usize {
        self.len as usize + ICRC_LEN
    }
    /// Bytes from the BTH to the padding.
    pub(super) fn transport_len(&self) -> usize {
        self.len as usize
    }
    /// The range of the packet in the arena, with its ICRC and without an external payload.
    pub(super) fn arena_range(&self) -> Range<usize> {
        let elsewhere = self.payload.map_or(0, |payload| payload.external.len());
        self.start as usize..self.start as usize + self.wire_len() - elsewhere
    }
}

/// One packet of a [`TxBatch`].
#[derive(Clone, Copy, Debug)]
pub struct TxView<'a> {
    /// Where it goes.
    pub route: &'a Route,
    /// BTH to padding, without the ICRC.
    pub bytes: &'a [u8],
    /// Bit that the link will invert after computing the ICRC, if any.
    pub flip_bit: Option<u32>,
}

impl Default for TxBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBatch {
    /// The longest packet, in transport bytes (headers, payload, padding), that an empty batch takes.
    pub const MAX_PACKET_LEN: usize = 65_000 - ICRC_LEN;

    /// An empty batch with its arena.
    pub fn new() -> Self {
        let arena = vec![0; ARENA_LEN].into_boxed_slice();
        let packets = Vec::with_capacity(MAX_PACKETS);
        TxBatch {
            arena,
            used: 0,
            wire_len: 0,
            packets,
            chooser: None,
            last_choice: None,
            prefixes: IcrcPrefix::default(),
        }
    }
    /// Whether it holds no packet.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
    /// Number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }
    /// Removes all packets.
    pub fn clear(&mut self) {
        (self.used, self.wire_len) = (0, 0);
        self.packets.clear();
    }
    /// Whether one more packet of `len` transport bytes fits. An empty batch takes any packet up to
    /// [`Self::MAX_PACKET_LEN`].
    pub fn has_room(&self, len: usize) -> bool {
        len <= Self::MAX_PACKET_LEN
            && self.packets.len() < MAX_PACKETS
            && self.wire_len + len + ICRC_LEN <= self.arena.len()
    }
    /// How many packets of `len` transport bytes fit.
    pub(crate) fn room_for(&self, len: usize) -> usize {
        let of_bytes = self.arena.len().saturating_sub(self.wire_len) / (len + ICRC_LEN);
        of_bytes.min(MAX_PACKETS - self.packets.len())
    }
    /// Adds a packet of `len` transport bytes and returns these bytes for the caller to fill. They contain data of earlier
    /// packets.
    ///
    /// # Panics
    /// If the packet does not fit (check [`Self::has_room`] first), or if it is shorter than a BTH.
    pub fn reserve(&mut self, route: &Route, len: usize) -> &mut [u8] {
        let start = self.push(route, len, None);
        &mut self.arena[start..start + len]
    }
    /// Adds a packet with an external payload, between `head_len` bytes of headers and `pad_len` zeros. Returns the headers for
    /// the caller to fill.
    ///
    /// # Safety
    /// The region of `external` is held until the batch is sent or cleared.
    ///
    /// # Panics
    /// As [`Self::reserve`].
    pub(crate) unsafe fn reserve_external(
        &mut self,
        route: &Route,
        head_len: usize,
        external: External,
        pad_len: usize,
    ) -> &mut [u8] {
        let payload = Payload { external, head_len: head_len as u32 };
        let start = self.push(route, head_len + external.len() + pad_len, Some(payload));
        let (head, rest) = self.arena[start..].split_at_mut(head_len);
        if pad_len > 0 {
            rest[..pad_len].fill(0);
        }
        head
    }
    fn push(&mut self, route: &Route, len: usize, payload: Option<Payload>) -> usize {
        assert!(len >= Bth::LEN, "a packet of {len} bytes has no BTH");
        assert!(self.has_room(len), "no room for a packet of {len} bytes: ask has_room first");
        self.finalise_last();
        let (start, len) = (self.used as u32, len as u32);
        let packet = TxPacket { route: *route, icrc_inputs: None, start, len, flip_bit: None, payload };
        self.used = packet.arena_range().end;
        self.wire_len += packet.wire_len();
        self.packets.push(packet);
        start as usize
    }
    /// Removes the last packet (its payload could not be gathered).
    pub fn cancel_last(&mut self) {
        if let Some(packet) = self.packets.pop() {
            self.used = packet.start as usize;
            self.wire_len -= packet.wire_len();
        }
    }
    /// Removes a packet from the list; its bytes stay in the arena until that is cleared.
    pub(super) fn forget(&mut self, index: usize) {
        let packet = self.packets.remove(index);
        self.wire_len -= packet.wire_len();
    }
    /// Makes the link invert one bit of the last packet after it has computed the ICRC, so that the receiver gets a damaged
    /// packet. `bit` counts from the first bit of the packet, modulo its length.
    pub fn corrupt_last(&mut self, bit: u32) {
        if let Some(packet) = self.packets.last_mut() {
            let covered = (packet.arena_range().len() - ICRC_LEN) as u32;
            packet.flip_bit = (covered > 0).then(|| bit % (covered * 8));
        }
    }
    /// The packets, in the order they were added, without external payloads. A link that reads packets this way does not
    /// support such payloads ([`Capabilities`](super::super::Capabilities)).
    pub fn packets(&self) -> impl Iterator<Item = TxView<'_>> {
        self.packets.iter().map(|p| TxView {
            route: &p.route,
            bytes: &self.arena[p.start as usize..p.arena_range().end - ICRC_LEN],
            flip_bit: p.flip_bit,
        })
    }

    /// The entries of the packets, for the link.
    pub(crate) fn entries(&self) -> &[TxPacket] {
        &self.packets
    }
    /// The bytes of packet `index` in the arena, with its ICRC.
    pub(crate) fn wire_bytes(&self, index: usize) -> &[u8] {
        &self.arena[self.packets[index].arena_range()]
    }
    /// Number of bytes of a GSO run: all packets but the last are as long as the first.
    pub(crate) fn run_len(&self, run: &Range<usize>) -> usize {
        let (first, last) = (&self.packets[run.start], &self.packets[run.end - 1]);
        first.wire_len() * (run.len() - 1) + last.wire_len()
    }
    /// Consecutive packets, ICRCs included, if none of them has an external payload.
    pub(crate) fn in_one_piece(&self, run: Range<usize>) -> Option<&[u8]> {
        let packets = &self.packets[run];
        let range = packets[0].start as usize..packets[packets.len() - 1].arena_range().end;
        packets.iter().all(|packet| packet.payload.is_none()).then(|| &self.arena[range])
    }
    /// Copies packet `index`, with any external payload, to another batch, which has capacity for it.
    pub(crate) fn copy_packet(&self, index: usize, to: &mut TxBatch) {
        let packet = &self.packets[index];
        let out = to.reserve(&packet.route, packet.transport_len());
        let mut at = 0;
        self.each_piece(index..index + 1, |piece| {
            let len = match piece {
                TxPiece::Arena(bytes) => {
                    let len = bytes.len().min(out.len() - at);
                    out[at..at + len].copy_from_slice(&bytes[..len]);
                    len
                }
                TxPiece::External(external) => {
                    // SAFETY: the caller of `reserve_external` holds the region until this batch is sent or cleared.
                    unsafe { external.copy_to(&mut out[at..at + external.len()]) };
                    external.len()
                }
            };
            at += len;
        });
    }
    /// Calls `take` with each contiguous piece of consecutive packets, ICRCs included. The bytes of the arena between two external
    /// payloads are one piece.
    pub(crate) fn each_piece<'a>(&'a self, run: Range<usize>, mut take: impl FnMut(TxPiece<'a>)) {
        let packets = &self.packets[run];
        let mut from = packets[0].start as usize;
        for packet in packets {
            if let Some(Payload { external, head_len }) = packet.payload {
                let to = (packet.start + head_len) as usize;
                take(TxPiece::Arena(&self.arena[from..to]));
                take(TxPiece::External(external));
                from = to;
            }
        }
        take(TxPiece::Arena(&self.arena[from..packets[packets.len() - 1].arena_range().end]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(entropy: u16) -> Route {
        Route { entropy, ..Route::default() }
    }

    #[test]
    fn a_cancelled_packet_leaves_no_trace() {
        let mut batch = TxBatch::new();
        batch.reserve(&route(1), 12).fill(1);
        batch.reserve(&route(2), 100).fill(2);
        batch.cancel_last();
        batch.reserve(&route(3), 16).fill(3);
        let seen: Vec<_> = batch.packets().map(|p| (p.route.entropy, p.bytes.to_vec())).collect();
        assert_eq!(seen, [(1, vec![1; 12]), (3, vec![3; 16])]);
        assert_eq!(batch.in_one_piece(0..2).map(<[u8]>::len), Some(12 + 16 + 8));
    }

    #[test]
    fn room_ends_before_the_arena_does() {
        let mut batch = TxBatch::new();
        assert!(batch.has_room(TxBatch::MAX_PACKET_LEN));
        assert!(!batch.has_room(TxBatch::MAX_PACKET_LEN + 1));
        while batch.has_room(4096) {
            batch.reserve(&route(0), 4096);
        }
        assert_eq!(batch.len(), 2 * 15, "two segmentation runs of 4 KiB packets fit");
        batch.clear();
        while batch.has_room(12) {
            batch.reserve(&route(0), 12);
        }
        assert_eq!(batch.len(), MAX_PACKETS);
    }
}
