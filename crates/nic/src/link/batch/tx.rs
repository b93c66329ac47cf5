//! Packets on their way out, in one arena.

use super::seal::{Seal, SealedBy};
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{Bth, ICRC_LEN};
use std::ops::Range;

/// Two full segmentation runs: small enough to stay in the second-level cache between the copy that fills it and the copy
/// of the kernel. Not 128 KiB, where two runs of 15 packets of 4 KiB would leave room for a lonely one behind them.
const ARENA_LEN: usize = 124 * 1024;

/// Most packets in one batch; bounds the time that one `send` takes when all of them are small.
const MAX_PACKETS: usize = 256;

/// Packets to send, in one arena. Each is BTH to padding, followed by four bytes that the link fills with the ICRC.
///
/// Packets lie one behind the other without gaps, so a run of equal length to one peer can be given to the kernel as
/// one segmentation batch without copying.
pub struct TxBatch {
    pub(super) arena: Box<[u8]>,
    used: usize,
    pub(super) packets: Vec<TxPacket>,
    pub(super) sealed_by: SealedBy,
}

/// Where one packet lies and where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxPacket {
    pub(crate) route: Route,
    /// What the ICRC depends on, once it is in place.
    pub(crate) seal: Option<Seal>,
    start: u32,
    len: u32,
    /// Bit to invert once the ICRC is in place (fault injection); counted from the first bit of the packet.
    pub(super) flip_bit: Option<u32>,
}

impl TxPacket {
    /// Bytes on the wire behind the UDP header: the packet and its ICRC.
    pub(crate) fn wire_len(&self) -> usize {
        self.len as usize + ICRC_LEN
    }
    /// Where the packet lies in the arena, with its ICRC.
    pub(crate) fn wire_range(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.wire_len()
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
        TxBatch { arena, used: 0, packets: Vec::with_capacity(MAX_PACKETS), sealed_by: None }
    }
    /// Whether it holds no packet.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
    /// How many packets it holds.
    pub fn len(&self) -> usize {
        self.packets.len()
    }
    /// Forgets all packets.
    pub fn clear(&mut self) {
        self.used = 0;
        self.packets.clear();
    }
    /// Whether one more packet of `len` transport bytes fits. An empty batch takes any packet up to
    /// [`Self::MAX_PACKET_LEN`].
    pub fn has_room(&self, len: usize) -> bool {
        len <= Self::MAX_PACKET_LEN
            && self.packets.len() < MAX_PACKETS
            && self.used + len + ICRC_LEN <= self.arena.len()
    }
    /// Adds a packet of `len` transport bytes and returns those bytes to be filled; what they hold is left over from
    /// earlier packets.
    ///
    /// # Panics
    /// If there is no room for it (ask [`Self::has_room`] first), or if it is shorter than a BTH.
    pub fn reserve(&mut self, route: &Route, len: usize) -> &mut [u8] {
        assert!(len >= Bth::LEN, "a packet of {len} bytes has no BTH");
        assert!(self.has_room(len), "no room for a packet of {len} bytes: ask has_room first");
        self.seal_early();
        let start = self.used;
        self.used += len + ICRC_LEN;
        self.packets.push(TxPacket {
            route: *route,
            seal: None,
            start: start as u32,
            len: len as u32,
            flip_bit: None,
        });
        &mut self.arena[start..start + len]
    }
    /// Takes back the last packet (its payload could not be gathered).
    pub fn cancel_last(&mut self) {
        if let Some(packet) = self.packets.pop() {
            self.used = packet.start as usize;
        }
    }
    /// Has the link invert one bit of the last packet after it computed the ICRC, so that the receiver finds it
    /// damaged. `bit` counts from the first bit of the packet and is taken modulo its length.
    pub fn corrupt_last(&mut self, bit: u32) {
        if let Some(packet) = self.packets.last_mut() {
            packet.flip_bit = (packet.len > 0).then(|| bit % (packet.len * 8));
        }
    }
    /// The packets, in the order they were added.
    pub fn packets(&self) -> impl Iterator<Item = TxView<'_>> {
        self.packets.iter().map(|p| TxView {
            route: &p.route,
            bytes: &self.arena[p.start as usize..(p.start + p.len) as usize],
            flip_bit: p.flip_bit,
        })
    }

    /// The packets as the link sees them.
    pub(crate) fn entries(&self) -> &[TxPacket] {
        &self.packets
    }
    /// Packet `index` with its ICRC.
    pub(crate) fn wire_bytes(&self, index: usize) -> &[u8] {
        &self.arena[self.packets[index].wire_range()]
    }
    /// Where consecutive packets lie in the arena, ICRCs included.
    pub(crate) fn run_range(&self, run: Range<usize>) -> Range<usize> {
        self.packets[run.start].wire_range().start..self.packets[run.end - 1].wire_range().end
    }
    /// The memory that all packets lie in.
    pub(crate) fn arena(&self) -> &[u8] {
        &self.arena
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
        assert_eq!(batch.run_range(0..2), 0..12 + 16 + 8);
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
