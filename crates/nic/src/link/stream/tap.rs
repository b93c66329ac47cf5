//! The stream of one connection in a capture: synthetic TCP segments, each with one frame of MPA.
//!
//! Wireshark expects one FPDU per segment. So the bytes of an incomplete frame wait here. If a stream ends inside a frame, the rest is
//! written when the socket is closed.

use super::socket::Closing;
use crate::link::Capture;
use crate::link::capture::{Direction, TcpSegment};
use ferroce_os::clock::wall_clock_ns;
use ferroce_proto::iwarp::wire::frame_len;
use std::net::SocketAddr;
use std::sync::Arc;

/// One direction.
#[derive(Default)]
struct Half {
    /// The incomplete frame.
    bytes: Vec<u8>,
    /// Sequence number of the next segment.
    sequence: u32,
    /// Whether the frame of the negotiation was written; FPDUs follow.
    is_negotiated: bool,
    is_closed: bool,
}

/// Both directions of a connection.
pub(super) struct Tap {
    capture: Arc<Capture>,
    local: SocketAddr,
    peer: SocketAddr,
    sent: Half,
    received: Half,
    /// Time of the segments that are written next.
    time_ns: u64,
}

impl Tap {
    /// Writes the three segments with which TCP connects.
    pub(super) fn new(capture: Arc<Capture>, local: SocketAddr, peer: SocketAddr, is_initiator: bool) -> Tap {
        let (sent, received) = (Half::default(), Half::default());
        let mut tap = Tap { capture, local, peer, sent, received, time_ns: wall_clock_ns() };
        let (first, second) = match is_initiator {
            true => (Direction::Sent, Direction::Received),
            false => (Direction::Received, Direction::Sent),
        };
        tap.segment(first, TcpSegment::SYN, &[]);
        tap.half(first).sequence += 1;
        tap.segment(second, TcpSegment::SYN | TcpSegment::ACK, &[]);
        tap.half(second).sequence += 1;
        tap.segment(first, TcpSegment::ACK, &[]);
        tap
    }

    pub(super) fn set_time(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
    }

    fn half(&mut self, direction: Direction) -> &mut Half {
        match direction {
            Direction::Sent => &mut self.sent,
            Direction::Received => &mut self.received,
        }
    }

    /// Adds the first `count` of these bytes.
    pub(super) fn add(&mut self, direction: Direction, pieces: &[&[u8]], count: usize) {
        let mut left = count;
        for piece in pieces {
            let part = &piece[..piece.len().min(left)];
            left -= part.len();
            self.half(direction).bytes.extend_from_slice(part);
        }
        let mut bytes = std::mem::take(&mut self.half(direction).bytes);
        let mut at = 0;
        while let Some(len) = frame_len(&bytes[at..], self.half(direction).is_negotiated)
            && len <= bytes.len() - at
        {
            self.payload(direction, &bytes[at..at + len]);
            self.half(direction).is_negotiated = true;
            at += len;
        }
        bytes.drain(..at);
        self.half(direction).bytes = bytes;
    }

    /// The stream ends in this direction.
    pub(super) fn close(&mut self, direction: Direction, how: Closing) {
        let half = self.half(direction);
        if std::mem::replace(&mut half.is_closed, true) {
            return;
        }
        let rest = std::mem::take(&mut half.bytes);
        self.payload(direction, &rest);
        let flag = match how {
            Closing::AfterData => TcpSegment::FIN,
            Closing::Reset => TcpSegment::RST,
        };
        self.segment(direction, flag | TcpSegment::ACK, &[]);
    }

    fn payload(&mut self, direction: Direction, bytes: &[u8]) {
        for part in bytes.chunks(TcpSegment::MOST) {
            self.segment(direction, TcpSegment::PSH | TcpSegment::ACK, part);
            let half = self.half(direction);
            half.sequence = half.sequence.wrapping_add(part.len() as u32);
        }
    }

    fn segment(&self, direction: Direction, flags: u8, payload: &[u8]) {
        let (from, to, ours, theirs) = match direction {
            Direction::Sent => (self.local, self.peer, &self.sent, &self.received),
            Direction::Received => (self.peer, self.local, &self.received, &self.sent),
        };
        let acknowledged = if flags & TcpSegment::ACK == 0 { 0 } else { theirs.sequence };
        let segment = TcpSegment { from, to, sequence: ours.sequence, acknowledged, flags };
        self.capture.record_segment(direction, self.time_ns, &segment, payload);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        for direction in [Direction::Sent, Direction::Received] {
            let rest = std::mem::take(&mut self.half(direction).bytes);
            self.payload(direction, &rest);
        }
    }
}
