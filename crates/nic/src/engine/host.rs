//! How a queue pair reaches memory, links and completion queues.

use super::outgoing::{Batch, Outgoing};
use super::{Engine, QpCore};
use crate::link::TxBatch;
use crate::local::{Path, Reaching};
use crate::memory::{FetchTarget, MIN_RENDEZVOUS, MessagePart, Peer, RegionGuard, settle_stopped};
use crate::queues::{CqCore, SrqCore};
use ferroce_os::log;
use ferroce_proto::iwarp::StreamEgress;
use ferroce_proto::iwarp::wire::Fpdu;
use ferroce_proto::qp::{
    Attempt, DropReason, Egress, Events, HistoryEvent, Memory, OneSided, Placement, PostError, RecvWqe,
    RefusalReason, Segment, Side, TxError, TxPayload, WriteHeaders,
};
use ferroce_proto::verbs::{
    Access, AtomicOp, Completion, EventKind, MemoryFault, MwBind, QpCap, QpState, Route, SendWr, Sge,
    WcStatus,
};
use ferroce_proto::wire::{RendezvousSend, SourceRef};
use ferroce_proto::{PdId, RKey, Srqn};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Packets that one queue pair may send before others continue.
const BURST: u32 = 256;

/// Lengths of messages that are sent to a local peer by rendezvous. Longer ones would delay all others.
const RENDEZVOUS_BYTES: RangeInclusive<usize> = MIN_RENDEZVOUS..=64 << 20;

/// What one queue pair can use while its lock is held: memory, links and completion queues.
///
/// The queue pair has a lifetime of its own, since only `out` has work to do when the host is dropped.
pub(super) struct NicHost<'a, 'q> {
    pub(super) engine: &'a Engine,
    pub(super) qp: &'q QpCore,
    /// A batch shared with other queue pairs, until this one sends.
    shared: Option<&'a mut TxBatch>,
    /// The packets it sends, created with the first one: many operations need no packet, and then this costs nothing.
    out: ManuallyDrop<Option<Outgoing<'a>>>,
    /// Holds no region while `out` may wait for one.
    guard: RegionGuard<'a>,
    /// The path to the peer's memory, from its first use until something is sent.
    reaching: Option<Reaching<'q>>,
    burst_left: u32,
    /// The queue pair stopped only because its burst was used up.
    pub(super) has_more: bool,
    pub(super) completions: u32,
    /// Something was put into the peer's ring without the link, and the peer may sleep.
    used_ring: bool,
    /// The terms under which local peers access the queue pair may have changed.
    pub(super) terms_changed: bool,
    /// The request being posted is the last of its list.
    pub(super) is_last: bool,
}

impl Drop for NicHost<'_, '_> {
    #[inline(always)] // otherwise every operation calls a function that mostly has nothing to drop
    fn drop(&mut self) {
        if self.out.is_some() {
            // SAFETY: the host is being dropped, so the field is not used again.
            unsafe { ManuallyDrop::drop(&mut self.out) };
        }
    }
}

impl<'a, 'q> NicHost<'a, 'q> {
    /// A host that sends with a shared batch.
    pub(super) fn new(engine: &'a Engine, qp: &'q QpCore, tx: &'a mut TxBatch) -> Self {
        Self::with(engine, qp, Some(tx))
    }

    /// A host that sends with the thread's own batch.
    #[inline]
    pub(super) fn alone(engine: &'a Engine, qp: &'q QpCore) -> Self {
        Self::with(engine, qp, None)
    }

    /// With a batch, or without.
    #[inline]
    pub(super) fn with(engine: &'a Engine, qp: &'q QpCore, shared: Option<&'a mut TxBatch>) -> Self {
        let guard = RegionGuard::new(&engine.device.regions);
        let (out, reaching) = (ManuallyDrop::new(None), None);
        NicHost {
            engine,
            qp,
            shared,
            out,
            guard,
            reaching,
            burst_left: BURST,
            has_more: false,
            completions: 0,
            used_ring: false,
            terms_changed: false,
            is_last: false,
        }
    }

