//! Whether to guess what arrives next.
//!
//! A right guess saves the copy of a payload; a wrong one costs two more. So a guess is made only where the last train
//! leads on to more of its kind, soon after that train, and not for a while after guesses that were wrong: many queue
//! pairs that take turns pay next to nothing for it.

use ferroce_proto::Time;
use ferroce_proto::qp::Expected;

/// Fewer bytes than this are not worth it.
const LEAST_BYTES: u64 = 16 * 1024;
/// Payloads shorter than this are copied faster than they are split off.
const LEAST_PAYLOAD: u32 = 1024;
/// A guess is good for so long. A peer that stops in the middle of a message must not make us write to its target when,
/// much later, something else arrives: the program may have given the transfer up and use that memory again.
const LAPSES_AFTER_NS: u64 = 250_000;
/// Batches to let pass after a wrong guess, at first and at most; doubled each time.
const PAUSE: std::ops::RangeInclusive<u32> = 2..=256;

#[derive(Debug)]
pub(super) struct Forecaster {
    next: Option<(Expected, Time)>,
    pause_left: u32,
    pause: u32,
}

impl Forecaster {
    pub(super) fn new() -> Self {
        Forecaster { next: None, pause_left: 0, pause: *PAUSE.start() }
    }

    /// Whether there may be a guess at all: only then it is worth to look at the clock.
    pub(super) fn has_any(&self) -> bool {
        self.next.is_some()
    }

    /// The guess, if it is worth making now.
    pub(super) fn guess(&mut self, now: Time) -> Option<Expected> {
        let (expected, since) = self.next?;
        if now.since_ns(since) > LAPSES_AFTER_NS {
            self.next = None;
            return None;
        }
        Some(expected)
    }

    /// A batch was taken in which so many packets were put in place, and so many by mistake; `next` is what its last
    /// packet leads to.
    pub(super) fn learn(&mut self, (placed, misplaced): (usize, usize), next: Option<Expected>, now: Time) {
        self.pause_left = self.pause_left.saturating_sub(1);
        if misplaced > placed {
            self.pause_left = self.pause;
            self.pause = (self.pause * 2).min(*PAUSE.end());
        } else if placed > 0 {
            self.pause = (self.pause / 2).max(*PAUSE.start());
        }
        let is_worth = |e: &Expected| e.bytes() >= LEAST_BYTES && e.payload_len >= LEAST_PAYLOAD;
        self.next = next.filter(|e| self.pause_left == 0 && is_worth(e)).map(|e| (e, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::qp::Target;
    use ferroce_proto::wire::{Opcode, Operation, Service};
    use ferroce_proto::{Gid, PdId, Psn, Qpn, RKey};

    fn expected(packets: u32) -> Option<Expected> {
        Some(Expected {
            qpn: Qpn::new(7),
            from: Gid::ZERO,
            opcode: Opcode::new(Service::Rc, Operation::WriteMiddle),
            psn: Psn::new(1),
            packets,
            payload_len: 4096,
            pd: PdId(1),
            target: Target::Remote { rkey: RKey(1), addr: 0 },
        })
    }

    #[test]
    fn a_guess_lapses() {
        let mut f = Forecaster::new();
        f.learn((0, 0), expected(8), Time(1000));
        assert_eq!(f.guess(Time(1000 + LAPSES_AFTER_NS)), expected(8));
        assert_eq!(f.guess(Time(1001 + LAPSES_AFTER_NS)), None);
        assert!(!f.has_any());
        f.learn((0, 0), expected(3), Time(1000));
        assert!(!f.has_any(), "too little to bother");
    }

    #[test]
    fn wrong_guesses_are_made_less_and_less_often() {
        let mut f = Forecaster::new();
        let mut guesses = 0;
        for _ in 0..10_000 {
            let guessed = f.guess(Time(0)).is_some();
            guesses += u32::from(guessed);
            f.learn(if guessed { (0, 15) } else { (0, 0) }, expected(8), Time(0));
        }
        assert!((30..60).contains(&guesses), "{guesses} wrong guesses in 10000 batches");
        f = Forecaster::new();
        f.learn((0, 0), expected(8), Time(0));
        for _ in 0..100 {
            assert!(f.guess(Time(0)).is_some());
            f.learn((14, 1), expected(8), Time(0));
        }
    }
}
