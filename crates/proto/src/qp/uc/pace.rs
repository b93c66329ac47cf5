//! Flow control of an unreliable connection between two ferroce peers.
//!
//! UC does not retransmit, so a packet that overflows the receiver's buffer is lost. Two ferroce peers avoid this
//! without a lossless network. The sender marks some packets with a reserved bit that other implementations ignore. The
//! receiver acknowledges the latest marked packet that it has processed. The congestion window bounds the unacknowledged
//! bytes.
//!
//! The connection stays unreliable: if a peer never acknowledges, the sender waits once and then stops pacing.

use crate::Time;
use crate::cc::{CongestionControl, Controller, Feedback};
use crate::ids::Psn;

/// Marked packets per window, so that ACKs arrive before the window is exhausted.
const MARKS_PER_WINDOW: u32 = 8;
/// Marks that are stored. More than one window, because a peer may acknowledge again after it was considered silent.
const MAX_MARKS: usize = 16;
/// Minimum bytes that a packet occupies in the receiver's buffer.
const MIN_COST: u32 = 1024;
/// Fewer unmarked bytes than this do not need a mark.
const MIN_MARKED: u64 = 4096;
/// How long the sender waits for an ACK, in nanoseconds. Long enough for a peer on a shared CPU.
const ACK_TIMEOUT_NS: u64 = 200_000_000;
/// Consecutive timeouts after which a peer that acknowledged before counts as silent.
const MAX_MISSED: u8 = 8;

/// Whether the peer acknowledges marked packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// No packet was marked yet, or the first ACK is not overdue.
    Unknown,
    /// It acknowledges, except for the last `missed` timeouts.
    Answers { missed: u8 },
    /// It does not acknowledge: the sender does not wait for it.
    Silent,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    psn: Psn,
    /// Bytes sent up to and including this packet.
    sent: u64,
}

#[derive(Debug)]
pub(super) struct Pace {
    window: Controller,
    peer: Peer,
    /// Bytes sent on this connection, bytes acknowledged, and bytes covered by a mark.
    sent: u64,
    taken: u64,
    marked: u64,
    marks: [Mark; MAX_MARKS],
    next_mark: usize,
    deadline: Option<Time>,
}

impl Pace {
    pub(super) fn new(window: Controller) -> Pace {
        Pace {
            window,
            peer: Peer::Unknown,
            sent: 0,
            taken: 0,
            marked: 0,
            marks: [Mark::default(); MAX_MARKS],
            next_mark: 0,
            deadline: None,
        }
    }

    /// The congestion controller.
    pub(super) fn cc(&self) -> &Controller {
        &self.window
    }

    /// Returns the congestion controller.
    pub(super) fn congestion(&mut self) -> &mut Controller {
        &mut self.window
    }

    /// Starts a new connection.
    pub(super) fn restart(&mut self) {
        self.window.on_drained();
        (self.peer, self.deadline) = (Peer::Unknown, None);
        (self.sent, self.taken, self.marked) = (0, 0, 0);
        self.marks = [Mark::default(); MAX_MARKS];
    }

    fn cost(len: u32) -> u64 {
        u64::from(len.max(MIN_COST))
    }

    /// Whether a packet may be sent. It may if no mark is outstanding, because no ACK would open the window.
    pub(super) fn allows(&self, len: u32) -> bool {
        let in_flight = self.sent - self.taken;
        self.peer == Peer::Silent
            || self.marked <= self.taken
            || in_flight + Pace::cost(len) <= u64::from(self.window.window())
    }

    /// Whether to mark the next packet. The last packet of a burst is marked unless the burst is small.
    pub(super) fn wants_mark(&self, len: u32, is_last_for_now: bool) -> bool {
        let unmarked = self.sent + Pace::cost(len) - self.marked.max(self.taken);
        let interval = u64::from(self.window.window() / MARKS_PER_WINDOW);
        unmarked >= interval || (is_last_for_now && unmarked > MIN_MARKED)
    }

    /// Records a sent packet.
    pub(super) fn on_sent(&mut self, now: Time, psn: Psn, len: u32, is_marked: bool) {
        let cost = Pace::cost(len);
        self.sent += cost;
        self.window.on_sent(cost as u32);
        if is_marked {
            self.marked = self.sent;
            self.marks[self.next_mark % MAX_MARKS] = Mark { psn, sent: self.sent };
            self.next_mark += 1;
            self.deadline = self.deadline.or(Some(now + ACK_TIMEOUT_NS));
        }
    }

    /// Handles the peer's ACK of a marked packet.
    pub(super) fn on_answer(&mut self, now: Time, psn: Psn) {
        self.peer = Peer::Answers { missed: 0 };
        let taken = self.taken;
        let Some(mark) = self.marks.iter().find(|mark| mark.psn == psn && mark.sent > taken) else { return };
        let acked = u32::try_from(mark.sent - taken).unwrap_or(u32::MAX);
        self.window.on_ack(&Feedback::new(now, acked, None));
        self.taken = mark.sent;
        if self.taken == self.sent {
            self.window.on_drained();
        }
        self.deadline = (self.marked > self.taken).then(|| now + ACK_TIMEOUT_NS);
    }

