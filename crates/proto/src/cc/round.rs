//! Round trips, counted in acknowledged bytes.

use super::Feedback;

/// Detects the end of a round: more is acknowledged than was in flight at its start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    delivered: u64,
    /// None before the first ACK, which only begins a round.
    end: Option<u64>,
}

impl Round {
    /// Counts an ACK. Returns true if it ends the round; the next round then begins.
    pub(super) fn is_over(&mut self, feedback: &Feedback<'_>) -> bool {
        self.delivered += u64::from(feedback.acked);
        let over = self.end.map(|end| self.delivered > end);
        if over != Some(false) {
            self.end = Some(self.delivered + u64::from(feedback.in_flight));
        }
        over == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    #[test]
    fn a_round_ends_with_the_first_byte_sent_after_its_begin() {
        let mut round = Round::default();
        let ack = |in_flight| Feedback { in_flight, ..Feedback::new(Time(0), 1000, None) };
        for _ in 0..4 {
            assert!(!round.is_over(&ack(3000)));
        }
        assert!(round.is_over(&ack(3000)));
    }
}
