//! How far an unreliable connection may run ahead of its peer.
//!
//! Nothing is sent twice here: what finds no room at the peer is gone, and wires under such connections are made lossless for that
//! reason. Between two ferroce ends the ends see to it themselves. Now and then a packet is marked, by a reserved bit that
//! others ignore; whoever knows it answers when it has taken that packet. What is marked and
//! unanswered may be as much as the congestion control allows.
//!
//! It stays unreliable: a peer that does not answer, because it is no ferroce or is gone, is waited for once and then no more.

use crate::Time;
use crate::cc::{CongestionControl, Controller};
use crate::ids::Psn;

/// So many marks to a window: the peer's answers come before the window is used up.
const MARKS_PER_WINDOW: u32 = 8;
/// Marks that are remembered. More than a window has, because a peer is heard again after it was given up.
const REMEMBERED: usize = 16;
/// A packet fills at least so much of the peer's buffer, however short it is.
const LEAST_COST: u32 = 1024;
/// Less than this that nobody was asked about is not worth asking.
const LITTLE: u64 = 4096;
/// How long an answer is waited for. Long enough for a peer that has to share its processor.
const PATIENCE_NS: u64 = 200_000_000;
/// A peer that has answered before is given up after so many times.
const MOST_MISSED: u8 = 8;

/// What is known of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// It was not asked yet, or has not had the time to answer.
    Unknown,
    /// It answers, except for the last so many times.
    Answers { missed: u8 },
    /// It does not answer: nobody waits for it.
    Silent,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    psn: Psn,
    /// What was sent up to here.
    sent: u64,
}

