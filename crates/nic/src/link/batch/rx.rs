//! Received packets, in the buffers into which the kernel wrote them.

use ferroce_proto::qp::Arrival;
use ferroce_proto::wire::clear_partial_icrc;
pub(crate) use ferroce_shm::RxMeta;
use std::ops::Range;
use std::ptr::NonNull;

/// Datagrams read by one system call. Few, because each further buffer evicts an older one from the cache.
pub(crate) const RX_BUFFERS: usize = 8;

/// The longest GRO batch.
pub(crate) const RX_BUFFER_LEN: usize = 64 * 1024;

/// Received packets. Their bytes stay in place, in a buffer of the batch or in a ring, until the next `receive`.
pub struct RxBatch {
    memory: Box<[u8]>,
    packets: Vec<RxEntry>,
    pub(crate) has_more: bool,
}

// SAFETY: memory outside the batch belongs to a link, which any thread may use.
unsafe impl Send for RxBatch {}
// SAFETY: as above.
unsafe impl Sync for RxBatch {}

struct RxEntry {
    arrival: Arrival,
    at: At,
    len: u32,
    sport: u16,
}

impl RxEntry {
    #[inline(always)] // constructs the entry in place
    fn new(meta: &RxMeta, ring: Option<u8>, at: At, len: usize) -> Self {
        let &RxMeta { sgid, dgid, sport, tos, ttl } = meta;
        let arrival = Arrival { sgid, dgid, traffic_class: tos, hop_limit: ttl, ring, age_ns: 0 };
        RxEntry { arrival, at, len: len as u32, sport }
    }
}

/// Where the bytes of a packet lie.
#[derive(Clone, Copy)]
enum At {
    /// In the batch's own memory.
    Here(u32),
    /// In memory that the link keeps until the next `receive`.
    There(NonNull<u8>),
}

/// One packet of an [`RxBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxPacket<'a> {
    /// Its addressing.
    pub arrival: &'a Arrival,
    /// UDP source port; 0 on links without UDP.
    pub sport: u16,
    /// BTH to padding. The ICRC was right and is not part of it.
    pub bytes: &'a [u8],
}

impl Default for RxBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl RxBatch {
    /// An empty batch with its buffers.
    pub fn new() -> Self {
        let memory = vec![0; RX_BUFFERS * RX_BUFFER_LEN].into_boxed_slice();
        RxBatch { memory, packets: Vec::with_capacity(256), has_more: false }
    }
    /// Whether it holds no packet.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
    /// Number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }
    /// Whether the link holds the rest of a GRO batch, which the next `receive` appends.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.has_more
    }
    /// Removes the packets for which `keeps` returns `false`.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&Arrival, u16) -> bool) {
        self.packets.retain(|packet| keeps(&packet.arrival, packet.sport));
    }
    /// Removes all packets.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.has_more = false;
    }
    /// The packets, in the order they arrived.
    pub fn packets(&self) -> impl DoubleEndedIterator<Item = RxPacket<'_>> {
        (0..self.packets.len()).map(|index| self.packet(index))
    }
    /// The packet with this number.
    ///
    /// # Panics
    /// If there are not that many packets.
    #[inline]
    pub fn packet(&self, index: usize) -> RxPacket<'_> {
        let p = &self.packets[index];
        RxPacket {
            arrival: &p.arrival,
            sport: p.sport,
            bytes: match p.at {
                At::Here(start) => &self.memory[start as usize..(start + p.len) as usize],
                // SAFETY: the caller of `push_there` guarantees that the bytes stay until the next `receive`, which borrows the
                // batch mutably.
                At::There(start) => unsafe { std::slice::from_raw_parts(start.as_ptr(), p.len as usize) },
            },
        }
    }

    /// Adds a packet that lies in the ring of this slot, and returns its bytes.
    ///
    /// # Safety
    /// The bytes stay valid, and a peer that follows the protocol does not change them, until the link's next `receive` with this batch.
    #[inline]
    pub(crate) unsafe fn push_there(
        &mut self,
        start: NonNull<u8>,
        len: usize,
        meta: &RxMeta,
        slot: u8,
    ) -> &[u8] {
        self.packets.push(RxEntry::new(meta, Some(slot), At::There(start), len));
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Sets the time since the arrival at this host for the packets from number `first` on.
    pub(crate) fn set_age(&mut self, first: usize, age_ns: u32) {
        self.packets[first..].iter_mut().for_each(|packet| packet.arrival.age_ns = age_ns);
    }

    /// The buffers from `index` on, for a system call to fill.
    pub(crate) fn buffers_from(&mut self, index: usize) -> &mut [u8] {
        &mut self.memory[index * RX_BUFFER_LEN..]
    }
    /// The contents of buffer `index`.
    pub(crate) fn buffer(&self, index: usize) -> &[u8] {
        &self.memory[index * RX_BUFFER_LEN..(index + 1) * RX_BUFFER_LEN]
    }
    /// Records in the BTH of the packet at `range` of buffer `index` that its ICRC covers everything.
    pub(crate) fn clear_partial_icrc(&mut self, index: usize, range: &Range<usize>) {
        clear_partial_icrc(&mut self.buffers_from(index)[range.clone()]);
    }
    /// Adds the packet that lies at `range` of buffer `index`.
    #[inline(always)] // as `RxEntry::new`
    pub(crate) fn push(&mut self, index: usize, range: Range<usize>, meta: &RxMeta) {
        debug_assert!(range.end <= RX_BUFFER_LEN);
        let start = (index * RX_BUFFER_LEN + range.start) as u32;
        self.packets.push(RxEntry::new(meta, None, At::Here(start), range.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::Gid;

    #[test]
    fn packets_keep_their_order_and_bytes() {
        let mut rx = RxBatch::new();
        rx.buffers_from(0)[..4].copy_from_slice(&[1, 2, 3, 4]);
        rx.buffers_from(7)[65_532..].copy_from_slice(&[5, 6, 7, 8]);
        let meta = RxMeta { sgid: Gid::ZERO, dgid: Gid::ZERO, sport: 9, tos: 0, ttl: 64 };
        rx.push(7, 65_532..65_536, &meta);
        rx.push(0, 1..3, &meta);
        let seen: Vec<_> = rx.packets().map(|p| p.bytes.to_vec()).collect();
        assert_eq!(seen, [vec![5, 6, 7, 8], vec![2, 3]]);
        rx.clear();
        assert!(rx.is_empty());
    }
}
