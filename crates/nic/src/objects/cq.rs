//! Completion queues.

use super::channel::CompletionChannel;
use super::event::{EventQueue, EventSource};
use crate::engine::Pulse;
use crate::error::Error;
use crate::link::now;
use crate::nic::NicInner;
use ferroce_proto::verbs::{Completion, EventKind, WcStatus};
use ferroce_proto::{Qpn, Time};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Most entries of a CQ.
pub(crate) const MAX_CQE: u32 = 1 << 22;

/// Successful polls between two turns of the engine that they give.
const HITS_PER_TURN: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Any,
    Solicited,
}

struct State {
    ring: VecDeque<Completion>,
    depth: usize,
    armed: Armed,
    /// When each completion of the ring was added, where somebody wants to know.
    stamps: Option<VecDeque<Time>>,
    /// A full ring loses its oldest completion instead of breaking.
    ignores_overrun: bool,
}

impl State {
    fn add(&mut self, completion: Completion) {
        self.ring.push_back(completion);
        if let Some(stamps) = &mut self.stamps {
            stamps.push_back(now());
        }
    }

    fn forget(&mut self, is_forgotten: impl Fn(&Completion) -> bool) {
        if let Some(stamps) = &mut self.stamps {
            let mut of_ring = self.ring.iter();
            stamps.retain(|_| of_ring.next().is_some_and(|completion| !is_forgotten(completion)));
        }
        self.ring.retain(|completion| !is_forgotten(completion));
    }
}

/// The part that queue pairs push into.
#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct CqCore {
    pub(crate) id: u32,
    pub(crate) cookie: u64,
    me: Weak<CqCore>,
    state: Mutex<State>,
    /// Length of the ring, readable without its lock.
    waiting: AtomicUsize,
    overrun: AtomicBool,
    /// Polls that found something.
    hits: AtomicU32,
    channel: Option<Arc<CompletionChannel>>,
    pulse: Arc<Pulse>,
    events: Arc<EventQueue>,
}

impl CqCore {
    pub(crate) fn new(
        id: u32,
        cookie: u64,
        depth: u32,
        channel: Option<Arc<CompletionChannel>>,
        pulse: Arc<Pulse>,
        events: Arc<EventQueue>,
    ) -> Arc<Self> {
        let depth = depth as usize;
        let ring = VecDeque::with_capacity(depth);
        let state = Mutex::new(State { ring, depth, armed: Armed::No, stamps: None, ignores_overrun: false });
        Arc::new_cyclic(|me| CqCore {
            id,
            cookie,
            me: me.clone(),
            state,
            waiting: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            hits: AtomicU32::new(0),
            channel,
            pulse,
            events,
        })
    }

    /// Adds a completion. False if there is no room: the CQ is broken then, and the queue pair with it
    /// (IBA 11.6.3.1).
    #[must_use]
    pub(crate) fn push(&self, completion: Completion) -> bool {
        let mut state = self.state.lock();
        if state.ring.len() >= state.depth && state.ignores_overrun {
            state.ring.pop_front();
            state.stamps.as_mut().and_then(VecDeque::pop_front);
        } else if state.ring.len() >= state.depth {
            if !self.overrun.swap(true, Ordering::Relaxed) {
                self.events.raise(EventKind::CqErr, EventSource::Cq(self.id));
            }
            return false;
        }
        state.add(completion);
        self.waiting.store(state.ring.len(), Ordering::Release);
        // A failure always counts as solicited, or its waiter would sleep on (IBA 11.4.2.2).
        let solicited = completion.solicited || completion.status != WcStatus::Success;
        let fires = match state.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited,
        };
        if fires {
            state.armed = Armed::No;
            self.pulse.disarmed();
            if let Some(channel) = &self.channel {
                channel.fire(self.me.clone());
            }
        }
        true
    }

    /// Forgets the completions of a queue pair that is gone.
    pub(crate) fn purge(&self, qpn: Qpn) {
        let mut state = self.state.lock();
        state.forget(|c| c.qpn == qpn);
        self.waiting.store(state.ring.len(), Ordering::Release);
    }

    fn take(&self, out: &mut [Completion]) -> Result<usize, Error> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return Ok(0);
        }
        let mut state = self.state.lock();
        let n = out.len().min(state.ring.len());
        for (slot, completion) in out.iter_mut().zip(state.ring.drain(..n)) {
            *slot = completion;
        }
        if let Some(stamps) = &mut state.stamps {
            stamps.drain(..n);
        }
        self.waiting.store(state.ring.len(), Ordering::Release);
        Ok(n)
    }

    fn take_stamped(&self) -> Option<(Completion, Time)> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = self.state.lock();
        let completion = state.ring.pop_front()?;
        let stamp = state.stamps.as_mut().and_then(VecDeque::pop_front).unwrap_or_default();
        self.waiting.store(state.ring.len(), Ordering::Release);
        Some((completion, stamp))
    }

    fn check_overrun(&self) -> Result<(), Error> {
        if !self.overrun.load(Ordering::Relaxed) {
            return Ok(());
        }
        let state = self.state.lock();
        if state.ring.is_empty() { Err(Error::CqOverrun { depth: state.depth }) } else { Ok(()) }
    }
}