    #[inline]
    fn out(&mut self) -> &mut Outgoing<'a> {
        let NicHost { engine, shared, out, .. } = self;
        out.get_or_insert_with(|| Outgoing::new(engine, shared.take().map_or_else(Batch::own, Batch::Shared)))
    }

    fn peer(&self, pd: PdId) -> Peer {
        Peer { pd, qp: self.qp.qpn }
    }

    /// The XRC shared receive queue with this number, if it is in this queue pair's XRC domain.
    fn xrc_srq(&self, srq: Srqn) -> Option<Arc<SrqCore>> {
        self.engine.device.srqs.get(srq, self.qp.xrc_domain?)
    }

    /// Sends everything by the link. Called with the queue pair's lock held, so that its packets keep their order.
    #[inline(always)] // mostly there is nothing to send
    pub(super) fn flush(&mut self) {
        // Packets of other queue pairs in the shared batch are sent too.
        let any = self.out.is_some() || self.shared.as_ref().is_some_and(|tx| !tx.is_empty());
        if any || self.used_ring { self.flush_some() } else { self.release_memory() }
    }

    /// The same, but leaves packets in the shared batch for the next queue pair to flush. Only for replies: another thread may post requests as
    /// soon as the lock is released, and these must not overtake others. Replies that point to registered memory are sent.
    pub(super) fn leave_replies(&mut self) {
        let holds_memory = self.out.as_ref().is_some_and(|out| out.holds_memory());
        if self.used_ring || holds_memory { self.flush_some() } else { self.release_memory() }
    }

    #[inline(never)]
    fn flush_some(&mut self) {
        let sleeper = if std::mem::take(&mut self.used_ring) {
            self.path().and_then(|path| path.sleeper())
        } else {
            None
        };
        self.release_memory();
        if self.out.is_some() || self.shared.as_ref().is_some_and(|tx| !tx.is_empty()) {
            self.out().flush();
        }
        if let Some(slot) = sleeper {
            self.engine.shared_port.wake(slot);
        }
    }

    /// Releases the memory it holds, this end's and the peer's. Called before anything that may wait.
    #[inline]
    pub(super) fn release_memory(&mut self) {
        self.guard.release();
        self.reaching = None;
    }

    /// Prefetches the ring of a local peer: a short message may be about to be sent.
    #[inline(always)]
    pub(super) fn prefetch_ring(&mut self) {
        if let Some(path) = reach(&mut self.reaching, self.qp).path() {
            path.prefetch_ring();
        }
    }

    /// Posts a send of a queue pair over a stream.
    pub(super) fn post_stream(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let (engine, qp) = (self.engine, self.qp);
        match qp.stream() {
            Some(stream) => engine.post_stream(qp, stream, wr, self),
            None => Err(PostError::WrongState(QpState::Reset)),
        }
    }

    /// Checks a request to a queue pair over a stream.
    pub(super) fn check_stream(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        match self.qp.stream() {
            Some(stream) => stream.machine.lock().check_send(wr).map(|_| ()),
            None => Err(PostError::WrongState(QpState::Reset)),
        }
    }

    /// Sends that a queue pair over a stream has room for.
    pub(super) fn stream_room(&self) -> usize {
        self.qp.stream().map_or(0, |stream| stream.machine.lock().send_room())
    }

    /// The sizes of a queue pair over a stream.
    pub(super) fn stream_cap(&self) -> QpCap {
        self.qp.stream().map_or_else(QpCap::default, |stream| stream.machine.lock().query().cap)
    }

    /// Whether packets wait in a batch.
    #[inline]
    fn has_waiting(&self) -> bool {
        self.out.as_ref().is_some_and(|out| !out.is_empty())
            || self.shared.as_ref().is_some_and(|tx| !tx.is_empty())
    }

    /// Puts a packet to a local peer into its ring, where the peer can read it immediately.
    #[inline]
    fn try_ring<W: WriteHeaders>(&mut self, route: &Route, segment: &Segment<'_, W>) -> Attempt {
        if self.has_waiting() {
            return Attempt::Declined;
        }
        let Some(path) = reach(&mut self.reaching, self.qp).path() else { return Attempt::Declined };
        let (payload, len) = (segment.payload, segment.payload.len());
        let sent = segment.headers.with_bytes(len, |head| {
            let attempt = path.push_packet(&mut self.guard, route, head, payload);
            attempt.is_done().then_some(head.len() + len)
        });
        let Some(bytes) = sent else { return Attempt::Declined };
        self.used_ring = true;
        self.qp.tally.ring_packets.add(1);
        self.qp.tally.ring_bytes.add(bytes as u64);
        Attempt::Done
    }

    /// Sends a long message to a local peer by rendezvous: the ring carries a record with the address of the bytes, and the peer copies them.
    /// Returns `None` if nothing was sent.
    fn send_rendezvous(
        &mut self,
        route: &Route,
        head: &RendezvousSend,
        payload: TxPayload<'_>,
    ) -> Option<()> {
        if !self.path().filter(|_| RENDEZVOUS_BYTES.contains(&payload.len()))?.may_send_rendezvous() {
            return None;
        }
        // Packets in the batch come first.
        if self.has_waiting() {
            self.flush();
        }
        let path = reach(&mut self.reaching, self.qp).path()?;
        let len = path.send_rendezvous(&mut self.guard, route, head, payload)?;
        self.used_ring = true;
        self.qp.tally.ring_packets.add(1);
        self.qp.tally.ring_bytes.add(len as u64);
        self.qp.tally.rendezvous.add(1);
        Some(())
    }

    /// Copies a rendezvous send of the peer.
    fn fetch_to(&mut self, to: FetchTarget<'_>, source: &SourceRef) -> Attempt {
        let path = reach(&mut self.reaching, self.qp).path();
        let attempt = path.map_or(Attempt::Declined, |path| path.fetch(&mut self.guard, to, source));
        if !attempt.is_done() {
            // The peer must not send by rendezvous again from memory of this kind. The descriptor changes before the lock is released.
            let is_on_gpu = self.path().is_some_and(|path| path.is_on_gpu(source));
            let fetches = if is_on_gpu { &self.qp.fetches_gpu } else { &self.qp.fetches };
            fetches.store(false, Ordering::Relaxed);
            self.terms_changed = true;
        }
        attempt
    }

    /// Sends a short packet without a batch, if no other packet waits and no further request of the list follows.
    #[inline]
    fn try_single<W: WriteHeaders>(&mut self, route: &Route, segment: &Segment<'_, W>) -> Attempt {
        // A list leaves as one batch, and a packet must not overtake those that wait in a batch. Only the route to the peer of
        // a connection is always the same.
        let is_alone = self.is_last && self.out.is_none() && self.shared.is_none() && segment.is_acknowledged;
        if !is_alone || self.burst_left == 0 {
            return Attempt::Declined;
        }
        // SAFETY: a host exists only while the lock of its queue pair is held, and only the host uses this field.
        let short = unsafe { self.qp.short.get() };
        let len = segment.payload.len();
        let Some(body) = segment.headers.with_bytes(len, |head| short.begin(head, len)) else {
            return Attempt::Declined;
        };
        let is_filled = match segment.payload {
            TxPayload::None => true,
            TxPayload::Bytes(bytes) => {
                body.copy_from_slice(bytes);
                true
            }
            TxPayload::Local { pd, sges, offset, .. } => {
                self.engine.device.regions.gather(pd, sges, offset, body, self.qp.address()).is_ok()
            }
            TxPayload::Remote { .. } => false,
        };
        // The system call takes long, and deregistration of a region must not wait for it.
        self.release_memory();
        let is_sent = is_filled && self.engine.link.try_send_one(short, route).is_done();
        self.burst_left -= u32::from(is_sent);
        Attempt::of(is_sent)
    }

    /// Adds packets to the batch.
    fn send_batched<W: WriteHeaders>(
        &mut self,
        route: &Route,
        segment: &Segment<'_, W>,
    ) -> Result<u32, TxError> {
        if self.burst_left == 0 {
            self.has_more = true;
            return Err(TxError::Full);
        }
        self.release_memory();
        let (qp, most) = (self.qp, self.burst_left);
        let sent = self.out().push(route, segment, most, qp).map_err(TxError::Fault)?;
        self.burst_left -= sent;
        Ok(sent)
    }

    /// Adds a completion to the queue of an XRC shared receive queue.
    #[inline(never)]
    fn complete_xrc(&mut self, number: Srqn, completion: Completion) {
        let shared = self.xrc_srq(number);
        // A queue that was destroyed gets no completion.
        let Some(xrc) = shared.as_ref().and_then(|srq| srq.xrc.as_ref()) else { return };
        if xrc.cq.push(completion).is_err() {
            overrun(self.qp, &xrc.cq, completion.wr_id);
        }
        self.completions += 1;
    }

    #[inline]
    fn path(&mut self) -> Option<&mut Path> {
        reach(&mut self.reaching, self.qp).path()
    }
}

