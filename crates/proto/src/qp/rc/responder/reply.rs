//! The queue of responses, in the order of the requests.

use super::super::super::io::{Fatal, Io};
use super::super::super::{DropReason, Host, RefusalReason, Segment, TxError, TxPayload};
use super::Responder;
use super::kept::REPORT_LEN;
use crate::ids::{PKey, PdId, Psn, RKey};
use crate::verbs::EventKind;
use crate::wire::{AckOnly, Aeth, Headers, NakCode, Operation, PiggybackedAck, Service, Syndrome};
use alloc::collections::VecDeque;

/// No end-to-end credits: a responder without receives sends an RNR NAK (IBA 9.7.7.2.1, the "invalid" code).
const NO_CREDITS: Syndrome = Syndrome::ACK_NO_CREDIT;

/// Maximum number of queued responses: twice the READs that a requester may have in flight, and the ACKs between them.
const MAX_WAITING: usize = 600;

/// The rest of a READ response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadReply {
    pub(super) psn: Psn,
    pub(super) addr: u64,
    pub(super) rkey: RKey,
    pub(super) pd: PdId,
    pub(super) len: u32,
    /// No packet was sent yet, so the next one is a first or only packet.
    pub(super) fresh: bool,
    pub(super) msn: u32,
    /// A repeated response does not count against `max_dest_rd_atomic`: the requester may already hold the first.
    pub(super) again: bool,
    /// Every packet carries an AETH, so that all have equal length. The requester supports this.
    pub(super) even: bool,
    /// A response before it announced the bytes of this one to the host.
    pub(super) continues: bool,
    /// Payload bytes of each packet but the last.
    pub(super) segment: u32,
}

impl ReadReply {
    /// PSN of its last packet.
    fn last(&self) -> Psn {
        self.psn.plus(self.len.div_ceil(self.segment).max(1) - 1)
    }

