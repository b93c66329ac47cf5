//! What a thread needs to poll for a progress context ([`Engine`](super::Engine)): the source of packets, the timers, the queue pairs that wait
//! to send, and the batches, which the progress lock guards. That lock is only ever tried.

use super::QpCore;
use super::drive::YIELDS_AFTER;
use super::qps::QpTable;
use super::timers::Timers;
use crate::link::{Link, RxBatch, TxBatch, now};
use ferroce_os::lock::Mutex;
use ferroce_os::sync;
use ferroce_proto::{Qpn, Time};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Requests that leave one by one after coalesced requests had to wait for the background thread because nobody polled.
const UNCOALESCED: u32 = 1024;

/// What the threads that poll for one progress context share.
pub(super) struct Polling {
    /// Where packets arrive.
    pub(super) source: Arc<dyn Link>,
    /// The progress lock, and what its holder works with.
    pub(super) lock: Mutex<Progress>,
    pub(super) timers: Timers,
    /// Queue pairs that wait to continue sending: they let others send, or their requests are coalesced.
    ready: Mutex<VecDeque<Arc<QpCore>>>,
    any_ready: AtomicBool,
    /// The context has streams, which every poll serves. `any_ready` is then always true, so a poll of RoCE need not check the wire.
    has_streams: bool,
    /// How often a poller found the progress lock taken. A lost count does not matter.
    pub(super) contentions: AtomicU32,
    /// Polls without arrivals after which a poller yields the processor.
    pub(super) yields_after: AtomicU32,
    /// Pollers do not yield the processor before this time.
    pub(super) keeps_until_ns: AtomicU64,
    /// Requests that must not wait for more, because nobody polled for earlier ones that did.
    uncoalesced: AtomicU32,
    pub(super) unsent_ack: UnsentAck,
    /// The progress lock was not released for as long as a queue pair that stops waits for it.
    pub(super) is_stuck: AtomicBool,
}

impl Polling {
    pub(super) fn new(source: Arc<dyn Link>) -> Self {
        Polling {
            source,
            lock: Mutex::new(Progress::new()),
            timers: Timers::default(),
            ready: Mutex::default(),
            any_ready: AtomicBool::new(false),
            has_streams: false,
            contentions: AtomicU32::new(0),
            yields_after: AtomicU32::new(YIELDS_AFTER),
            keeps_until_ns: AtomicU64::new(0),
            uncoalesced: AtomicU32::new(0),
            unsent_ack: UnsentAck::none(),
            is_stuck: AtomicBool::new(false),
        }
    }

    /// The same for a context with streams.
    pub(super) fn with_streams(mut self) -> Self {
        self.has_streams = true;
        self.any_ready = AtomicBool::new(true);
        self
    }

    /// Whether a queue pair waits to continue sending, or the context has streams.
    #[inline]
    pub(super) fn any_ready(&self) -> bool {
        self.any_ready.load(Ordering::SeqCst)
    }

    /// How many queue pairs wait to continue sending.
    pub(super) fn count_ready(&self) -> usize {
        self.ready.lock().len()
    }