/// A completion found its queue full.
#[cold]
#[inline(never)]
fn overrun(qp: &QpCore, cq: &CqCore, wr_id: u64) {
    log::completion(format_args!(
        "QP {}: completion of wr_id {wr_id:#x} found CQ {} full with {} completions; poll more often, or create it deeper",
        qp.qpn,
        cq.id,
        cq.depth()
    ));
    qp.overrun.store(true, Ordering::Relaxed);
}

/// The path to the peer's memory, in use until the host releases it.
#[inline]
fn reach<'r, 'q>(reaching: &'r mut Option<Reaching<'q>>, qp: &'q QpCore) -> &'r mut Reaching<'q> {
    // SAFETY: a host exists only while the lock of its queue pair is held, and only one at a time has not released the path.
    reaching.get_or_insert_with(|| Reaching::new(unsafe { qp.path.get() }, &qp.tally))
}

impl Egress for NicHost<'_, '_> {
    #[inline]
    fn send<W: WriteHeaders>(&mut self, route: &Route, segment: &Segment<'_, W>) -> Result<u32, TxError> {
        let attempt = match segment.count {
            1 if self.path().is_some() => self.try_ring(route, segment),
            1 => self.try_single(route, segment),
            _ => Attempt::Declined,
        };
        if attempt.is_done() { Ok(1) } else { self.send_batched(route, segment) }
    }

