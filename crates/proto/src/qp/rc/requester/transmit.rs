//! Selects the next packets and applies the limits on sending.

use super::super::super::execute::one_sided;
use super::super::super::io::{Fatal, Io};
use super::super::super::local::execute;
use super::super::super::segment::{add_extensions, operation_of, reth_of};
use super::super::super::sq::{SendQueue, SendWqe};
use super::super::super::{Host, JUMBO_SEGMENT, Reason, Segment, Transmission, TxError};
use super::holes::SqPosition;
use super::{Requester, Stall};
use crate::cc::CongestionControl;
use crate::ids::Psn;
use crate::verbs::{Access, QpState, SendOp, WcStatus};
use crate::wire::PiggybackedAck;

/// A large READ is split into requests of at most this many bytes, so that the congestion window also bounds the
/// responses. The boundaries are fixed: the responder identifies a request by its PSNs, so a retry must end where the
/// first attempt ended.
const READ_CHUNK: u32 = 64 * 1024;

/// Message size in bytes above which a direct copy saves more than waiting for the ACK costs.
const DIRECT_MIN_LEN: u32 = 32 * 1024;

/// Approximate size of a full GSO run in bytes. ACKs that open the window by whole runs let the next packets leave in
/// full runs.
const GSO_RUN: u32 = 60 * 1024;

/// Longest WRITE, in packets, that repeats the RETH in every packet to make them equally long. In longer ones a second
/// GSO batch costs little.
const SHORT: u32 = 16;

/// Packets between two ACK requests, so that the window opens before it is exhausted: half the window, in whole GSO
/// runs if it holds any. Each ACK costs both ends about a quarter of a run.
pub(super) fn ack_every(window: u32, mtu: u32) -> u32 {
    let (half, run) = (window / 2, whole(GSO_RUN, mtu).max(1));
    if half >= run { half - half % run } else { half.max(1) }
}

/// Quotient of `n` and `part`. Usually `part` is a power of two.
#[inline]
pub(super) fn whole(n: u32, part: u32) -> u32 {
    if part & part.wrapping_sub(1) == 0 { n >> part.trailing_zeros() } else { n / part }
}

/// Payload bytes of the jumbo packets of a message of `len` bytes: as few packets as [`JUMBO_SEGMENT`] and a quarter of the window allow, all of
/// about the same length, a multiple of 1 KiB so that most copies are aligned.
fn jumbo_segment(len: u32, window: u32) -> u32 {
    const UNIT: u32 = 1024;
    let longest = (window / 4 / UNIT * UNIT).min(JUMBO_SEGMENT);
    if longest == 0 { 0 } else { len.div_ceil(len.div_ceil(longest)).next_multiple_of(UNIT) }
}

enum Step {
    Sent,
    Blocked,
    /// The request failed locally; the cursor stays on it until it is the oldest.
    Stalled(WcStatus, Reason),
}

