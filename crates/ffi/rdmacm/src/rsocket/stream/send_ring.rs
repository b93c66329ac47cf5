//! The sender: a ring that holds bytes until they are acknowledged, and the peer's buffers to which they are written.

use std::collections::VecDeque;

use super::recv_ring::Violation;
use super::ring::{Span, spans};
use crate::rsocket::wire::{Message, RemoteBuffer};

/// The minimum free space of the ring for sending, so that a slow peer does not cause tiny pieces.
pub(crate) const LOW_WATER: u32 = 2048;
/// The first piece of a long send, so that the peer starts early. Each further piece is twice as long, up to [`LARGEST_PIECE`].
const FIRST_PIECE: u32 = 2048;
const LARGEST_PIECE: u32 = 64 * 1024;
/// The maximum number of buffers that a peer may grant in advance. More violate the protocol.
const MAX_TARGETS: usize = 2;

/// The next bytes to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) length: u32,
    /// The positions of the bytes in the send ring; `None` for inline data.
    pub(crate) spans: Option<[Span; 2]>,
}

impl Piece {
    /// The number of bytes of the ring that it occupies until it is acknowledged.
    pub(crate) fn ring_bytes(&self) -> u32 {
        if self.spans.is_some() { self.length } else { 0 }
    }
}

/// The lengths of the pieces of one call.
pub(crate) struct Growth(u32);

impl Growth {
    pub(crate) fn new() -> Self {
        Self(FIRST_PIECE)
    }

