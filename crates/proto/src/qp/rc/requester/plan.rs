//! Plans the next packets before the host accepts them, and commits the plan afterwards.

use super::super::super::Host;
use super::super::super::io::Io;
use super::super::super::sq::{SendQueue, SendWqe};
use super::Requester;
use super::transmit::ack_every;
use crate::Time;
use crate::ids::Psn;
use crate::verbs::SendFlags;
use crate::wire::Syndrome;

/// Short requests may be coalesced while at least this many packets are in flight. A request and a notification behind it
/// stay below this number.
const BUSY_PACKETS: u32 = 8;
/// Requests that leave in one batch at the latest.
const MAX_COALESCED: u64 = 16;
/// Longest message that waits for others. Longer ones have enough packets for a batch of their own.
const SHORT_BYTES: u32 = 8192;

/// The next packets of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// First PSN.
    pub(crate) psn: Psn,
    /// Packets that differ only in PSN and payload.
    pub(crate) count: u32,
    /// Whether the last of them requests an ACK.
    pub(crate) ack_req: bool,
}

/// The last packet of a message and its position in the send queue.
struct Tail<'a> {
    is_signaled: bool,
    /// Requests in the queue, including this one, and the queue depth.
    outstanding: usize,
    depth: usize,
    next: Option<&'a SendWqe>,
}

impl Requester {
    /// Whether a queued request has packets that were not sent in this pass.
    #[inline]
    pub(crate) fn has_unsent(&self, sq: &SendQueue) -> bool {
        self.cur != sq.tail() || self.una.is_before(self.reached)
    }

    /// Whether the peer will respond soon although nothing more is sent, and enough is in flight to wait for it.
    #[inline]
    fn is_busy(&self) -> bool {
        let in_flight = self.in_flight();
        in_flight >= BUSY_PACKETS && self.since_ack_req < in_flight && self.is_undisturbed()
    }

    /// Whether the unsent requests may wait for more of their kind.
    pub(crate) fn may_coalesce(&self, sq: &SendQueue) -> bool {
        let is_short = sq.get(sq.tail().wrapping_sub(1)).is_some_and(|last| last.len <= SHORT_BYTES);
        is_short && self.is_busy() && sq.tail() - self.cur < MAX_COALESCED
    }

    /// Plans a single-packet message that is about to be posted. Returns `None` if it must wait in the queue, or if it may
    /// wait there because the host `coalesces`.
    #[inline]
    pub(crate) fn plan_only(
        &self,
        flags: SendFlags,
        is_signaled: bool,
        mtu: u32,
        sq: &SendQueue,
        coalesces: impl FnOnce() -> bool,
    ) -> Option<Plan> {
        let window = || self.window_packets(mtu);
        let is_next = self.cur == sq.tail() && self.sent == 0 && self.psn == self.high;
        let is_fenced = flags.contains(SendFlags::FENCE) && !self.reads.is_empty();
        let may_join = || self.in_flight() < window() && !(self.is_busy() && coalesces());
        let is_open = self.una == self.psn || may_join();
        if !is_next || !self.is_undisturbed() || is_fenced || !is_open || sq.is_full() || self.pacer.is_on() {
            return None;
        }
        let (outstanding, depth) = (sq.outstanding() + 1, sq.depth());
        let tail = Tail { is_signaled, outstanding, depth, next: None };
        Some(Plan { psn: self.psn, count: 1, ack_req: self.needs_ack(Some(tail), window, mtu) })
    }

    /// Plans the next packets of the request under the cursor, at most `most`.
    pub(super) fn plan(&self, wqe: &SendWqe, window: u32, most: u32, sq: &SendQueue) -> Plan {
        let (psn, mtu) = (self.psn, wqe.segment);
        let count = self.run_len(wqe, window).min(most);
        if count > 1 {
            return Plan { psn, count, ack_req: false };
        }
        let tail = (self.sent + 1 == wqe.packets).then(|| Tail {
            is_signaled: wqe.signaled,
            outstanding: sq.outstanding(),
            depth: sq.depth(),
            next: sq.get(self.cur + 1),
        });
        Plan { psn, count: 1, ack_req: self.needs_ack(tail, || window, mtu) }
    }

