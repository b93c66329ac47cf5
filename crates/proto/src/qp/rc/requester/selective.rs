//! Selective repeat: the peer says which packets it has, and only the others are sent again.
//!
//! Any peer's first sequence NAK makes the cursor go back. If that NAK was marked, what is sent again is marked too, and
//! from then on the peer keeps nothing back: its NAKs carry a report of what it has behind the packet it misses. A foreign
//! peer sends no marked NAK, and never sees more than a requester that goes back.

use super::super::super::io::Io;
use super::super::super::sq::SendQueue;
use super::super::super::{Host, TxError};
use super::super::responder::REPORT_LEN;
use super::Requester;
use crate::cc::CongestionControl;
use crate::ids::Psn;
use alloc::collections::VecDeque;

/// More missing packets than this in one report are no accident: going back costs less than asking for each.
const MOST_MISSING: usize = 128;
/// Packets that may overtake one that was sent again before it counts as lost again.
const OVERTAKEN_BY: u32 = 3;

/// Packets that were sent again out of turn and are not known to have arrived.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    sent: VecDeque<Repair>,
}

#[derive(Clone, Copy, Debug)]
struct Repair {
    psn: Psn,
    /// The first number that was not sent yet when it was sent again: whoever has that one would have this.
    before: Psn,
}

impl Repairs {
    /// Forgets what is older than the first missing packet.
    fn pass(&mut self, first_missing: Psn) {
        self.sent.retain(|repair| !repair.psn.is_before(first_missing));
    }

    /// Whether to send a packet again that is missing while the peer has `highest`.
    fn is_due(&self, psn: Psn, highest: Psn) -> bool {
        let last = self.sent.iter().rev().find(|repair| repair.psn == psn);
        last.is_none_or(|repair| highest.is_after(repair.before.plus(OVERTAKEN_BY)))
    }

    fn on_sent(&mut self, psn: Psn, before: Psn) {
        self.sent.retain(|repair| repair.psn != psn);
        self.sent.push_back(Repair { psn, before });
    }
}

impl Requester {
    /// The peer misses `first` and has those of the packets behind it whose bits are set.
    pub(super) fn on_report<H: Host>(
        &mut self,
        first: Psn,
        report: &[u8],
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) {
        let is_set = |k: u32| report[k as usize / 8] >> (k % 8) & 1 != 0;
        let bits = report.len().min(REPORT_LEN) as u32 * 8;
        let Some(last) = (0..bits).rev().find(|&k| is_set(k)) else { return self.recover(first, sq, io) };
        let highest = first.plus(1 + last);
        // A report of packets that were never sent is nonsense; one of packets that will be sent anyway is old.
        if !highest.is_before(self.psn) || self.clock.is_paused(io.now) {
            return;
        }
        self.repairs.pass(first);
        let missing =
            || core::iter::once(first).chain((0..last).filter(|&k| !is_set(k)).map(|k| first.plus(1 + k)));
        if missing().count() > MOST_MISSING {
            return self.recover(first, sq, io);
        }
        for psn in missing() {
            if !self.repairs.is_due(psn, highest) {
                continue;
            }
            match self.repair(psn, sq, io) {
                Ok(bytes) => self.cc.on_hole(io.now, bytes),
                // What is not sent now stays missing, and the next report says so.
                Err(Some(TxError::Full)) => break,
                Err(_) => return self.recover(psn, sq, io),
            }
        }
    }

    /// Sends one packet again; the cursor stays. `Err(None)` if it is not one that can be sent by itself.
    fn repair<H: Host>(
        &mut self,
        psn: Psn,
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<u32, Option<TxError>> {
        let place = self.place_of(psn, sq).filter(|place| !place.wqe.awaits_response()).ok_or(None)?;
        let (_, bytes) = self.send_packets(&place, psn, true, 1, sq, io).map_err(Some)?;
        self.repairs.on_sent(psn, self.high);
        self.clock.forget_sample(psn, psn);
        self.cc.on_sent(io.now, bytes);
        Ok(bytes)
    }
}