    #[inline(always)]
    fn try_direct(&mut self, pd: PdId, request: &OneSided<'_>) -> Attempt {
        // No closure: it would not be inlined, and the whole request would be stored and loaded again.
        let Some(path) = reach(&mut self.reaching, self.qp).path() else { return Attempt::Declined };
        if path.write(pd, request).is_done() {
            return Attempt::Done;
        }
        // The original is never stored in memory: only this copy has an address.
        let request = *request;
        path.perform(&mut self.guard, pd, &request)
    }

    fn can_access(&mut self, rkey: RKey, need: Access) -> bool {
        self.path().is_some_and(|path| path.reaches(rkey, need))
    }

    fn has_drained(&mut self) -> bool {
        // Packets in the batch have not left yet.
        let waits = self.out.as_ref().is_some_and(|out| !out.is_empty());
        !waits && self.path().is_some_and(|path| path.has_caught_up())
    }

    fn try_rendezvous(&mut self, route: &Route, head: &RendezvousSend, payload: TxPayload<'_>) -> Attempt {
        Attempt::of(self.send_rendezvous(route, head, payload).is_some())
    }

    fn coalesces(&mut self) -> bool {
        // Waiting saves nothing if packets already wait in the batch, if the program is about to sleep, or if the packets take the ring
        // of a local peer.
        self.out.is_none()
            && self.path().is_none()
            && !self.engine.activity.any_armed()
            && self.engine.polling.may_coalesce()
    }

    fn large_segment(&mut self) -> Option<u32> {
        self.path().and_then(|path| path.segment())
    }

    fn carries_jumbo(&mut self, route: &Route) -> bool {
        self.path().is_none() && self.qp.jumbo_path.carries_jumbo(route)
    }
}

impl StreamEgress for NicHost<'_, '_> {
    fn send_fpdu(&mut self, fpdu: &Fpdu<'_>, from: usize) -> Result<usize, TxError> {
        if self.burst_left == 0 {
            return Err(TxError::Full);
        }
        self.burst_left -= 1;
        self.release_memory();
        self.engine.send_fpdu(self.qp, fpdu, from)
    }

    fn keep_fpdu(&mut self, fpdu: &Fpdu<'_>, from: usize) -> Result<(), TxError> {
        self.engine.keep_fpdu(self.qp, fpdu, from)
    }
}

impl Memory for NicHost<'_, '_> {
    fn is_peer(&mut self, slot: u8) -> bool {
        self.path().is_some_and(|path| path.leads_to(slot))
    }

    fn fetch(&mut self, pd: PdId, sges: &[Sge], source: &SourceRef) -> Attempt {
        self.fetch_to(FetchTarget::Sges { pd, sges }, source)
    }

    fn fetch_remote(&mut self, pd: PdId, rkey: RKey, addr: u64, source: &SourceRef) -> Attempt {
        self.fetch_to(FetchTarget::Remote { peer: self.peer(pd), rkey, addr }, source)
    }

    #[inline(always)] // one short copy, mostly
    fn scatter(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
        placement: Placement,
    ) -> Result<(), MemoryFault> {
        let part = MessagePart { qp: self.qp.address(), placement };
        if let ([sge], 0) = (sges, offset)
            && data.len() as u64 <= u64::from(sge.len)
            && let Some(path) = reach(&mut self.reaching, self.qp).path()
        {
            return path.place(&mut self.guard, pd, sge, data, part);
        }
        self.guard.scatter(pd, sges, offset, data, part)
    }

