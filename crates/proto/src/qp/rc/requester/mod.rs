//! Requester half of a reliable connection: work requests in, request packets out, completions back.
//!
//! `una` is the oldest unacknowledged PSN and lies in the oldest work request; `psn` is the next to send; `high` is the
//! first never sent. Go-back-N moves the cursor (`cur`, `sent`, `psn`) to `una`, so a lost packet, a NAK and a timeout
//! share one mechanism. The cursor skips PSNs that the peer already executed or answered (`reached`, `early`). An overtaken
//! READ response is requested alone; the cursor stays.
//!
//! | file | question |
//! |---|---|
//! | `transmit` | what to send next, and the limits on it |
//! | `pacing` | when to send it, if congestion control has a rate |
//! | `plan` | how many packets, and whether they request an ACK |
//! | `rendezvous` | rendezvous sends, whose data the peer copies from local memory |
//! | `awaited` | the packets of requests that return data |
//! | `acknowledge` | ACKs and NAKs |
//! | `response` | READ responses and atomic acknowledgements |
//! | `early`, `holes` | out-of-order responses; missing responses and when to request them |
//! | `selective` | selective repeat |
//! | `retry` | timers and retry counts |
//! | `send_times` | round-trip times of every packet, where congestion control needs them |

mod acknowledge;
mod awaited;
mod early;
mod holes;
mod pacing;
mod plan;
mod rendezvous;
mod response;
mod retry;
mod selective;
mod send_times;
mod transmit;

use super::super::io::{Fatal, Io};
use super::super::notification::NotificationPoint;
use super::super::sq::SendQueue;
use super::super::{Host, Reason, Side};
use crate::Time;
use crate::cc::{CongestionControl, Controller};
use crate::ids::Psn;
use crate::verbs::{QpAttr, WcStatus};
use crate::wire::{Operation, Packet};
use acknowledge::Ack;
use alloc::collections::VecDeque;
use early::Early;
use holes::Awaited;
use pacing::Pacer;
use retry::RetryClock;
use selective::Repairs;
use send_times::SendTimes;
use transmit::whole;

/// A local failure that is reported after every earlier request completed.
#[derive(Clone, Copy, Debug)]
struct Stall {
    status: WcStatus,
    why: Reason,
}

/// The cursor when a timer interrupted sending.
#[derive(Clone, Copy, Debug)]
struct FirstTry {
    /// PSN of the probe.
    asked: Psn,
    cur: u64,
    sent: u32,
    psn: Psn,
}

#[derive(Debug)]
pub(crate) struct Requester {
    una: Psn,
    /// Packets of the oldest request that are already acknowledged.
    acked: u32,
    /// Index of the oldest request; the head of the send queue.
    oldest: u64,
    /// The request being sent, and how many of its packets were sent in this pass.
    cur: u64,
    sent: u32,
    psn: Psn,
    high: Psn,
    /// Each READ request and atomic in flight.
    reads: VecDeque<Awaited>,
    /// The peer executed everything before this PSN. It may exceed `una` while READ or atomic responses are missing.
    reached: Psn,
    /// Out-of-order responses beyond `una`.
    early: Early,
    /// Remaining repeats that are delayed because the network reorders.
    tolerance: u8,
    /// Longest observed delay of an overtaken response; decays with each repeat.
    late_ns: u64,
    /// Time at which a missing response last counted as a loss.
    lost_at: Option<Time>,
    since_ack_req: u32,
    /// Only one-sided requests are in flight.
    only_one_sided_in_flight: bool,
    /// A large one-sided request waited behind SENDs; it could execute directly once they are acknowledged.
    is_waited_behind: bool,
    stall: Option<Stall>,
    clock: RetryClock,
    /// Send one packet at a time until the peer responds.
    cautious: bool,
    /// Cursor state before a possibly spurious timeout.
    first_try: Option<FirstTry>,
    /// PSN and time of the last go-back without a timer, so that a burst of NAKs counts once.
    went_back: Option<(Psn, Time)>,
    /// The peer sent a NAK with the selective bit: it supports selective repeat.
    peer_selects: bool,
    /// The peer supports the extensions, such as piggybacked ACKs.
    peer_extends: bool,
    /// The peer accepts packets longer than the path MTU.
    peer_takes_jumbo: bool,
    /// It may send jumbo packets to a peer that accepts them.
    takes_jumbo: bool,
    /// Payload bytes of the longest jumbo packet in flight, or 0.
    longest_in_flight: u32,
    /// The PSN behind the last packet of that length.
    longest_end: Psn,
    /// Bytes that were acknowledged since the last feedback to congestion control. Each packet counts as a full one.
    acked_bytes: u32,
    repairs: Repairs,
    /// The ACK being handled reports that a switch marked packets.
    ack_is_marked: bool,
    /// How long the response that is being handled waited before; 0 if that is unknown.
    response_age_ns: u32,
    response_marks: NotificationPoint,
    pacer: Pacer,
    send_times: SendTimes,
    cc: Controller,
}