    /// The maximum length of the next piece, which grows with each call.
    pub(crate) fn next(&mut self, left: usize) -> u32 {
        match u32::try_from(left) {
            Ok(left) if left <= self.0 => left,
            _ => {
                let piece = self.0;
                self.0 = (piece * 2).min(LARGEST_PIECE);
                piece
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct SendRing {
    size: u32,
    head: u32,
    free: u32,
    /// Requests that may still be posted.
    slots: u32,
    max_slots: u32,
    inline: u32,
    /// The number of the next data message, and the first number without a credit.
    sequence: u16,
    credit: u16,
    targets: VecDeque<RemoteBuffer>,
}

impl SendRing {
    /// A ring of `size` bytes, `slots` requests, and this maximum of inline bytes.
    pub(crate) fn new(size: u32, slots: u32, inline: u32) -> Self {
        let targets = VecDeque::with_capacity(MAX_TARGETS);
        Self { size, head: 0, free: size, slots, max_slots: slots, inline, sequence: 0, credit: 0, targets }
    }

    /// Stores the number up to which the peer accepts data messages.
    pub(crate) fn on_credit(&mut self, credit: u16) {
        self.credit = credit;
    }

    /// Adds a buffer of the peer. More than [`MAX_TARGETS`] violate the protocol.
    pub(crate) fn on_target(&mut self, target: RemoteBuffer) -> Result<(), Violation> {
        if self.targets.len() >= MAX_TARGETS {
            return Err(Violation::Buffers);
        }
        if target.length > 0 {
            self.targets.push_back(target);
        }
        Ok(())
    }

    /// Releases a request that has completed, successfully or not.
    pub(crate) fn on_sent(&mut self, ring_bytes: u32) {
        self.slots = (self.slots + 1).min(self.max_slots);
        self.free = (self.free + ring_bytes).min(self.size);
    }

    /// Whether a request of any kind fits.
    pub(crate) fn has_room(&self) -> bool {
        self.slots > 0 && self.free >= LOW_WATER
    }

    /// Whether data can be sent to the peer.
    pub(crate) fn can_send(&self) -> bool {
        self.has_room() && self.sequence != self.credit && !self.targets.is_empty()
    }

    /// Whether everything has been acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots == self.max_slots
    }

    /// The next piece of the stream, at most `limit` bytes; `None` without free space, credit, buffer or request.
    pub(crate) fn plan(&self, limit: u32) -> Option<Piece> {
        let target = self.targets.front()?;
        let limit = limit.min(target.length).min(Message::MAX_DATA);
        self.can_send().then(|| self.piece(limit))
    }

    /// The next piece of a write to a mapping, which needs no buffer and no credit of the stream.
    pub(crate) fn plan_direct(&self, limit: u32) -> Option<Piece> {
        self.has_room().then(|| self.piece(limit))
    }

    fn piece(&self, limit: u32) -> Piece {
        if limit <= self.inline {
            return Piece { length: limit, spans: None };
        }
        let length = limit.min(self.free);
        Piece { length, spans: Some(spans(self.size, self.head, length)) }
    }

    /// Reserves the piece of [`SendRing::plan`], and returns its target. The caller posts it.
    pub(crate) fn commit(&mut self, piece: &Piece) -> RemoteBuffer {
        self.sequence = self.sequence.wrapping_add(1);
        self.commit_direct(piece);
        let Some(target) = self.targets.front_mut() else { return RemoteBuffer::default() };
        let length = piece.length.min(target.length);
        let here = RemoteBuffer { length, ..*target };
        target.addr = target.addr.wrapping_add(length.into());
        target.length -= length;
        if target.length == 0 {
            self.targets.pop_front();
        }
        here
    }

    /// Reserves the piece of [`SendRing::plan_direct`]. The caller posts it.
    pub(crate) fn commit_direct(&mut self, piece: &Piece) {
        let bytes = piece.ring_bytes();
        self.slots -= 1;
        self.free -= bytes;
        self.head = (self.head + bytes) % self.size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(addr: u64, length: u32) -> RemoteBuffer {
        RemoteBuffer { addr, rkey: 7, length }
    }

    fn ready(size: u32, slots: u32, inline: u32) -> SendRing {
        let mut send_ring = SendRing::new(size, slots, inline);
        send_ring.on_credit(100);
        send_ring.on_target(target(1000, 4096)).unwrap();
        send_ring
    }

    #[test]
    fn data_fills_one_buffer_and_then_the_next() {
        let mut send_ring = ready(16384, 10, 0);
        send_ring.on_target(target(9000, 4096)).unwrap();
        assert!(send_ring.on_target(target(0, 1)).is_err(), "a third buffer was never promised");
        let first = send_ring.plan(3000).unwrap();
        assert_eq!(send_ring.commit(&first), target(1000, 3000));
        let second = send_ring.plan(3000).unwrap();
        assert_eq!(second.length, 1096, "a piece does not leave its buffer");
        assert_eq!(send_ring.commit(&second), target(4000, 1096));
        let third = send_ring.plan(3000).unwrap();
        assert_eq!(send_ring.commit(&third), target(9000, 3000));
    }

    #[test]
    fn without_credit_buffer_slot_or_space_nothing_is_sent() {
        let mut no_credit = ready(8192, 10, 0);
        no_credit.on_credit(0);
        assert_eq!(no_credit.plan(1), None);
        let mut no_buffer = SendRing::new(8192, 10, 0);
        no_buffer.on_credit(1);
        assert_eq!(no_buffer.plan(1), None);
        let mut no_slot = ready(8192, 1, 0);
        let piece = no_slot.plan(1).unwrap();
        no_slot.commit(&piece);
        assert_eq!(no_slot.plan(1), None);
        no_slot.on_sent(piece.ring_bytes());
        assert!(no_slot.plan(1).is_some() && no_slot.is_idle());
        let mut no_space = ready(4096, 10, 0);
        let piece = no_space.plan(4096 - LOW_WATER + 1).unwrap();
        no_space.commit(&piece);
        assert_eq!(no_space.plan(1), None);
    }

    #[test]
    fn small_pieces_go_inline_and_take_no_ring() {
        let mut send_ring = ready(4096, 10, 64);
        let piece = send_ring.plan(64).unwrap();
        assert_eq!((piece.spans, piece.ring_bytes()), (None, 0));
        assert_eq!(send_ring.commit(&piece), target(1000, 64));
        assert!(send_ring.plan(65).unwrap().spans.is_some());
    }

    #[test]
    fn the_ring_wraps() {
        let mut send_ring = ready(4096, 10, 0);
        let first = send_ring.plan(2000).unwrap();
        send_ring.commit(&first);
        let second = send_ring.plan(2000).unwrap();
        send_ring.commit(&second);
        send_ring.on_sent(2000);
        send_ring.on_sent(2000);
        let third = send_ring.plan_direct(200).unwrap();
        let spans = third.spans.unwrap();
        assert_eq!((spans[0].offset, spans[0].length, spans[1].length), (4000, 96, 104));
    }

    #[test]
    fn pieces_grow() {
        let mut growth = Growth::new();
        let lengths: Vec<u32> = (0..7).map(|_| growth.next(usize::MAX)).collect();
        assert_eq!(lengths, [2048, 4096, 8192, 16384, 32768, 65536, 65536]);
        assert_eq!(growth.next(5), 5);
    }
}