    fn check_remote(
        &mut self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault> {
        self.engine.device.regions.check_remote(self.peer(pd), rkey, addr, len, need)
    }

    fn write_remote(
        &mut self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        data: &[u8],
        placement: Placement,
    ) -> Result<(), MemoryFault> {
        let part = MessagePart { qp: self.qp.address(), placement };
        self.guard.write_remote(self.peer(pd), rkey, addr, data, part)
    }

    fn atomic(&mut self, pd: PdId, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        self.engine.device.regions.atomic(self.peer(pd), rkey, addr, op)
    }

    fn store_remote(&mut self, pd: PdId, rkey: RKey, addr: u64, value: [u8; 8]) -> Result<(), MemoryFault> {
        self.engine.device.regions.store_remote(self.peer(pd), rkey, addr, value)
    }

    fn flush_remote(&mut self, pd: PdId, rkey: RKey, range: Option<(u64, u64)>) -> Result<(), MemoryFault> {
        self.engine.device.regions.flush_remote(self.peer(pd), rkey, range)
    }

    fn invalidate(&mut self, pd: PdId, rkey: RKey) -> Result<(), MemoryFault> {
        // Invalidation waits for all holders of the region, and this host may be one of them.
        self.flush();
        self.engine.device.regions.invalidate(self.peer(pd), rkey)
    }

    fn bind_window(&mut self, pd: PdId, bind: &MwBind) -> Result<(), MemoryFault> {
        // As above: binding anew takes the window's lock.
        self.flush();
        self.engine.device.regions.bind(self.peer(pd), bind)
    }
}

impl Events for NicHost<'_, '_> {
    fn xrc_pd(&mut self, srq: Srqn) -> Option<PdId> {
        self.xrc_srq(srq)?.xrc.as_ref().map(|xrc| xrc.pd)
    }

    fn take_shared_recv(&mut self, xrc: Option<Srqn>, into: &mut RecvWqe) -> bool {
        match xrc {
            Some(number) => self.xrc_srq(number).is_some_and(|srq| srq.take(self.qp.qpn, into)),
            None => self.qp.srq.as_ref().is_some_and(|srq| srq.take(self.qp.qpn, into)),
        }
    }

    #[inline(always)] // as `CqCore::push`
    fn complete(&mut self, side: Side, completion: Completion) {
        self.qp.tally.completions.add(1);
        if completion.status != WcStatus::Success {
            let tally = &self.qp.tally;
            // The error that stopped the queue pair was counted and explained; if the program stopped it, there was none.
            match completion.status {
                WcStatus::WrFlushErr => tally.flushed_completions.add(1),
                _ => tally.failed_completions.add(1),
            }
            self.qp.history.record_failed(completion.status, completion.wr_id, completion.vendor_err);
            self.engine.withdraw_failed(self.qp);
            settle_stopped(self.qp.address());
        }
        let cq = match side {
            Side::Send => &self.qp.send_cq,
            Side::Recv => &self.qp.recv_cq,
            Side::Xrc(number) => return self.complete_xrc(number, completion),
        };
        if cq.push(completion).is_err() {
            overrun(self.qp, cq, completion.wr_id);
        }
        self.completions += 1;
    }

    fn event(&mut self, kind: EventKind) {
        if matches!(kind, EventKind::QpFatal | EventKind::QpReqErr | EventKind::QpAccessErr) {
            settle_stopped(self.qp.address());
        }
        self.qp.history.record(HistoryEvent::Raised(kind), 1);
        self.qp.raise(kind);
    }

    fn dropped(&mut self, reason: DropReason, why: fmt::Arguments<'_>) {
        self.engine.device.counters.dropped(reason);
        self.qp.history.record(HistoryEvent::Dropped(reason), 1);
        log::drop(why);
    }

    fn refused(&mut self, reason: RefusalReason, why: fmt::Arguments<'_>) {
        self.engine.device.counters.refused(reason);
        self.qp.history.record(HistoryEvent::Refused(reason), 1);
        log::completion(why);
    }

    fn explain(&mut self, why: fmt::Arguments<'_>) {
        log::completion(why);
    }

    fn record(&mut self, event: HistoryEvent, count: u32) {
        self.terms_changed |= matches!(event, HistoryEvent::State(_));
        self.qp.history.record(event, count);
    }
}

#[cfg(test)]
mod tests;