#[derive(Debug)]
pub(super) struct Pace {
    window: Controller,
    peer: Peer,
    /// What was sent since the connection was made, what of it the peer took, and how far it was asked.
    sent: u64,
    taken: u64,
    marked: u64,
    marks: [Mark; REMEMBERED],
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
            marks: [Mark::default(); REMEMBERED],
            next_mark: 0,
            deadline: None,
        }
    }

    /// A new connection, or none any more.
    pub(super) fn congestion(&mut self) -> &mut Controller {
        &mut self.window
    }

    pub(super) fn restart(&mut self) {
        self.window.on_drained();
        (self.peer, self.deadline) = (Peer::Unknown, None);
        (self.sent, self.taken, self.marked) = (0, 0, 0);
        self.marks = [Mark::default(); REMEMBERED];
    }

    fn cost(len: u32) -> u64 {
        u64::from(len.max(LEAST_COST))
    }

    /// Whether a packet may leave. If nothing that was sent is marked, it may: no answer would ever make room for it.
    pub(super) fn allows(&self, len: u32) -> bool {
        let under_way = self.sent - self.taken;
        self.peer == Peer::Silent
            || self.marked <= self.taken
            || under_way + Pace::cost(len) <= u64::from(self.window.window())
    }

    /// Whether the next packet should be marked. The last for now is, unless it is little.
    pub(super) fn wants_mark(&self, len: u32, is_last_for_now: bool) -> bool {
        let unasked = self.sent + Pace::cost(len) - self.marked.max(self.taken);
        let interval = u64::from(self.window.window() / MARKS_PER_WINDOW);
        unasked >= interval || (is_last_for_now && unasked > LITTLE)
    }

    /// A packet left.
    pub(super) fn on_sent(&mut self, now: Time, psn: Psn, len: u32, is_marked: bool) {
        let cost = Pace::cost(len);
        self.sent += cost;
        self.window.on_sent(now, cost as u32);
        if is_marked {
            self.marked = self.sent;
            self.marks[self.next_mark % REMEMBERED] = Mark { psn, sent: self.sent };
            self.next_mark += 1;
            self.deadline = self.deadline.or(Some(now + PATIENCE_NS));
        }
    }

    /// The peer says that it took this packet.
    pub(super) fn on_answer(&mut self, now: Time, psn: Psn) {
        self.peer = Peer::Answers { missed: 0 };
        let taken = self.taken;
        let Some(mark) = self.marks.iter().find(|mark| mark.psn == psn && mark.sent > taken) else { return };
        self.window.on_ack(now, u32::try_from(mark.sent - taken).unwrap_or(u32::MAX), None, false);
        self.taken = mark.sent;
        if self.taken == self.sent {
            self.window.on_drained();
        }
        self.deadline = (self.marked > self.taken).then(|| now + PATIENCE_NS);
    }

    /// When [`Self::on_timeout`] wants to be called.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// No answer came in time: what was sent is no longer waited for.
    pub(super) fn on_timeout(&mut self) {
        self.peer = match self.peer {
            Peer::Answers { missed } if missed + 1 < MOST_MISSED => Peer::Answers { missed: missed + 1 },
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
    const LATE: Time = Time(PATIENCE_NS);

    struct Run {
        pace: Pace,
        psn: Psn,
        /// Marked and not answered.
        asked: Vec<Psn>,
    }

    impl Run {
        fn new() -> Run {
            Run {
                pace: Pace::new(FixedWindow { bytes: WINDOW }.into()),
                psn: Psn::new(0xff_fff0),
                asked: Vec::new(),
            }
        }

        /// Sends until the pace forbids it, but no more than this; returns how many packets left.
        fn send(&mut self, most: u32, len: u32) -> u32 {
            (0..most).take_while(|&n| self.send_one(len, n + 1 == most)).count() as u32
        }

        fn send_one(&mut self, len: u32, is_last: bool) -> bool {
            let may = self.pace.allows(len);
            if may {
                let mark = self.pace.wants_mark(len, is_last);
                self.pace.on_sent(Time(0), self.psn, len, mark);
                self.asked.extend(mark.then_some(self.psn));
                self.psn = self.psn.plus(1);
            }
            may
        }

        fn answer(&mut self, at: usize) {
            let psn = self.asked[at];
            self.asked.drain(..=at);
            self.pace.on_answer(Time(1), psn);
        }
    }

    #[test]
    fn no_more_than_a_window_is_unanswered_and_answers_make_room() {
        let mut run = Run::new();
        assert_eq!(run.send(1000, MTU), WINDOW / MTU);
        assert_eq!(run.asked.len(), MARKS_PER_WINDOW as usize);
        run.answer(0);
        assert_eq!(run.send(1000, MTU), WINDOW / MTU / MARKS_PER_WINDOW);
        // One answer stands for those that were lost before it.
        run.answer(3);
        assert_eq!(run.send(1000, MTU), 4 * WINDOW / MTU / MARKS_PER_WINDOW);
    }

    #[test]
    fn short_packets_count_for_more_than_their_bytes() {
        let mut run = Run::new();
        assert_eq!(run.send(1000, 8), WINDOW / LEAST_COST);
    }

    #[test]
    fn the_last_packet_is_marked_unless_there_was_little() {
        let mut run = Run::new();
        assert_eq!(run.send(1, 8), 1);
        assert!(run.asked.is_empty() && run.pace.deadline().is_none(), "nobody is asked about so little");
        assert_eq!(run.send(1, MTU), 1);
        run.answer(0);
        assert_eq!((run.pace.sent, run.pace.deadline()), (run.pace.taken, None));
    }

    #[test]
    fn a_peer_that_never_answers_is_waited_for_once() {
        let mut run = Run::new();
        run.send(1000, MTU);
        assert_eq!(run.pace.deadline(), Some(LATE));
        run.pace.on_timeout();
        assert_eq!(run.send(1000, MTU), 1000);
        // It answers after all, to the last of the marks: from now on it is waited for again.
        let last = run.asked.len() - 1;
        run.answer(last);
        assert_eq!(run.send(1000, MTU), WINDOW / MTU);
    }

    #[test]
    fn a_peer_that_answered_is_given_up_after_some_time() {
        let mut run = Run::new();
        run.send(1000, MTU);
        run.answer(0);
        let windows = (0..100)
            .take_while(|_| {
                run.pace.on_timeout();
                run.send(1000, MTU) < 1000
            })
            .count();
        assert_eq!(windows, usize::from(MOST_MISSED) - 1);
    }

    #[test]
    fn an_answer_to_nothing_changes_nothing_but_what_is_known_of_the_peer() {
        let mut run = Run::new();
        run.send(1000, MTU);
        let first = run.asked[0];
        run.answer(0);
        let taken = run.pace.taken;
        run.pace.on_answer(Time(2), first);
        run.pace.on_answer(Time(2), run.psn.plus(5));
        assert_eq!((run.pace.taken, run.pace.peer), (taken, Peer::Answers { missed: 0 }));
    }

    #[test]
    fn a_smaller_window_never_waits_for_an_answer_that_nobody_was_asked_for() {
        let mut run = Run::new();
        assert_eq!(run.send(1, 8), 1);
        run.pace.window = FixedWindow { bytes: 512 }.into();
        assert_eq!(run.send(10, MTU), 1, "marked, and then waited for");
        assert_eq!(run.asked.len(), 1);
    }
}
