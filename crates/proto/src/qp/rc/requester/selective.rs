//! Selective repeat: retransmits only the packets that the peer reports missing.
//!
//! The first sequence NAK of any peer rewinds the cursor. If that NAK carries the selective bit, retransmissions carry
//! it too. From then on the peer's NAKs list the packets it holds beyond the missing one. Other implementations never
//! set the bit and see plain go-back-N.

use super::super::super::io::Io;
use super::super::super::sq::SendQueue;
use super::super::super::{Host, TxError};
use super::super::responder::REPORT_LEN;
use super::Requester;
use crate::cc::CongestionControl;
use crate::ids::Psn;
use alloc::collections::VecDeque;

/// Above this number of missing packets, go-back-N is cheaper than selective repeat.
const MAX_MISSING: usize = 128;
/// Packets that may overtake a retransmission before it counts as lost.
const OVERTAKEN_BY: u32 = 3;

/// Selective retransmissions that are not acknowledged yet.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    sent: VecDeque<Repair>,
}

#[derive(Clone, Copy, Debug)]
struct Repair {
    psn: Psn,
    /// `high` at the time of the retransmission: if the peer holds that PSN, this retransmission should have arrived.
    before: Psn,
}

impl Repairs {
    /// Removes entries older than the first missing packet.
    fn pass(&mut self, first_missing: Psn) {
        self.sent.retain(|repair| !repair.psn.is_before(first_missing));
    }

    /// Whether to retransmit a missing packet while the peer holds `highest`.
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
    /// Handles a report: the peer misses `first` and holds the later packets whose bits are set.
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
        // Ignore a report about PSNs that were never sent, and an old one about PSNs still to be sent.
        if !highest.is_before(self.psn) || self.clock.is_paused(io.now) {
            return;
        }
        self.repairs.pass(first);
        let missing =
            || core::iter::once(first).chain((0..last).filter(|&k| !is_set(k)).map(|k| first.plus(1 + k)));
        if missing().count() > MAX_MISSING {
            return self.recover(first, sq, io);
        }
        for psn in missing() {
            if !self.repairs.is_due(psn, highest) {
                continue;
            }
            match self.repair(psn, sq, io) {
                Ok(bytes) => self.cc.on_hole(io.now, bytes),
                // A packet that cannot be sent now stays missing; the next report lists it again.
                Err(Some(TxError::Full)) => break,
                Err(_) => return self.recover(psn, sq, io),
            }
        }
    }

    /// Retransmits one packet; the cursor stays. Returns `Err(None)` if the packet cannot be sent alone.
    fn repair<H: Host>(
        &mut self,
        psn: Psn,
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<u32, Option<TxError>> {
        let position =
            self.position_of(psn, sq).filter(|position| !position.wqe.awaits_response()).ok_or(None)?;
        let (_, bytes) = self.send_packets(&position, psn, true, 1, sq, io).map_err(Some)?;
        self.repairs.on_sent(psn, self.high);
        self.clock.forget_sample(psn, psn);
        self.send_times.forget(psn, 1);
        self.pacer.on_sent(1, bytes);
        self.cc.on_sent(bytes);
        Ok(bytes)
    }
}