impl Requester {
    pub(crate) fn new(cc: Controller) -> Self {
        Requester {
            una: Psn::default(),
            acked: 0,
            oldest: 0,
            cur: 0,
            sent: 0,
            psn: Psn::default(),
            high: Psn::default(),
            reads: VecDeque::new(),
            reached: Psn::default(),
            early: Early::default(),
            tolerance: 0,
            late_ns: 0,
            lost_at: None,
            since_ack_req: 0,
            only_one_sided_in_flight: false,
            is_waited_behind: false,
            stall: None,
            clock: RetryClock::default(),
            cautious: false,
            first_try: None,
            went_back: None,
            peer_selects: false,
            peer_extends: false,
            peer_takes_jumbo: false,
            takes_jumbo: false,
            longest_in_flight: 0,
            longest_end: Psn::default(),
            acked_bytes: 0,
            repairs: Repairs::default(),
            ack_is_marked: false,
            response_age_ns: 0,
            response_marks: NotificationPoint::new(&cc),
            pacer: Pacer::new(&cc),
            send_times: SendTimes::new(cc.needs().ack_every_packet),
            cc,
        }
    }

    /// The congestion controller.
    pub(crate) fn cc(&self) -> &Controller {
        &self.cc
    }

    /// Returns the congestion controller.
    pub(crate) fn congestion(&mut self) -> &mut Controller {
        &mut self.cc
    }

    /// Handles a READ response that a switch marked. This end decides how fast they come, so it slows down itself.
    pub(crate) fn on_marked_response(&mut self, now: Time) {
        if self.response_marks.counts(now) {
            self.response_marks.on_counted(now);
            self.cc.on_cnp(now);
        }
    }

    /// Whether both ends accept jumbo packets.
    pub(crate) fn exchanges_jumbo(&self) -> bool {
        self.takes_jumbo && self.peer_takes_jumbo
    }

    /// Enters RTS from RESET with the PSN set by `modify`.
    pub(crate) fn start(&mut self, attr: &QpAttr, sq: &SendQueue, takes_jumbo: bool) {
        // `Boxed` controllers (DCQCN, Swift and others) assume packets of the path MTU.
        self.takes_jumbo = takes_jumbo && !matches!(self.cc, Controller::Boxed(_));
        self.longest_in_flight = 0;
        (self.una, self.psn, self.high, self.reached) = (attr.sq_psn, attr.sq_psn, attr.sq_psn, attr.sq_psn);
        (self.cur, self.oldest) = (sq.head(), sq.head());
        self.reads.reserve(usize::from(attr.max_rd_atomic));
        self.clock = RetryClock::new(attr, self.pacer.is_on());
    }

    /// Applies changed retry attributes.
    pub(crate) fn reconfigure(&mut self, attr: &QpAttr) {
        self.clock.reconfigure(attr);
    }

    /// Stops permanently and discards everything in flight.
    pub(crate) fn halt(&mut self, sq: &SendQueue) {
        (self.cur, self.oldest, self.sent, self.acked) = (sq.tail(), sq.tail(), 0, 0);
        (self.una, self.psn, self.reached) = (self.high, self.high, self.high);
        self.reads.clear();
        self.early.clear();
        (self.stall, self.first_try) = (None, None);
        self.clock.stop();
        self.pacer.stop_waiting();
        self.cc.on_drained();
    }

    /// Time at which [`Self::handle_timeout`] is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match (self.clock.deadline(), self.pacer.deadline()) {
            (retry, None) => retry,
            (retry, Some(paced)) => Some(retry.map_or(paced, |retry| retry.min(paced))),
        }
    }

    /// Whether our requests and the peer's responses may be [extended](crate::wire::Bth::extended).
    pub(crate) fn peer_extends(&self) -> bool {
        self.peer_extends
    }

    /// Bytes that may be in flight.
    pub(crate) fn window_bytes(&self) -> u32 {
        self.cc.window()
    }

    /// Packets (or READ responses) in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.psn.distance_from(self.una).max(0) as u32
    }

    /// Whether every started request is finished, as SQD requires.
    pub(crate) fn is_drained(&self) -> bool {
        self.una == self.high && self.acked == 0
    }

    /// Packets of `segment` bytes that may be in flight. While longer ones are in flight, each packet counts as one of those.
    #[inline]
    fn window_packets(&self, segment: u32) -> u32 {
        let segment = segment.max(self.longest_in_flight);
        if self.cautious { 1 } else { whole(self.cc.window(), segment).max(1) }
    }

    /// Handles responses from the peer.
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        match pkt.headers.bth.opcode.operation {
            Operation::Acknowledge => match Ack::of(pkt) {
                Some(ack) => self.handle_ack(&ack, sq, io),
                None => Ok(()),
            },
            _ if !self.was_sent(pkt.headers.bth.psn, io) => Ok(()),
            Operation::AtomicAcknowledge => self.on_atomic_acknowledge(pkt, sq, io),
            _ => self.on_read_response(pkt, sq, io),
        }
    }

    /// Fails the oldest request and with it the queue pair.
    fn fail_oldest<H: Host>(
        &mut self,
        status: WcStatus,
        why: Reason,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Fatal {
        if let Some(wqe) = sq.pop() {
            io.complete_failed(Side::Send, wqe.wr_id, wqe.wc_opcode(), status, why);
        }
        Fatal
    }
}