    /// Time at which [`Self::on_timeout`] is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Handles a missing ACK: everything sent counts as acknowledged.
    pub(super) fn on_timeout(&mut self) {
        self.peer = match self.peer {
            Peer::Answers { missed } if missed + 1 < MAX_MISSED => Peer::Answers { missed: missed + 1 },
            _ => Peer::Silent,
        };
        (self.taken, self.deadline) = (self.sent, None);
        self.window.on_drained();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::FixedWindow;
    use alloc::vec::Vec;

    const MTU: u32 = 4096;
    const WINDOW: u32 = 64 * 1024;
    const LATE: Time = Time(ACK_TIMEOUT_NS);

    struct Run {
        pace: Pace,
        psn: Psn,
        /// Marked and not acknowledged.
        unanswered: Vec<Psn>,
    }

    impl Run {
        fn new() -> Run {
            Run {
                pace: Pace::new(FixedWindow { bytes: WINDOW }.into()),
                psn: Psn::new(0xff_fff0),
                unanswered: Vec::new(),
            }
        }

        /// Sends at most `most` packets while the pace allows it. Returns the number sent.
        fn send(&mut self, most: u32, len: u32) -> u32 {
            (0..most).take_while(|&n| self.send_one(len, n + 1 == most)).count() as u32
        }

        fn send_one(&mut self, len: u32, is_last: bool) -> bool {
            let may = self.pace.allows(len);
            if may {
                let mark = self.pace.wants_mark(len, is_last);
                self.pace.on_sent(Time(0), self.psn, len, mark);
                self.unanswered.extend(mark.then_some(self.psn));
                self.psn = self.psn.plus(1);
            }
            may
        }

        fn answer(&mut self, at: usize) {
            let psn = self.unanswered[at];
            self.unanswered.drain(..=at);
            self.pace.on_answer(Time(1), psn);
        }
    }

    #[test]
    fn the_window_bounds_unacknowledged_bytes() {
        let mut run = Run::new();
        assert_eq!(run.send(1000, MTU), WINDOW / MTU);
        assert_eq!(run.unanswered.len(), MARKS_PER_WINDOW as usize);
        run.answer(0);
        assert_eq!(run.send(1000, MTU), WINDOW / MTU / MARKS_PER_WINDOW);
        // One ACK covers earlier ones that were lost.
        run.answer(3);
        assert_eq!(run.send(1000, MTU), 4 * WINDOW / MTU / MARKS_PER_WINDOW);
    }

    #[test]
    fn a_short_packet_costs_the_minimum() {
        let mut run = Run::new();
        assert_eq!(run.send(1000, 8), WINDOW / MIN_COST);
    }

    #[test]
    fn the_last_packet_is_marked_unless_the_burst_is_small() {
        let mut run = Run::new();
        assert_eq!(run.send(1, 8), 1);
        assert!(run.unanswered.is_empty() && run.pace.deadline().is_none(), "a small burst is not marked");
        assert_eq!(run.send(1, MTU), 1);
        run.answer(0);
        assert_eq!((run.pace.sent, run.pace.deadline()), (run.pace.taken, None));
    }

    #[test]
    fn a_silent_peer_delays_the_sender_once() {
        let mut run = Run::new();
        run.send(1000, MTU);
        assert_eq!(run.pace.deadline(), Some(LATE));
        run.pace.on_timeout();
        assert_eq!(run.send(1000, MTU), 1000);
        // An ACK of the last mark makes the sender wait for ACKs again.
        let last = run.unanswered.len() - 1;
        run.answer(last);
        assert_eq!(run.send(1000, MTU), WINDOW / MTU);
    }

    #[test]
    fn a_peer_counts_as_silent_after_max_missed_timeouts() {
        let mut run = Run::new();
        run.send(1000, MTU);
        run.answer(0);
        let windows = (0..100)
            .take_while(|_| {
                run.pace.on_timeout();
                run.send(1000, MTU) < 1000
            })
            .count();
        assert_eq!(windows, usize::from(MAX_MISSED) - 1);
    }

    #[test]
    fn an_unexpected_ack_only_marks_the_peer_as_answering() {
        let mut run = Run::new();
        run.send(1000, MTU);
        let first = run.unanswered[0];
        run.answer(0);
        let taken = run.pace.taken;
        run.pace.on_answer(Time(2), first);
        run.pace.on_answer(Time(2), run.psn.plus(5));
        assert_eq!((run.pace.taken, run.pace.peer), (taken, Peer::Answers { missed: 0 }));
    }

    #[test]
    fn a_shrunk_window_never_blocks_without_an_outstanding_mark() {
        let mut run = Run::new();
        assert_eq!(run.send(1, 8), 1);
        run.pace.window = FixedWindow { bytes: 512 }.into();
        assert_eq!(run.send(10, MTU), 1, "the marked packet blocks the next one");
        assert_eq!(run.unanswered.len(), 1);
    }
}
