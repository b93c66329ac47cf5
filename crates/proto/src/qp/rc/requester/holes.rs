//! Detects missing READ and atomic responses and requests them again.
//!
//! A lost response and a reordered one look the same at first: a PSN is skipped. The requester requests it again immediately,
//! because an early repair is cheap. When skipped responses turn out to be late, the requester becomes tolerant and
//! waits one or two RTTs before it requests them. Data that arrived is kept. A response that may still be in flight is not
//! requested twice.
//!
//! A repeated request always starts at the lowest missing PSN: Linux Soft-RoCE discards everything before the point
//! where a READ last restarted.

use super::super::super::io::Io;
use super::super::super::sq::{SendQueue, SendWqe};
use super::super::super::{Host, TxError};
use super::Requester;
use crate::Time;
use crate::cc::CongestionControl;
use crate::ids::Psn;

/// Number of repeats that are delayed after reordering was observed.
const TOLERANT_FOR: u8 = 16;
/// Repeats of one request that are sent without delay.
const IMMEDIATE_REPEATS: u8 = 3;
/// A response that takes longer than this counts as lost.
const MAX_LATE_NS: u64 = 20_000_000;
/// Number of times the delay between repeats doubles.
const MAX_DOUBLINGS: u8 = 4;

/// An outstanding READ, atomic, flush or atomic write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub(super) first: Psn,
    pub(super) last: Psn,
    /// Times of the first and the latest transmission.
    sent_at: Time,
    requested_at: Time,
    /// The first PSN that was requested only once.
    requested_to: Psn,
    repeat_count: u8,
    /// All responses arrived; the request waits for earlier ones.
    whole: bool,
}

/// Position of a PSN in the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct SqPosition {
    /// Index of the work request.
    pub(super) number: u64,
    /// Index of the packet in the request.
    pub(super) index: u32,
    pub(super) wqe: SendWqe,
}

impl Requester {
    /// Records that the next `packets` PSNs await a response.
    pub(super) fn await_response(&mut self, packets: u32, now: Time) {
        let (first, last) = (self.psn, self.psn.plus(packets - 1));
        let requested_to = if first.is_before(self.high) { last.plus(1) } else { first };
        self.reads.push_back(Awaited {
            first,
            last,
            sent_at: now,
            requested_at: now,
            requested_to,
            repeat_count: 0,
            whole: false,
        });
    }

    /// Returns the work request of the outstanding PSN `psn`.
    pub(super) fn position_of(&self, psn: Psn, sq: &SendQueue) -> Option<SqPosition> {
        let mut index = u32::try_from(psn.distance_from(self.una)).ok()? + self.acked;
        for number in sq.head()..sq.tail() {
            let wqe = sq.get(number).copied()?;
            if index < wqe.packets {
                return Some(SqPosition { number, index, wqe });
            }
            index -= wqe.packets;
        }
        None
    }

    /// Returns the lowest and the highest missing PSN in `first..=last`.
    pub(super) fn missing(&self, first: Psn, last: Psn) -> Option<(Psn, Psn)> {
        let count = u32::try_from(last.distance_from(first)).ok()?;
        let low = (0..=count).map(|n| first.plus(n)).find(|psn| !self.early.holds(*psn))?;
        let high = (0..=count).map(|n| last.minus(n)).find(|psn| !self.early.holds(*psn))?;
        Some((low, high))
    }

    /// How long a response may take before it is requested again.
    fn wait_ns(&self, awaited: &Awaited) -> u64 {
        self.clock.patience_ns().max(self.late_ns) << awaited.repeat_count.min(MAX_DOUBLINGS)
    }

    /// Requests overdue responses that others overtook.
    pub(super) fn ask_for_holes<H: Host>(&mut self, sq: &SendQueue, io: &mut Io<'_, H>) {
        for at in 0..self.reads.len() {
            let awaited = self.reads[at];
            if !awaited.first.is_before(self.reached) {
                break;
            }
            let is_overdue = io.now.since_ns(awaited.requested_at) >= self.wait_ns(&awaited);
            let is_immediate = self.tolerance == 0 && awaited.repeat_count < IMMEDIATE_REPEATS;
            if awaited.whole || !(is_overdue || is_immediate) {
                continue;
            }
            let first = if awaited.first.is_before(self.una) { self.una } else { awaited.first };
            let complete = awaited.last.is_before(self.reached);
            let last = if complete { awaited.last } else { self.reached.minus(1) };
            let Some((low, high)) = self.missing(first, last) else {
                self.reads[at].whole = complete;
                continue;
            };
            if !is_overdue && high.is_before(awaited.requested_to) {
                continue;
            }
            if self.request_again(low, high, sq, io).is_err() {
                break;
            }
            let awaited = &mut self.reads[at];
            (awaited.requested_at, awaited.requested_to) = (io.now, high.plus(1));
            awaited.repeat_count = awaited.repeat_count.saturating_add(1);
        }
    }

    /// Repeats the request for the PSNs `low..=high`. The cursor stays.
    fn request_again<H: Host>(
        &mut self,
        low: Psn,
        high: Psn,
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), TxError> {
        let Some(position) = self.position_of(low, sq) else { return Ok(()) };
        let packets = high.distance_from(low) as u32 + 1;
        let bytes = self.send_request(&position, low, packets, sq, io)?;
        self.tolerance = self.tolerance.saturating_sub(1);
        self.late_ns -= self.late_ns / 16;
        self.clock.forget_sample(low, high);
        self.pacer.on_sent(packets, bytes);
        self.cc.on_sent(bytes);
        if self.lost_at.is_none_or(|at| io.now.since_ns(at) >= self.clock.patience_ns()) {
            self.lost_at = Some(io.now);
            self.cc.on_loss(io.now);
        }
        Ok(())
    }

    /// Handles a response that others overtook. It was late, not lost, if it was requested only once, or again only a moment ago.
    pub(super) fn on_overtaken(&mut self, psn: Psn, now: Time) {
        let Some(awaited) = self.reads.iter().find(|a| !a.last.is_before(psn)) else { return };
        let too_soon = now.since_ns(awaited.requested_at) < self.clock.patience_ns() / 4;
        if !psn.is_before(awaited.requested_to) || too_soon {
            self.late_ns = self.late_ns.max(now.since_ns(awaited.sent_at)).min(MAX_LATE_NS);
            self.on_reordering();
        }
    }

    /// Records that the network reorders packets.
    pub(super) fn on_reordering(&mut self) {
        self.tolerance = TOLERANT_FOR;
    }
}