    /// The response to a flush or atomic write.
    pub(super) fn of_nothing(psn: Psn, msn: u32, pd: PdId) -> ReadReply {
        ReadReply {
            psn,
            addr: 0,
            rkey: RKey(0),
            pd,
            len: 0,
            fresh: true,
            msn,
            again: false,
            even: false,
            continues: false,
            segment: 1,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Reply {
    /// A CNP: notifies the peer of a mark.
    Cnp,
    Ack {
        psn: Psn,
        msn: u32,
        syndrome: Syndrome,
    },
    Atomic {
        psn: Psn,
        msn: u32,
        original: u64,
        again: bool,
    },
    Read(ReadReply),
}

impl Reply {
    fn counts(&self) -> bool {
        match self {
            Reply::Cnp | Reply::Ack { .. } => false,
            Reply::Atomic { again, .. } => !again,
            Reply::Read(r) => !r.again,
        }
    }

    /// PSN of the request that it answers; `None` for a CNP.
    fn psn(&self) -> Option<Psn> {
        match self {
            Reply::Cnp => None,
            Reply::Ack { psn, .. } | Reply::Atomic { psn, .. } => Some(*psn),
            Reply::Read(r) => Some(r.psn),
        }
    }
}

/// Responses waiting to be sent.
#[derive(Debug, Default)]
pub(super) struct Replies {
    queue: VecDeque<Reply>,
    /// READs and atomics among them, without repeated ones.
    reading: usize,
}

impl Replies {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// READs and atomics whose first response is not complete.
    pub(super) fn reading(&self) -> usize {
        self.reading
    }

    /// Acknowledges everything up to `psn`. Adjacent ACKs are merged.
    pub(super) fn ack(&mut self, psn: Psn, msn: u32) {
        if let Some(Reply::Ack { psn: p, msn: m, syndrome: Syndrome::Ack { .. } }) = self.queue.back_mut() {
            (*p, *m) = (psn, msn);
            return;
        }
        self.queue.push_back(Reply::Ack { psn, msn, syndrome: NO_CREDITS });
    }

    /// Queues a CNP in front of all other responses.
    pub(super) fn notify(&mut self) {
        if !matches!(self.queue.front(), Some(Reply::Cnp)) {
            self.queue.push_front(Reply::Cnp);
        }
    }

    pub(super) fn nak(&mut self, psn: Psn, msn: u32, syndrome: Syndrome) {
        // A NAK acknowledges everything before it, so it replaces a queued ACK.
        if let Some(Reply::Ack { .. }) = self.queue.back() {
            self.queue.pop_back();
        }
        self.queue.push_back(Reply::Ack { psn, msn, syndrome });
    }

    pub(super) fn read(&mut self, reply: ReadReply) {
        self.reading += 1;
        self.queue.push_back(Reply::Read(reply));
    }

    /// Returns the number of bytes that the first response reads, plus those of the responses behind it that continue its range:
    /// requesters divide a long READ. All of these requests have arrived, so the host may read their data already.
    fn announce(&mut self, first: &ReadReply) -> u32 {
        let mut bytes = first.len;
        for reply in self.queue.iter_mut().skip(1) {
            let Reply::Read(next) = reply else { break };
            let end = first.addr.wrapping_add(bytes.into());
            if (next.addr, next.rkey, next.pd) != (end, first.rkey, first.pd) {
                break;
            }
            let Some(more) = bytes.checked_add(next.len) else { break };
            (bytes, next.continues) = (more, true);
        }
        bytes
    }

    pub(super) fn atomic(&mut self, psn: Psn, msn: u32, original: u64) {
        self.reading += 1;
        self.queue.push_back(Reply::Atomic { psn, msn, original, again: false });
    }

    /// Queues the response to a repeated READ. If the first response is still being sent, it restarts at the requested
    /// PSN instead, so repeats cause no extra traffic.
    pub(super) fn read_again(&mut self, reply: ReadReply) {
        for queued in &mut self.queue {
            let Reply::Read(r) = queued else { continue };
            if r.last() == reply.last() {
                if reply.psn.is_before(r.psn) {
                    *r = ReadReply { again: r.again, ..reply };
                }
                return;
            }
        }
        self.insert_in_order(Reply::Read(reply));
    }

    pub(super) fn atomic_again(&mut self, psn: Psn, msn: u32, original: u64) {
        if !self.queue.iter().any(|r| matches!(r, Reply::Atomic { psn: p, .. } if *p == psn)) {
            self.insert_in_order(Reply::Atomic { psn, msn, original, again: true });
        }
    }

    /// Queues a repeated response in PSN order. The queue is bounded, so a peer cannot exhaust memory with repeats. A
    /// dropped response is requested again.
    fn insert_in_order(&mut self, reply: Reply) {
        if self.queue.len() >= MAX_WAITING {
            return;
        }
        let is_after = |r: &Reply| reply.psn().zip(r.psn()).is_some_and(|(a, b)| a.is_before(b));
        let at = self.queue.iter().position(is_after).unwrap_or(self.queue.len());
        self.queue.insert(at, reply);
    }
}

impl Responder {
    /// Whether a response is queued.
    pub(crate) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Whether only positive ACKs are queued.
    #[inline]
    pub(crate) fn only_acks_wait(&self) -> bool {
        let is_ack = |r: &Reply| matches!(r, Reply::Ack { syndrome: Syndrome::Ack { .. }, .. });
        // Usually exactly one is queued.
        self.piggybacked_ack().is_some() || self.replies.queue.iter().all(is_ack)
    }

    /// The queued ACK, if it is the only response and may be piggybacked.
    #[inline]
    pub(crate) fn piggybacked_ack(&self) -> Option<PiggybackedAck> {
        match (self.replies.queue.len(), self.replies.queue.front()) {
            // A piggybacked ACK has no BECN bit.
            _ if self.was_marked => None,
            (1, Some(&Reply::Ack { psn, msn, syndrome: syndrome @ Syndrome::Ack { .. } })) => {
                Some(PiggybackedAck { psn, aeth: Aeth { syndrome, msn }, jumbo: self.exchanges_jumbo() })
            }
            _ => None,
        }
    }

    /// Removes the ACK that left piggybacked on a request.
    pub(crate) fn on_piggybacked<H: Host>(&mut self, io: &mut Io<'_, H>) {
        self.replies.queue.pop_front();
        io.counters.acks_sent += 1;
    }

    /// Sends queued responses until the queue is empty or the link is full.
    pub(crate) fn poll_transmit<H: Host>(&mut self, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let mut outcome = Ok(());
        while let Some(reply) = self.replies.queue.front().copied() {
            let sent = match reply {
                Reply::Cnp => self.notification.notify(io).map(|()| true),
                Reply::Ack { psn, msn, syndrome: Syndrome::Nak(NakCode::PsnSequence) } => {
                    self.send_sequence_nak(psn, msn, io)
                }
                Reply::Ack { psn, msn, syndrome } => self.send_ack(psn, msn, syndrome, io),
                Reply::Atomic { psn, msn, original, .. } => send_atomic(psn, msn, original, io),
                Reply::Read(read) => self.send_read(read, io),
            };
            match sent {
                Ok(true) => {
                    self.replies.reading -= usize::from(reply.counts());
                    self.replies.queue.pop_front();
                }
                Ok(false) => {}
                Err(TxError::Full) => break,
                // The memory of a repeated READ may be deregistered. The requester has the data already, or requests it again.
                Err(TxError::Fault(fault)) if !reply.counts() => {
                    io.host.dropped(
                        DropReason::StaleDuplicate,
                        format_args!("QP {}: repeated READ not answered: {fault}", io.id.qpn),
                    );
                    self.replies.queue.pop_front();
                }
                Err(TxError::Fault(fault)) => {
                    // The region was deregistered while its READ was being answered. The NAK leaves next.
                    let (qpn, peer) = (io.id.qpn, io.attr.dest_qpn);
                    let why = format_args!("QP {qpn}: READ by QP {peer} stopped: {fault}");
                    let reason = RefusalReason::from(&fault);
                    io.host.refused(reason, why);
                    self.refused = Some(reason);
                    self.replies.queue.clear();
                    self.replies.reading = 0;
                    self.replies.nak(
                        reply.psn().unwrap_or(self.expected),
                        self.msn,
                        Syndrome::Nak(NakCode::RemoteAccess),
                    );
                    io.host.event(EventKind::QpAccessErr);
                    outcome = Err(Fatal);
                }
            }
        }
        outcome
    }

    /// Sends a NAK with the missing PSN; for a selective-repeat peer, also the bitmap of kept packets.
    fn send_sequence_nak<H: Host>(
        &mut self,
        psn: Psn,
        msn: u32,
        io: &mut Io<'_, H>,
    ) -> Result<bool, TxError> {
        if psn != self.expected {
            // The packet arrived while the NAK was queued. The NAK may have replaced an ACK, so send one.
            return self.send_ack(psn.minus(1), msn, NO_CREDITS, io);
        }
        let mut report = [0; REPORT_LEN];
        let len = if self.peer_selects { self.kept.report(psn, &mut report) } else { 0 };
        let mut headers = io.headers(Operation::Acknowledge, psn, 0);
        headers.bth.selective = true;
        headers.aeth = Some(Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequence), msn });
        let payload = if len == 0 { TxPayload::None } else { TxPayload::Bytes(&report[..len]) };
        io.send_unacknowledged(&headers, payload)?;
        io.counters.acks_sent += 1;
        Ok(true)
    }

    fn send_ack<H: Host>(
        &mut self,
        psn: Psn,
        msn: u32,
        syndrome: Syndrome,
        io: &mut Io<'_, H>,
    ) -> Result<bool, TxError> {
        let (hello, becn) = (self.peer_extends, self.peer_extends && self.was_marked);
        let jumbo = self.exchanges_jumbo();
        match syndrome {
            Syndrome::Ack { credit } if io.id.service == Service::Rc => {
                let (dest_qpn, pkey) = (io.attr.dest_qpn, PKey::DEFAULT);
                let ack = AckOnly { dest_qpn, pkey, psn, jumbo, hello, selective: false, becn, credit, msn };
                io.send_unacknowledged(&ack, TxPayload::None)?;
            }
            _ => {
                let mut headers = io.headers(Operation::Acknowledge, psn, 0);
                (headers.bth.jumbo, headers.bth.hello, headers.bth.becn) = (jumbo, hello, becn);
                headers.aeth = Some(Aeth { syndrome, msn });
                self.send_general_ack(&headers, io)?;
            }
        }
        self.was_marked = false;
        io.counters.acks_sent += 1;
        Ok(true)
    }

    /// Sends an acknowledgement that [`AckOnly`] does not cover: a NAK, with the reason of a refusal if the peer understands it, or an ACK of XRC.
    #[cold]
    fn send_general_ack<H: Host>(&self, headers: &Headers, io: &mut Io<'_, H>) -> Result<(), TxError> {
        let is_refused = matches!(headers.aeth, Some(Aeth { syndrome: Syndrome::Nak(_), .. }));
        let reason = self.refused.filter(|_| is_refused && self.peer_extends).map(RefusalReason::to_payload);
        let payload = reason.as_ref().map_or(TxPayload::None, |bytes| TxPayload::Bytes(bytes));
        io.send_unacknowledged(headers, payload)
    }

    /// Sends the next packet of a READ response, or several from its middle. Returns whether the last one was sent.
    fn send_read<H: Host>(&mut self, read: ReadReply, io: &mut Io<'_, H>) -> Result<bool, TxError> {
        let len = read.len.min(read.segment);
        let last = read.len <= read.segment;
        let operation = match (read.fresh, last) {
            (true, true) => Operation::ReadResponseOnly,
            (true, false) => Operation::ReadResponseFirst,
            (false, true) => Operation::ReadResponseLast,
            (false, false) => Operation::ReadResponseMiddle,
        };
        let mut headers = io.headers(operation, read.psn, len);
        let is_middle = operation == Operation::ReadResponseMiddle;
        if !is_middle || read.even {
            headers.aeth = Some(Aeth { syndrome: NO_CREDITS, msn: read.msn });
        }
        headers.bth.extended = is_middle && read.even;
        headers.bth.hello = !is_middle && self.peer_extends;
        headers.bth.jumbo = headers.bth.hello && self.exchanges_jumbo();
        headers.bth.partial_icrc = len > io.mtu();
        let payload = if len == 0 {
            TxPayload::None
        } else {
            let ReadReply { pd, rkey, addr, again: is_repeated, .. } = read;
            // A response of one short packet is not worth reading ahead.
            let rest =
                if read.fresh && (!last || len > io.mtu()) { self.replies.announce(&read) } else { read.len };
            let is_first = read.fresh && !read.continues;
            TxPayload::Remote { pd, rkey, addr, len, rest, is_first, is_repeated }
        };
        let count = if is_middle { (read.len - 1) / len } else { 1 };
        let sent = io.send(&Segment { count, ..Segment::unacknowledged(&headers, payload) })?;
        if !last && let Some(Reply::Read(front)) = self.replies.queue.front_mut() {
            front.psn = read.psn.plus(sent);
            front.addr = read.addr.wrapping_add(u64::from(sent) * u64::from(len));
            front.len = read.len - sent * len;
            front.fresh = false;
        }
        Ok(last)
    }
}

fn send_atomic<H: Host>(psn: Psn, msn: u32, original: u64, io: &mut Io<'_, H>) -> Result<bool, TxError> {
    let mut headers = io.headers(Operation::AtomicAcknowledge, psn, 0);
    headers.aeth = Some(Aeth { syndrome: NO_CREDITS, msn });
    headers.atomic_ack = Some(original);
    io.send_unacknowledged(&headers, TxPayload::None)?;
    Ok(true)
}