/// A completion queue.
pub struct Cq {
    pub(crate) core: Arc<CqCore>,
    nic: Arc<NicInner>,
}

impl Cq {
    pub(crate) fn new(core: Arc<CqCore>, nic: Arc<NicInner>) -> Self {
        Cq { core, nic }
    }

    pub(crate) fn belongs_to(&self, nic: &Arc<NicInner>) -> bool {
        Arc::ptr_eq(&self.nic, nic)
    }

    /// Number of this CQ within the device: what events and channels name it by.
    pub fn id(&self) -> u32 {
        self.core.id
    }

    /// Entries it holds.
    pub fn depth(&self) -> usize {
        self.core.state.lock().depth
    }

    /// Takes completions, oldest first, and returns how many. If none waits, the calling thread drives the device
    /// for a moment: whoever polls is the NIC.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Error> {
        let n = self.core.take(out)?;
        if n > 0 || out.is_empty() {
            self.nic.engine.pulse.polled();
            // A program that always finds completions of its own sends would otherwise never receive.
            let hits = self.core.hits.load(Ordering::Relaxed).wrapping_add(1);
            self.core.hits.store(hits, Ordering::Relaxed);
            if hits.is_multiple_of(HITS_PER_TURN) && self.nic.alive().is_ok() {
                self.nic.engine.drive_for_poller();
            }
            return Ok(n);
        }
        self.nic.alive()?;
        self.nic.engine.drive_for_poller();
        let n = self.core.take(out)?;
        if n == 0 {
            self.core.check_overrun()?;
        }
        Ok(n)
    }

    /// Notes from now on when each completion is added; for a queue that is still empty.
    pub fn record_times(&self) {
        self.core.state.lock().stamps.get_or_insert_default();
    }

    /// Loses the oldest completion from now on when there is no room, instead of breaking the queue.
    pub fn ignore_overrun(&self) {
        self.core.state.lock().ignores_overrun = true;
    }

    /// Takes one completion with the time it was added, as [`Cq::poll`] takes many. The time counts if
    /// [`Cq::record_times`] was called.
    pub fn poll_stamped(&self) -> Result<Option<(Completion, Time)>, Error> {
        if let Some(found) = self.core.take_stamped() {
            self.nic.engine.pulse.polled();
            return Ok(Some(found));
        }
        self.nic.alive()?;
        self.nic.engine.drive_for_poller();
        let found = self.core.take_stamped();
        if found.is_none() {
            self.core.check_overrun()?;
        }
        Ok(found)
    }

    /// Arms the channel for the next completion (or the next solicited one) that is added from now on. Poll once
    /// more after arming, before waiting: what was added before does not fire.
    pub fn request_notify(&self, solicited_only: bool) -> Result<(), Error> {
        self.nic.alive()?;
        {
            let mut state = self.core.state.lock();
            if state.armed == Armed::No {
                self.nic.engine.pulse.armed();
            }
            // Asking for solicited ones does not take back asking for all (IBA 11.4.2.2).
            if state.armed != Armed::Any {
                state.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
            }
        }
        self.nic.background()?.wake();
        Ok(())
    }

    /// Changes the depth; refused if more completions wait than would fit.
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        if depth == 0 {
            return Err(Error::Invalid {
                attribute: "cqe",
                why: "a completion queue needs at least one entry",
            });
        }
        Error::check_limit("cqe", depth.into(), MAX_CQE.into())?;
        let mut state = self.core.state.lock();
        if state.ring.len() > depth as usize {
            return Err(Error::Invalid { attribute: "cqe", why: "more completions than that are waiting" });
        }
        let extra = (depth as usize).saturating_sub(state.ring.len());
        state.ring.reserve_exact(extra);
        state.depth = depth as usize;
        Ok(())
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if self.nic.alive().is_err() {
            return;
        }
        let mut state = self.core.state.lock();
        if state.armed != Armed::No {
            state.armed = Armed::No;
            self.core.pulse.disarmed();
        }
    }
}
