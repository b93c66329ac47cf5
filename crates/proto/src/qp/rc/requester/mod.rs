//! Requester half of a reliable connection: work requests in, request packets out, completions back.
//!
//! Sequence numbers name packets. `una` is the oldest number without an answer and always lies inside the oldest
//! work request of the send queue; `psn` is the next to send; `high` the first never sent. Going back means moving
//! the cursor (`cur`, `sent`, `psn`) to `una`, nothing else, so a lost packet, a NAK and a time-out are one mechanism. What
//! the peer is known to have done or sent already (`reached`, `early`) is passed over on the way. A READ response that
//! others overtook is asked for by itself, and the cursor stays.
//!
//! | file | question |
//! |---|---|
//! | `transmit` | what is sent next, and what holds it back |
//! | `plan` | how much of it, and whether it asks for an acknowledgement |
//! | `rendezvous` | messages that the peer copies from this end's memory |
//! | `awaited` | the packets of requests that are answered with data |
//! | `acknowledge` | what an ACK or NAK means |
//! | `response` | what a READ response or atomic acknowledgement means |
//! | `early`, `holes` | which responses came before their turn; which are missing, and when to ask for them |
//! | `selective` | which requests are sent again when the peer says what it has |
//! | `retry` | when and how often to try again |

mod acknowledge;
mod awaited;
mod early;
mod holes;
mod plan;
mod rendezvous;
mod response;
mod retry;
mod selective;
mod transmit;

use super::super::io::{Fatal, Io};
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
use retry::RetryClock;
use selective::Repairs;
use transmit::whole;

/// A failure that waits until every earlier request has its completion.
#[derive(Clone, Copy, Debug)]
struct Stall {
    status: WcStatus,
    why: Reason,
}

/// Where sending stood when a timer interrupted it.
#[derive(Clone, Copy, Debug)]
struct FirstTry {
    /// The packet that was sent again to ask.
    asked: Psn,
    cur: u64,
    sent: u32,
    psn: Psn,
}

#[derive(Debug)]
pub(crate) struct Requester {
    una: Psn,
    /// Packets of the oldest request that are already answered.
    acked: u32,
    /// Number of the oldest request; the head of the send queue.
    oldest: u64,
    /// The request being sent and how many of its packets were sent in this round.
    cur: u64,
    sent: u32,
    psn: Psn,
    high: Psn,
    /// Each READ request and atomic in flight.
    reads: VecDeque<Awaited>,
    /// The peer has executed everything before this; it may lie behind `una` if answers with data are missing.
    reached: Psn,
    /// Answers with data behind `una`.
    early: Early,
    /// How many more questions for missing answers are put late, because the network reorders.
    tolerance: u8,
    /// The longest that an answer took that others overtook; fades as questions are put.
    late_ns: u64,
    /// When a missing answer was last counted as a loss.
    lost_at: Option<Time>,
    since_ack_req: u32,
    /// What is under way is one-sided requests, and nothing else.
    one_sided_under_way: bool,
    /// Large one-sided requests come behind messages here, and could be done at once if those were acknowledged.
    is_waited_behind: bool,
    stall: Option<Stall>,
    clock: RetryClock,
    /// One packet at a time until the peer answers again.
    cautious: bool,
    /// What the timer may have given up on too early.
    first_try: Option<FirstTry>,
    /// Where and when the cursor last went back without a timer, so that a burst of NAKs counts once.
    went_back: Option<(Psn, Time)>,
    /// The peer marked a NAK: it may be told that we repeat selectively.
    peer_selects: bool,
    /// The peer showed that it reads acknowledgements in requests.
    peer_reads_piggybacked_acks: bool,
    repairs: Repairs,
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
            one_sided_under_way: false,
            is_waited_behind: false,
            stall: None,
            clock: RetryClock::default(),
            cautious: false,
            first_try: None,
            went_back: None,
            peer_selects: false,
            peer_reads_piggybacked_acks: false,
            repairs: Repairs::default(),
            cc,
        }
    }

    /// Its congestion control.
    pub(crate) fn congestion(&mut self) -> &mut Controller {
        &mut self.cc
    }

    /// Enters RTS, fresh from RESET: sequence numbers start where `modify` said.
    pub(crate) fn start(&mut self, attr: &QpAttr, sq: &SendQueue) {
        (self.una, self.psn, self.high, self.reached) = (attr.sq_psn, attr.sq_psn, attr.sq_psn, attr.sq_psn);
        (self.cur, self.oldest) = (sq.head(), sq.head());
        self.reads.reserve(usize::from(attr.max_rd_atomic));
        self.clock = RetryClock::new(attr);
    }

    /// Takes over changed retry attributes.
    pub(crate) fn reconfigure(&mut self, attr: &QpAttr) {
        self.clock.reconfigure(attr);
    }

    /// Stops for good: nothing is in flight any more.
    pub(crate) fn halt(&mut self, sq: &SendQueue) {
        (self.cur, self.oldest, self.sent, self.acked) = (sq.tail(), sq.tail(), 0, 0);
        (self.una, self.psn, self.reached) = (self.high, self.high, self.high);
        self.reads.clear();
        self.early.clear();
        (self.stall, self.first_try) = (None, None);
        self.clock.stop();
        self.cc.on_drained();
    }

    /// When [`Self::handle_timeout`] wants to be called.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.clock.deadline()
    }

    /// Whether an acknowledgement may be piggybacked on the next request.
    pub(crate) fn may_carry(&self) -> bool {
        self.peer_reads_piggybacked_acks
    }

    /// Packets (or READ responses) on their way.
    fn in_flight(&self) -> u32 {
        self.psn.distance_from(self.una).max(0) as u32
    }

    /// Whether no request has been started and not finished: what SQD waits for.
    pub(crate) fn is_drained(&self) -> bool {
        self.una == self.high && self.acked == 0
    }

    #[inline]
    fn window_packets(&self, mtu: u32) -> u32 {
        if self.cautious { 1 } else { whole(self.cc.window(), mtu).max(1) }
    }

    /// Answers from the peer.
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

    /// Ends the oldest request with an error, and with it the queue pair.
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
