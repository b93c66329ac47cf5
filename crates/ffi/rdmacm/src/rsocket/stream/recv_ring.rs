//! The receiver: a ring that is granted to the peer in halves, and that the peer writes.

use std::collections::VecDeque;

use super::ring::{Span, spans};

/// How the peer violates the protocol. The connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Violation {
    /// It announced more bytes than it was granted.
    Bytes,
    /// It sent more messages than it had credits for.
    Messages,
    /// It granted more buffers than its table has.
    Buffers,
}

/// A grant to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    /// The number up to which data messages are accepted.
    pub(crate) credit: u16,
    /// Half of the ring, if that much has been read.
    pub(crate) buffer: Option<Span>,
}

#[derive(Debug)]
pub(crate) struct RecvRing {
    size: u32,
    /// Bytes since the beginning that were granted to the peer, announced by the peer, and read by the program.
    granted: u64,
    announced: u64,
    read: u64,
    /// Unread bytes of each message that is not read completely.
    messages: VecDeque<u32>,
    depth: u16,
    /// The number of completely read messages, and the number at which credits are reported.
    finished: u16,
    report_at: u16,
}

impl RecvRing {
    /// A ring of `size` bytes (an even number) whose first half is granted with the connection, and `depth` messages.
    pub(crate) fn new(size: u32, depth: u16) -> Self {
        Self {
            size,
            granted: u64::from(size / 2),
            announced: 0,
            read: 0,
            messages: VecDeque::with_capacity(depth.into()),
            depth,
            finished: 0,
            report_at: depth / 2,
        }
    }

    /// Handles a data message: the peer has written this many further bytes.
    pub(crate) fn on_data(&mut self, length: u32) -> Result<(), Violation> {
        if u64::from(length) > self.granted - self.announced {
            return Err(Violation::Bytes);
        }
        if self.messages.len() >= usize::from(self.depth) {
            return Err(Violation::Messages);
        }
        if length == 0 && self.messages.is_empty() {
            // A message without bytes counts as read.
            self.finished = self.finished.wrapping_add(1);
            return Ok(());
        }
        self.announced += u64::from(length);
        self.messages.push_back(length);
        Ok(())
    }

    /// Whether there is something to read.
    pub(crate) fn has_data(&self) -> bool {
        self.available() > 0
    }

    /// The number of bytes that can be read.
    pub(crate) fn available(&self) -> u32 {
        // At most the size of the ring: `announced` is at most `granted`, and `granted` at most `read` plus the size.
        (self.announced - self.read) as u32
    }

    /// The positions of the next bytes, at most `limit`.
    pub(crate) fn next(&self, limit: usize) -> [Span; 2] {
        let length = u32::try_from(limit).unwrap_or(u32::MAX).min(self.available());
        let start = (self.read % u64::from(self.size)) as u32;
        spans(self.size, start, length)
    }

    /// Counts bytes that the program has read.
    pub(crate) fn on_read(&mut self, length: u32) {
        let mut left = length.min(self.available());
        self.read += u64::from(left);
        while let Some(message) = self.messages.front_mut() {
            if left < *message {
                *message -= left;
                break;
            }
            left -= *message;
            self.messages.pop_front();
            self.finished = self.finished.wrapping_add(1);
        }
    }

    /// Whether a grant should be sent to the peer.
    pub(crate) fn wants_grant(&self) -> bool {
        self.half_is_free() || (self.finished.wrapping_sub(self.report_at) as i16) >= 0
    }

    fn half_is_free(&self) -> bool {
        self.read + u64::from(self.size) - self.granted >= u64::from(self.size / 2)
    }

