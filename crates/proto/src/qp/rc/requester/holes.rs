//! Which answers are missing among those that arrived, and when to ask for them once more.
//!
//! A network that loses packets and one that reorders them look the same at first: an answer is skipped. It is asked for
//! at once, because a loss repaired early costs little. Where the skipped ones turn out to be late rather than lost, the
//! requester becomes tolerant and gives them a round trip or two before it asks. Either way the data that did arrive is
//! kept, and nothing is asked for again that may still be on its way because of the last time.
//!
//! Of one request, the question always starts at the lowest missing number: Linux Soft-RoCE forgets what is before the
//! place from which a READ was last repeated.

use super::super::super::io::Io;
use super::super::super::sq::{SendQueue, SendWqe};
use super::super::super::{Host, TxError};
use super::Requester;
use crate::Time;
use crate::cc::CongestionControl;
use crate::ids::Psn;

/// How many questions are put late after the network was seen to reorder.
const TOLERANT_FOR: u8 = 16;
/// How many questions after one request are put without waiting.
const HASTY_QUESTIONS: u8 = 3;
/// An answer that takes longer than this is lost for all practical purposes.
const MAX_LATE_NS: u64 = 20_000_000;
/// Each question waits twice as long as the one before, so often.
const MAX_DOUBLINGS: u8 = 4;

/// A READ request, atomic, flush or atomic write without its whole answer, or behind one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub(super) first: Psn,
    pub(super) last: Psn,
    /// When it was asked for the first time, and the last.
    sent_at: Time,
    asked_at: Time,
    /// The first number that was asked for only once.
    asked_to: Psn,
    questions: u8,
    /// Everything is there; it waits for what is before it.
    whole: bool,
}

/// Where a sequence number lies in the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Number of the work request.
    pub(super) number: u64,
    /// Packets of it before this one.
    pub(super) index: u32,
    pub(super) wqe: SendWqe,
}

impl Requester {
    /// Notes that `packets` numbers from the cursor on await a response.
    pub(super) fn await_response(&mut self, packets: u32, now: Time) {
        let (first, last) = (self.psn, self.psn.plus(packets - 1));
        let asked_to = if first.is_before(self.high) { last.plus(1) } else { first };
        self.reads.push_back(Awaited {
            first,
            last,
            sent_at: now,
            asked_at: now,
            asked_to,
            questions: 0,
            whole: false,
        });
    }

    /// The work request that `psn`, which has no answer yet, belongs to.
    pub(super) fn place_of(&self, psn: Psn, sq: &SendQueue) -> Option<Place> {
        let mut index = u32::try_from(psn.distance_from(self.una)).ok()? + self.acked;
        for number in sq.head()..sq.tail() {
            let wqe = sq.get(number).copied()?;
            if index < wqe.packets {
                return Some(Place { number, index, wqe });
            }
            index -= wqe.packets;
        }
        None
    }

    /// The lowest and the highest number from `first` to `last` that are not there.
    pub(super) fn missing(&self, first: Psn, last: Psn) -> Option<(Psn, Psn)> {
        let count = u32::try_from(last.distance_from(first)).ok()?;
        let low = (0..=count).map(|n| first.plus(n)).find(|psn| !self.early.holds(*psn))?;
        let high = (0..=count).map(|n| last.minus(n)).find(|psn| !self.early.holds(*psn))?;
        Some((low, high))
    }

    /// How long an answer may take before it is asked for again.
    fn wait_ns(&self, awaited: &Awaited) -> u64 {
        self.clock.patience_ns().max(self.late_ns) << awaited.questions.min(MAX_DOUBLINGS)
    }

    /// Asks for answers that others overtook, if it is time to.
    pub(super) fn ask_for_holes<H: Host>(&mut self, sq: &SendQueue, io: &mut Io<'_, H>) {
        for at in 0..self.reads.len() {
            let awaited = self.reads[at];
            if !awaited.first.is_before(self.reached) {
                break;
            }
            let rested = io.now.since_ns(awaited.asked_at) >= self.wait_ns(&awaited);
            let hasty = self.tolerance == 0 && awaited.questions < HASTY_QUESTIONS;
            if awaited.whole || !(rested || hasty) {
                continue;
            }
            let first = if awaited.first.is_before(self.una) { self.una } else { awaited.first };
            let complete = awaited.last.is_before(self.reached);
            let last = if complete { awaited.last } else { self.reached.minus(1) };
            let Some((low, high)) = self.missing(first, last) else {
                self.reads[at].whole = complete;
                continue;
            };
            if !rested && high.is_before(awaited.asked_to) {
                continue;
            }
            if self.ask(low, high, sq, io).is_err() {
                break;
            }
            let awaited = &mut self.reads[at];
            (awaited.asked_at, awaited.asked_to) = (io.now, high.plus(1));
            awaited.questions = awaited.questions.saturating_add(1);
        }
    }

    /// Sends the request for the numbers from `low` to `high` again, without moving the cursor.
    fn ask<H: Host>(
        &mut self,
        low: Psn,
        high: Psn,
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), TxError> {
        let Some(place) = self.place_of(low, sq) else { return Ok(()) };
        let packets = high.distance_from(low) as u32 + 1;
        let bytes = self.send_request(&place, low, packets, sq, io)?;
        self.tolerance = self.tolerance.saturating_sub(1);
        self.late_ns -= self.late_ns / 16;
        self.clock.forget_sample(low, high);
        self.cc.on_sent(io.now, bytes);
        if self.lost_at.is_none_or(|at| io.now.since_ns(at) >= self.clock.patience_ns()) {
            self.lost_at = Some(io.now);
            self.cc.on_loss(io.now);
        }
        Ok(())
    }

    /// An answer came that others had overtaken. If nobody asked for it again, or only just now, it was late, not lost.
    pub(super) fn on_overtaken(&mut self, psn: Psn, now: Time) {
        let Some(awaited) = self.reads.iter().find(|a| !a.last.is_before(psn)) else { return };
        let too_soon = now.since_ns(awaited.asked_at) < self.clock.patience_ns() / 4;
        if !psn.is_before(awaited.asked_to) || too_soon {
            self.late_ns = self.late_ns.max(now.since_ns(awaited.sent_at)).min(MAX_LATE_NS);
            self.on_reordering();
        }
    }

    /// The network reorders: what is skipped is not lost.
    pub(super) fn on_reordering(&mut self) {
        self.tolerance = TOLERANT_FOR;
    }
}