impl Requester {
    /// Sends as much as the window, the link and the ordering rules allow.
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        if self.clock.is_paused(io.now) {
            return Ok(());
        }
        self.pacer.stop_waiting();
        if self.una.is_before(self.reached) {
            self.ask_for_holes(sq, io);
        }
        while self.stall.is_none() {
            let Some(wqe) = self.next_wqe(sq, io) else { break };
            if self.perform(&wqe, sq, io) {
                continue;
            }
            if self.awaits_reach(&wqe, io) {
                break;
            }
            let step = match wqe.op {
                SendOp::LocalInv(_) | SendOp::BindMw(_) => match self.run_locally(&wqe, sq, io) {
                    Some(step) => step,
                    None => continue,
                },
                SendOp::Read { .. } => self.send_read(&wqe, sq, io),
                SendOp::Atomic { .. } => self.send_atomic(&wqe, sq, io),
                SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => self.send_awaited(&wqe, 1, sq, io),
                _ => self.send_data(&wqe, sq, io),
            };
            match step {
                Step::Sent => {}
                Step::Blocked => break,
                Step::Stalled(status, why) => self.stall = Some(Stall { status, why }),
            }
        }
        self.raise_stall(sq, io)
    }

    /// Lets the host execute a one-sided operation directly. The peer executes requests in order, so nothing may be in
    /// flight. Uses no PSN, because no packet is sent. Returns whether the host executed it.
    fn perform<H: Host>(&mut self, wqe: &SendWqe, sq: &mut SendQueue, io: &mut Io<'_, H>) -> bool {
        if !self.is_alone(sq) {
            return false;
        }
        let (data, sges) = (sq.payload(self.cur, io.pd, 0, wqe.len), sq.sges(self.cur));
        let request = one_sided(&wqe.op, sq.srq(self.cur), data, sges, wqe.len, io.attr.max_rd_atomic);
        if !request.is_some_and(|request| io.host.try_direct(io.pd, &request).is_done()) {
            return false;
        }
        io.counters.performed += 1;
        self.complete_local(wqe, sq, io);
        true
    }

    /// Whether the request under the cursor is the only outstanding one.
    #[inline]
    pub(crate) fn is_alone(&self, sq: &SendQueue) -> bool {
        self.cur == sq.head()
            && self.sent == 0
            && self.una == self.psn
            && self.psn == self.high
            && self.stall.is_none()
    }

    /// Whether a one-sided request waits until the earlier ones complete, so that the host can execute it directly.
    /// Behind SENDs, only a large request waits, and only if their ACK is already requested. Otherwise the next SEND
    /// requests it.
    fn awaits_reach<H: Host>(&mut self, wqe: &SendWqe, io: &mut Io<'_, H>) -> bool {
        let (rkey, need) = match wqe.op {
            SendOp::Write { rkey, .. } => (rkey, Access::REMOTE_WRITE),
            SendOp::Read { rkey, .. } => (rkey, Access::REMOTE_READ),
            SendOp::Atomic { rkey, .. } => (rkey, Access::REMOTE_ATOMIC),
            _ => {
                self.only_one_sided_in_flight = false;
                return false;
            }
        };
        if self.sent > 0 || self.psn != self.high {
            return false;
        }
        let is_large = wqe.len >= DIRECT_MIN_LEN;
        let may_wait = self.in_flight() > 0 && (self.only_one_sided_in_flight || is_large);
        if may_wait && io.host.can_access(rkey, need) {
            self.is_waited_behind |= is_large;
            if self.only_one_sided_in_flight || self.since_ack_req == 0 {
                return true;
            }
        }
        self.only_one_sided_in_flight |= self.in_flight() == 0;
        false
    }

    /// Completes the oldest request, which used no PSN.
    fn complete_local<H: Host>(&mut self, wqe: &SendWqe, sq: &mut SendQueue, io: &mut Io<'_, H>) {
        sq.pop();
        (self.cur, self.oldest) = (self.cur + 1, self.oldest + 1);
        io.complete_send(wqe);
    }

    /// Reports a local failure after every earlier request completed: completions keep posting order.
    pub(super) fn raise_stall<H: Host>(
        &mut self,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        match self.stall {
            Some(stall) if self.cur == sq.head() => {
                self.stall = None;
                Err(self.fail_oldest(stall.status, stall.why, sq, io))
            }
            _ => Ok(()),
        }
    }

    /// Returns the request under the cursor if it may start or continue.
    fn next_wqe<H: Host>(&mut self, sq: &mut SendQueue, io: &mut Io<'_, H>) -> Option<SendWqe> {
        let mtu = io.mtu();
        let fenced = self.sent == 0 && !self.reads.is_empty();
        let unstarted = self.sent == 0 && self.psn == self.high;
        let wqe = sq.get_mut(self.cur)?;
        // In SQD, started requests finish, and no new request starts.
        if (wqe.fence && fenced) || (unstarted && io.attr.state != QpState::Rts) {
            return None;
        }
        // The path may have changed since a jumbo message was planned.
        if wqe.packets == 0 || (unstarted && wqe.jumbo) {
            (wqe.segment, wqe.jumbo) = if wqe.len > mtu { self.segment_of(wqe, io) } else { (mtu, false) };
            wqe.packets = wqe.packets_at(wqe.segment);
        }
        Some(*wqe)
    }

    /// Payload bytes of the packets of a message that is longer than the path MTU, and whether they are jumbo packets.
    fn segment_of<H: Host>(&self, wqe: &SendWqe, io: &mut Io<'_, H>) -> (u32, bool) {
        let mtu = io.mtu();
        if !wqe.awaits_response()
            && let Some(large) = io.host.large_segment()
        {
            return (large.max(mtu), false);
        }
        let is_allowed = self.exchanges_jumbo() && io.host.carries_jumbo(io.route);
        let jumbo = if is_allowed { jumbo_segment(wqe.len, self.cc.window()) } else { mtu };
        (jumbo.max(mtu), jumbo > mtu)
    }

    /// Whether the window is full. Returns `false` once more if no packet in flight requests an ACK: the requester then sends one packet more,
    /// which requests it. Short messages can fill the window of a longer one without such a request.
    fn is_window_full(&self, packets: u32, segment: u32) -> bool {
        let in_flight = self.in_flight();
        let is_answer_due = self.since_ack_req < in_flight || !self.reads.is_empty();
        in_flight > 0 && in_flight + packets > self.window_packets(segment) && is_answer_due
    }

    /// Records that jumbo packets were sent.
    fn on_jumbo_sent(&mut self, segment: u32) {
        // A shorter one does not extend the time in which every packet counts as the longest.
        if segment >= self.longest_in_flight {
            // After going back, packets beyond the cursor may still be in flight.
            (self.longest_in_flight, self.longest_end) = (segment, self.high);
        }
    }

    fn send_data<H: Host>(&mut self, wqe: &SendWqe, sq: &SendQueue, io: &mut Io<'_, H>) -> Step {
        if self.psn.is_before(self.reached) {
            let executed = self.reached.distance_from(self.psn) as u32;
            self.pass(executed.min(wqe.packets - self.sent), wqe.packets);
            return Step::Sent;
        }
        if self.send_rendezvous(wqe, sq, io) {
            return Step::Sent;
        }
        let mtu = wqe.segment;
        if self.is_window_full(1, mtu) {
            return Step::Blocked;
        }
        let window = self.window_packets(mtu);
        let most = self.paced(mtu, io.now);
        if most == 0 {
            return Step::Blocked;
        }
        let plan = self.plan(wqe, window, most, sq);
        let position = SqPosition { number: self.cur, index: self.sent, wqe: *wqe };
        match self.send_packets(&position, plan.psn, plan.ack_req, plan.count, sq, io) {
            Ok((sent, bytes)) => {
                self.pacer.on_sent(sent, bytes);
                self.commit(&plan, sent, bytes, wqe.packets, io);
                if wqe.jumbo {
                    self.on_jumbo_sent(mtu);
                }
            }
            Err(error) => return self.unsent(wqe, error, io),
        }
        Step::Sent
    }

    /// Handles a packet that the host did not accept.
    fn unsent<H: Host>(&self, wqe: &SendWqe, error: TxError, io: &mut Io<'_, H>) -> Step {
        let TxError::Fault(fault) = error else { return Step::Blocked };
        io.host.explain(format_args!(
            "QP {}: send wr_id {:#x} cannot read its data: {fault}",
            io.id.qpn, wqe.wr_id
        ));
        Step::Stalled(WcStatus::LocProtErr, Reason::LocalMemory)
    }

    /// Sends `count` packets of a SEND or WRITE starting at `position`. Returns the number of packets accepted and their
    /// bytes.
    #[inline]
    pub(super) fn send_packets<H: Host>(
        &self,
        position: &SqPosition,
        psn: Psn,
        ack_req: bool,
        count: u32,
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(u32, u32), TxError> {
        let SqPosition { number, index, wqe } = position;
        let mtu = wqe.segment;
        let (first, last) = (*index == 0, index + 1 == wqe.packets);
        let offset = u64::from(*index) * u64::from(mtu);
        let len = (wqe.len - offset as u32).min(mtu);
        let mut headers = io.headers(operation_of(&wqe.op, first, last), psn, len);
        headers.bth.solicited = last && wqe.solicited;
        (headers.bth.ack_req, headers.bth.jumbo, headers.bth.partial_icrc) = (ack_req, wqe.jumbo, wqe.jumbo);
        let transmission = self.transmission(psn);
        headers.bth.selective = transmission == Transmission::Selective;
        add_extensions(&mut headers, wqe, first, last);
        headers.xrceth = sq.srq(*number);
        // The packet must fit the path MTU unless it is a jumbo packet. Packets of one GSO run must have equal length.
        headers.piggybacked_ack = io
            .piggybacked_ack
            .filter(|_| first && last && (wqe.jumbo || len as usize + PiggybackedAck::LEN <= mtu as usize));
        if !first && self.repeats_reth(wqe) {
            headers.reth = reth_of(wqe);
        }
        headers.bth.extended = headers.piggybacked_ack.is_some() || (!first && headers.reth.is_some());
        let payload = sq.payload(*number, io.pd, offset, len);
        let segment = Segment { headers: &headers, payload, count, transmission, is_acknowledged: true };
        let sent = io.send(&segment)?;
        if headers.piggybacked_ack.is_some() {
            io.piggybacked_ack = None;
        }
        Ok((sent, sent * len))
    }

    /// Returns how this PSN is transmitted. A peer that reports missing packets receives only those again.
    pub(super) fn transmission(&self, psn: Psn) -> Transmission {
        match (psn.is_before(self.high), self.peer_selects) {
            (false, _) => Transmission::First,
            (true, false) => Transmission::GoBack,
            (true, true) => Transmission::Selective,
        }
    }

    /// Whether every packet of a WRITE carries the RETH. A GSO batch ends at the first shorter packet, so a short WRITE
    /// with only one RETH would leave in two batches, each as expensive as a full one.
    pub(super) fn repeats_reth(&self, wqe: &SendWqe) -> bool {
        // Jumbo packets longer than 32 KiB leave one by one, so they need no equal length.
        let is_short = (2..=SHORT).contains(&wqe.packets) && !wqe.jumbo;
        is_short && self.peer_extends && matches!(wqe.op, SendOp::Write { .. } | SendOp::WriteImm { .. })
    }

    fn send_read<H: Host>(&mut self, wqe: &SendWqe, sq: &SendQueue, io: &mut Io<'_, H>) -> Step {
        // The response to a jumbo request is one packet.
        let chunk_packets = if wqe.jumbo { 1 } else { READ_CHUNK / wqe.segment };
        let chunk_end = (self.sent / chunk_packets + 1) * chunk_packets;
        self.send_awaited(wqe, chunk_end.min(wqe.packets) - self.sent, sq, io)
    }

    fn send_atomic<H: Host>(&mut self, wqe: &SendWqe, sq: &SendQueue, io: &mut Io<'_, H>) -> Step {
        if wqe.len != 8 {
            io.host.explain(format_args!(
                "QP {}: atomic wr_id {:#x} has a buffer of {} bytes, it must be 8",
                io.id.qpn, wqe.wr_id, wqe.len
            ));
            return Step::Stalled(WcStatus::LocLenErr, Reason::AtomicLength);
        }
        self.send_awaited(wqe, 1, sq, io)
    }

    /// Sends a request for those of `packets` responses that are missing.
    fn send_awaited<H: Host>(
        &mut self,
        wqe: &SendWqe,
        packets: u32,
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) -> Step {
        if let Some(step) = self.read_resources(packets, wqe.segment, io) {
            return step;
        }
        let missing = if self.early.is_empty() {
            Some((self.psn, packets))
        } else {
            let range = self.missing(self.psn, self.psn.plus(packets - 1));
            range.map(|(low, high)| (low, high.distance_from(low) as u32 + 1))
        };
        // A request whose responses all arrived early still counts as outstanding. The responder keeps records of only
        // `max_dest_rd_atomic` requests, and must keep that of an older one that is still unanswered.
        let Some((low, count)) = missing else {
            self.await_response(packets, io.now);
            self.pass(packets, wqe.packets);
            return Step::Sent;
        };
        let index = self.sent + low.distance_from(self.psn) as u32;
        let position = SqPosition { number: self.cur, index, wqe: *wqe };
        let Ok(bytes) = self.send_request(&position, low, count, sq, io) else { return Step::Blocked };
        self.await_response(packets, io.now);
        self.pacer.on_sent(packets, bytes);
        self.on_sent(packets, bytes, wqe.packets, io);
        if wqe.jumbo {
            self.on_jumbo_sent(wqe.segment);
        }
        Step::Sent
    }

    /// Returns what blocks a READ or atomic, if anything.
    fn read_resources<H: Host>(&mut self, packets: u32, segment: u32, io: &mut Io<'_, H>) -> Option<Step> {
        if io.attr.max_rd_atomic == 0 {
            io.host.explain(format_args!("QP {}: READ or atomic posted, but max_rd_atomic is 0", io.id.qpn));
            return Some(Step::Stalled(WcStatus::LocQpOpErr, Reason::NoReadResources));
        }
        let busy = self.reads.len() >= usize::from(io.attr.max_rd_atomic);
        (busy || self.is_window_full(packets, segment) || self.paced(segment, io.now) == 0)
            .then_some(Step::Blocked)
    }

    /// Executes a local operation once every earlier request completed.
    fn run_locally<H: Host>(
        &mut self,
        wqe: &SendWqe,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Option<Step> {
        if self.cur != sq.head() {
            return Some(Step::Blocked);
        }
        if let Some(Err((status, why))) = execute(&wqe.op, wqe.wr_id, io) {
            return Some(Step::Stalled(status, why));
        }
        self.complete_local(wqe, sq, io);
        None
    }

    /// Advances the cursor by `packets` PSNs that were sent.
    #[inline(always)] // on the path of a short message
    pub(super) fn on_sent<H: Host>(&mut self, packets: u32, bytes: u32, of: u32, io: &mut Io<'_, H>) {
        if !self.psn.is_before(self.high) {
            self.clock.sample_start(self.psn, io.now);
            self.send_times.on_first(self.psn, packets, io.now);
        } else {
            self.send_times.forget(self.psn, packets);
        }
        self.clock.start(io.now);
        self.cc.on_sent(bytes);
        self.pass(packets, of);
    }

    /// Advances the cursor without sending.
    fn pass(&mut self, packets: u32, of: u32) {
        self.psn = self.psn.plus(packets);
        if self.psn.is_after(self.high) {
            self.high = self.psn;
        }
        self.sent += packets;
        if self.sent == of {
            (self.cur, self.sent) = (self.cur + 1, 0);
        }
    }
}