    /// Takes the next grant, and counts it as sent.
    pub(crate) fn grant(&mut self) -> Grant {
        self.report_at = self.finished.wrapping_add(self.depth / 2);
        let half = self.size / 2;
        let buffer = self.half_is_free().then(|| {
            let offset = (self.granted % u64::from(self.size)) as u32;
            self.granted += u64::from(half);
            Span { offset, length: half }
        });
        Grant { credit: self.finished.wrapping_add(self.depth), buffer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_granted_in_turn() {
        let mut recv_ring = RecvRing::new(100, 8);
        assert!(recv_ring.wants_grant(), "the second half, at once");
        assert_eq!(recv_ring.grant(), Grant { credit: 8, buffer: Some(Span { offset: 50, length: 50 }) });
        assert!(!recv_ring.wants_grant());
        recv_ring.on_data(50).unwrap();
        recv_ring.on_data(30).unwrap();
        recv_ring.on_read(49);
        assert!(!recv_ring.wants_grant(), "not yet half a ring");
        recv_ring.on_read(1);
        assert_eq!(recv_ring.grant(), Grant { credit: 9, buffer: Some(Span { offset: 0, length: 50 }) });
        assert_eq!(recv_ring.next(1000), [Span { offset: 50, length: 30 }, Span { offset: 0, length: 0 }]);
    }

    #[test]
    fn reading_wraps_and_crosses_messages() {
        let mut recv_ring = RecvRing::new(100, 8);
        recv_ring.grant();
        recv_ring.on_data(50).unwrap();
        recv_ring.on_data(40).unwrap();
        recv_ring.on_read(90);
        recv_ring.grant();
        recv_ring.on_data(10).unwrap();
        recv_ring.on_data(20).unwrap();
        assert_eq!(recv_ring.next(25), [Span { offset: 90, length: 10 }, Span { offset: 0, length: 15 }]);
        recv_ring.on_read(25);
        assert_eq!(recv_ring.available(), 5);
        assert!(recv_ring.has_data());
        recv_ring.on_read(5);
        assert!(!recv_ring.has_data());
    }

    #[test]
    fn credits_are_reported_by_half_queues() {
        let mut recv_ring = RecvRing::new(4096, 8);
        recv_ring.grant();
        for _ in 0..3 {
            recv_ring.on_data(1).unwrap();
            recv_ring.on_read(1);
        }
        assert!(!recv_ring.wants_grant());
        recv_ring.on_data(1).unwrap();
        recv_ring.on_read(1);
        assert!(recv_ring.wants_grant());
        assert_eq!(recv_ring.grant(), Grant { credit: 12, buffer: None });
        assert!(!recv_ring.wants_grant());
    }

    #[test]
    fn a_peer_that_takes_more_than_it_was_given_is_caught() {
        let mut recv_ring = RecvRing::new(100, 2);
        assert_eq!(recv_ring.on_data(51), Err(Violation::Bytes));
        recv_ring.on_data(50).unwrap();
        assert_eq!(recv_ring.on_data(1), Err(Violation::Bytes));
        recv_ring.grant();
        recv_ring.on_data(1).unwrap();
        assert_eq!(recv_ring.on_data(1), Err(Violation::Messages));
        assert_eq!(recv_ring.on_data(u32::MAX), Err(Violation::Bytes));
    }

    #[test]
    fn empty_messages_are_read_away() {
        let mut recv_ring = RecvRing::new(100, 4);
        recv_ring.on_data(0).unwrap();
        assert!(!recv_ring.has_data());
        recv_ring.on_data(3).unwrap();
        recv_ring.on_data(0).unwrap();
        assert_eq!(recv_ring.available(), 3);
        recv_ring.on_read(3);
        assert!(!recv_ring.has_data());
        assert_eq!(recv_ring.grant().credit, 3 + 4);
    }

    #[test]
    fn numbers_wrap() {
        let mut recv_ring = RecvRing::new(64, 16);
        for _ in 0..200_000 {
            if recv_ring.wants_grant() {
                recv_ring.grant();
            }
            recv_ring.on_data(3).unwrap();
            recv_ring.on_read(3);
        }
        assert_eq!(recv_ring.available(), 0);
    }
}