    /// Whether requests may wait for more while packets are in flight. A lost count does not matter.
    pub(super) fn may_coalesce(&self) -> bool {
        let left = self.uncoalesced.load(Ordering::Relaxed);
        if left > 0 {
            self.uncoalesced.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// Called when the background thread has found coalesced requests that nobody polled for.
    pub(super) fn stop_coalescing(&self) {
        self.uncoalesced.store(UNCOALESCED, Ordering::Relaxed);
    }

    /// Lets a queue pair continue sending later. Returns whether this call added it to the list.
    pub(super) fn push_ready(&self, qp: &Arc<QpCore>) -> bool {
        let is_new = !qp.ready.load(Ordering::Relaxed) && !qp.ready.swap(true, Ordering::Relaxed);
        if is_new {
            self.ready.lock().push_back(qp.clone());
            // For `PollerActivity::wake_before`, if the caller wakes the background thread.
            self.any_ready.store(true, Ordering::SeqCst);
        }
        is_new
    }

    /// The next queue pair that waits to continue sending.
    pub(super) fn pop_ready(&self) -> Option<Arc<QpCore>> {
        let mut ready = self.ready.lock();
        let next = ready.pop_front();
        self.any_ready.store(self.has_streams || !ready.is_empty(), Ordering::Relaxed);
        drop(ready);
        let qp = next?;
        qp.ready.store(false, Ordering::Relaxed);
        Some(qp)
    }
}

/// What the holder of the progress lock works with; reused from poll to poll.
pub(super) struct Progress {
    pub(super) rx: RxBatch,
    pub(super) tx: TxBatch,
    pub(super) touched: Vec<Arc<QpCore>>,
    pub(super) delayed_acks: DelayedAcks,
    /// Delayed acknowledgements have waited for a whole poll.
    pub(super) is_overdue: bool,
    /// Completions that the arrivals of the last poll made.
    pub(super) completions: u32,
    /// Polls since the last arrival.
    pub(super) idle: u32,
    /// Polls with arrivals since the clock was read.
    pub(super) clockless: u32,
    pub(super) recent: Recent,
}

/// The time of a poll, read when it is first needed.
#[derive(Default)]
pub(super) struct Clock(pub(super) Option<Time>);

impl Clock {
    #[inline]
    pub(super) fn now(&mut self) -> Time {
        *self.0.get_or_insert_with(now)
    }
}

/// The queue pair that got the last packet: the next packet is mostly for it too.
#[derive(Default)]
pub(super) struct Recent {
    qp: Option<Arc<QpCore>>,
    /// The table's number of removals at the look-up.
    removals: u64,
}

impl Recent {
    /// Drops a queue pair that may have been destroyed.
    #[inline]
    pub(super) fn refresh(&mut self, removals: u64) {
        if self.removals != removals {
            *self = Recent { qp: None, removals };
        }
    }

    /// The queue pair with this number. A look-up in the table costs four locked instructions.
    #[inline]
    pub(super) fn find(&mut self, qpn: Qpn, table: &QpTable) -> Option<&Arc<QpCore>> {
        self.refresh(table.removals());
        if self.qp.as_ref().is_none_or(|qp| qp.qpn != qpn) {
            self.qp = table.get(qpn);
        }
        self.qp.as_ref()
    }
}

/// In place of a queue pair number, which has 24 bits: no queue pair.
const NO_QP: u32 = u32::MAX;

/// The first queue pair of [`DelayedAcks`], or [`NO_QP`] once a request has piggybacked its ACK. In a ping-pong every answer does. The next poll then
/// need not lock the queue pair to learn that, nor read the clock: this saves a locked instruction and about a hundred others.
///
/// The holder of the progress lock sets it, and a thread that posts clears it, both with that queue pair's lock held. So neither overwrites a
/// later store of the other. [`Self::renew`] needs no lock: it only sets it, and then the poll looks into the queue pair.
/// The number of a destroyed queue pair is not reused for thousands of others, far longer than it may stay here.
pub(super) struct UnsentAck(sync::AtomicU32);

impl UnsentAck {
    /// No queue pair waits.
    pub(super) fn none() -> UnsentAck {
        UnsentAck(sync::AtomicU32::new(NO_QP))
    }

    /// The ACK of this queue pair is unsent. The caller holds its lock.
    #[inline]
    fn set(&self, qpn: Qpn) {
        self.0.store(qpn.value(), Ordering::Relaxed);
    }

    /// This queue pair has no reply to send any more. The caller holds its lock.
    #[inline]
    pub(super) fn clear_if(&self, qpn: Qpn) {
        if self.0.load(Ordering::Relaxed) == qpn.value() {
            self.0.store(NO_QP, Ordering::Relaxed);
        }
    }

    /// Some of the queue pairs were destroyed; `first` is the first that still waits. Forgets that it has sent its acknowledgements, if so.
    fn renew(&self, first: Option<&Arc<QpCore>>) {
        self.0.store(first.map_or(NO_QP, |qp| qp.qpn.value()), Ordering::Relaxed);
    }

    /// Whether a request has carried all acknowledgements, if those of so many messages wait.
    #[inline]
    fn all_piggybacked(&self, waiting: usize) -> bool {
        waiting == 1 && self.0.load(Ordering::Relaxed) == NO_QP
    }
}

/// Acknowledgements that wait for the next poll: the application that just got its data may post an answer that carries them.
#[derive(Default)]
pub(super) struct DelayedAcks {
    pub(super) waiting: Vec<Arc<QpCore>>,
    /// The one that waited last. In a ping-pong it also waits next, and counting a reference is a locked instruction.
    pub(super) last: Option<Arc<QpCore>>,
    /// The table's number of removals when both were checked.
    removals: u64,
}

impl DelayedAcks {
    /// The caller holds the lock of the queue pair.
    #[inline]
    pub(super) fn push(&mut self, qp: &Arc<QpCore>, unsent_ack: &UnsentAck) {
        if self.waiting.is_empty() {
            unsent_ack.set(qp.qpn);
        }
        let last = self.last.take().filter(|last| Arc::ptr_eq(last, qp));
        self.waiting.push(last.unwrap_or_else(|| qp.clone()));
    }

    /// Whether a request has carried all of them.
    #[inline]
    pub(super) fn all_piggybacked(&self, unsent_ack: &UnsentAck) -> bool {
        unsent_ack.all_piggybacked(self.waiting.len())
    }

    /// Ends the wait: all were sent.
    #[inline]
    pub(super) fn finish(&mut self) {
        self.last = self.waiting.pop();
        self.waiting.clear();
    }

    /// Drops queue pairs that were destroyed. They have sent their acknowledgements.
    #[inline]
    pub(super) fn refresh(&mut self, table: &QpTable, unsent_ack: &UnsentAck) {
        let removals = table.removals();
        if self.removals != removals {
            (self.last, self.removals) = (None, removals);
            self.waiting.retain(|qp| table.has(qp));
            unsent_ack.renew(self.waiting.first());
        }
    }
}

impl Progress {
    fn new() -> Self {
        Progress {
            rx: RxBatch::new(),
            tx: TxBatch::new(),
            touched: Vec::new(),
            delayed_acks: DelayedAcks::default(),
            is_overdue: false,
            completions: 0,
            idle: 0,
            clockless: 0,
            recent: Recent::default(),
        }
    }
}

#[cfg(all(test, loom))]
mod models;