    /// Returns how many of the next packets differ only in PSN and payload: middle packets that request no ACK.
    fn run_len(&self, wqe: &SendWqe, window: u32) -> u32 {
        if self.sent == 0 || wqe.inline || wqe.packets < self.sent + 3 || self.repeats_reth(wqe) {
            return 1;
        }
        let of_message = wqe.packets - 1 - self.sent;
        let of_window = window.saturating_sub(self.in_flight() + 1);
        let until_ack_request = (self.ack_every(window, wqe.segment) - 1).saturating_sub(self.since_ack_req);
        // Retransmitted packets may carry the selective bit.
        let of_kind = match self.high.distance_from(self.psn) {
            again @ 1.. => again as u32,
            _ => u32::MAX,
        };
        of_message.min(of_window).min(until_ack_request).min(of_kind)
    }

    /// Whether the next packet requests an ACK; `tail` if it is the last of its message. An ACK is requested for a
    /// signalled request, a queue that is half full, a nearly exhausted window, a local request behind, or a large one-sided request
    /// as seen before. The tail of an unsignalled burst relies on the next request or on the probe, which halves the
    /// packets of a ping-pong. Without an RTT sample there is no probe, so the tail requests an ACK.
    #[inline]
    fn needs_ack(&self, tail: Option<Tail<'_>>, window: impl FnOnce() -> u32, mtu: u32) -> bool {
        let is_awaited = |tail: Tail<'_>| {
            tail.is_signaled
                || self.is_waited_behind
                || tail.outstanding * 2 >= tail.depth
                || tail.next.map_or_else(|| !self.clock.can_probe(), SendWqe::is_local)
        };
        tail.is_some_and(is_awaited) || {
            let window = window();
            self.in_flight() + 1 >= window || self.since_ack_req + 1 >= self.ack_every(window, mtu)
        }
    }

    /// Packets between two ACK requests.
    #[inline]
    fn ack_every(&self, window: u32, mtu: u32) -> u32 {
        ack_every(window, mtu).min(self.pacer.ack_every())
    }

    /// Commits a plan: the host accepted `sent` packets with `bytes` bytes of a message of `of` packets.
    #[inline]
    pub(super) fn commit<H: Host>(
        &mut self,
        plan: &Plan,
        sent: u32,
        bytes: u32,
        of: u32,
        io: &mut Io<'_, H>,
    ) {
        self.since_ack_req = if plan.ack_req { 0 } else { self.since_ack_req + sent };
        self.on_sent(sent, bytes, of, io);
    }

    /// Commits a single-packet message that was just posted.
    #[inline]
    pub(crate) fn on_posted<H: Host>(&mut self, plan: &Plan, len: u32, io: &mut Io<'_, H>) {
        self.only_one_sided_in_flight = false;
        self.commit(plan, 1, len, 1, io);
    }

    /// Whether no retransmission, probe or RNR wait is active.
    #[inline]
    pub(super) fn is_undisturbed(&self) -> bool {
        self.stall.is_none()
            && !self.cautious
            && self.first_try.is_none()
            && !self.clock.has_pause()
            && !self.una.is_before(self.reached)
    }

    /// Whether an ACK of this PSN needs its arrival time. An ACK that covers everything in flight and samples no RTT has
    /// the same effect at any time.
    #[inline]
    pub(crate) fn needs_time(&self, psn: Psn, syndrome: Syndrome) -> bool {
        let answers_all = psn.plus(1) == self.high && self.psn == self.high && self.reads.is_empty();
        // A controller that may pace uses the time of every ACK.
        !answers_all
            || self.clock.is_measuring()
            || self.pacer.is_on()
            || !matches!(syndrome, Syndrome::Ack { .. })
    }

    /// Whether a packet that is sent now, for the first time, needs the time. If not, the timer runs already, and
    /// [`Self::last_time`] has the same effect.
    #[inline]
    pub(crate) fn needs_time_to_send(&self) -> bool {
        self.clock.needs_time_to_send()
    }

    /// The last clock reading, while packets are in flight.
    #[inline]
    pub(crate) fn last_time(&self) -> Time {
        self.clock.last_time()
    }
}
