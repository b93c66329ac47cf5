//! Completion queues, as queue pairs fill them.

use super::channel::CompletionChannel;
use super::completion_ring::CompletionRing;
use super::event::{EventQueue, EventSource};
use crate::error::Error;
use crate::limits::DeviceLimits;
use crate::memory::{PostedTo, WatchedNic};
use crate::poller_activity::ArmedCqs;
use ferroce_os::clock::{now, wall_clock_ns};
use ferroce_os::lock::Mutex;
use ferroce_proto::Qpn;
use ferroce_proto::verbs::{Completion, EventKind, WcOpcode, WcStatus};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Any,
    Solicited,
}

/// When a completion was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// On the device's own clock: see [`Nic::raw_clock_ns`](crate::Nic::raw_clock_ns).
    pub raw_ns: u64,
    /// Since 1970.
    pub wall_ns: u64,
}

/// How often a program requests to be woken. Events come immediately, so never later than requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moderation {
    /// Completions per event.
    pub count: u16,
    /// Longest time that an event may wait for more of them.
    pub period_us: u16,
}

struct State {
    ring: CompletionRing,
    /// Completions that were polled so far while they were the oldest.
    polled: u64,
    /// One for each entry of the ring if `stamping`, else none.
    stamps: VecDeque<Stamp>,
    stamping: bool,
    moderation: Moderation,
    depth: usize,
    armed: Armed,
    /// The progress contexts that count it as armed, a bit each.
    armed_in: u32,
    /// The same for interrupt-driven mode.
    interrupts_in: u32,
    /// A full ring loses its oldest completion instead of breaking.
    ignores_overrun: bool,
    /// A poll must also handle stamps or the watch.
    has_extras: bool,
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
    pub(crate) channel: Option<Arc<CompletionChannel>>,
    armed: Arc<ArmedCqs>,
    /// The progress contexts of its queue pairs, a bit each.
    contexts: AtomicU32,
    events: Arc<EventQueue>,
    /// Is notified of each polled completion, and of queue pairs that end.
    watch: Option<WatchedNic>,
}

/// Completions that wait in a CQ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unpolled {
    cq: u32,
    /// Completions that were polled so far.
    polled: u64,
    waiting: usize,
    qpn: Qpn,
    wr_id: u64,
    notice: Notice,
}

/// How a thread that waits for the channel is notified of them.
#[derive(Clone, Copy, Debug)]
enum Notice {
    None,
    /// Its event waits to be read.
    Fired,
    NotArmed,
    SolicitedOnly,
    /// It was armed after they had arrived.
    ArmedLate,
}

impl Unpolled {
    /// Whether the oldest completion is the same.
    pub(crate) fn is_same(&self, earlier: &Unpolled) -> bool {
        self.polled == earlier.polled
    }

    /// What the program may have forgotten.
    pub(crate) fn advice(&self) -> &'static str {
        match self.notice {
            Notice::None => "poll it; perhaps the program polls another one",
            Notice::Fired => "its event waits in the completion channel: read it, then poll",
            Notice::ArmedLate => {
                "they came before it was armed, so its channel wakes nobody: after arming, poll once more, and only then wait"
            }
            Notice::NotArmed => {
                "it is not armed, so its channel wakes nobody: arm it, poll once more, and only then wait"
            }
            Notice::SolicitedOnly => {
                "it is armed for solicited completions only: send with SOLICITED, or arm it for all"
            }
        }
    }
}

impl fmt::Display for Unpolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unpolled { cq, waiting, qpn, wr_id, .. } = self;
        write!(f, "CQ {cq} (completions in it: {waiting}, the first of wr_id {wr_id:#x} on QP {qpn})")
    }
}

/// A completion found its CQ full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqOverrun;

impl CqCore {
    pub(crate) fn new(
        id: u32,
        cookie: u64,
        depth: u32,
        channel: Option<Arc<CompletionChannel>>,
        armed: Arc<ArmedCqs>,
        events: Arc<EventQueue>,
        watch: Option<WatchedNic>,
    ) -> Arc<Self> {
        let depth = depth as usize;
        let ring = CompletionRing::new(depth);
        let state = Mutex::new(State {
            polled: 0,
            ring,
            stamps: VecDeque::new(),
            stamping: false,
            moderation: Moderation::default(),
            depth,
            armed: Armed::No,
            armed_in: 0,
            interrupts_in: 0,
            ignores_overrun: false,
            has_extras: watch.is_some(),
        });
        Arc::new_cyclic(|me| CqCore {
            id,
            cookie,
            me: me.clone(),
            state,
            waiting: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            channel,
            armed,
            contexts: AtomicU32::new(0),
            events,
            watch,
        })
    }

    /// The progress contexts of its queue pairs, a bit each.
    #[inline]
    pub(crate) fn contexts(&self) -> u32 {
        self.contexts.load(Ordering::Relaxed)
    }

    /// Adds the progress context of a queue pair. Returns whether it is new.
    pub(crate) fn enter_context(&self, index: u32) -> bool {
        let mut state = self.state.lock();
        let state = &mut *state;
        let is_new = self.contexts.fetch_or(1 << index, Ordering::Relaxed) >> index & 1 == 0;
        for counted in [&mut state.armed_in, &mut state.interrupts_in] {
            if *counted != 0 && *counted >> index & 1 == 0 {
                *counted |= 1 << index;
                // No wake-up: the queue pair is not connected yet, and the background thread checks within milliseconds.
                let _ = self.armed.armed(1 << index);
            }
        }
        is_new
    }

    /// The contexts whose background threads wake for packets while it is armed. Without queue pairs it is the first one.
    fn contexts_to_wake(&self) -> u32 {
        match self.contexts() {
            0 => 1,
            contexts => contexts,
        }
    }

    /// Adds a completion. If the ring is full, the CQ has overrun and is unusable, and so is the queue pair (IBA 11.6.3.1).
    #[inline(always)] // a completion is then built in its final location
    pub(crate) fn push(&self, completion: Completion) -> Result<(), CqOverrun> {
        let mut state = self.state.lock();
        if state.ring.len() >= state.depth && !self.handle_full(&mut state) {
            return Err(CqOverrun);
        }
        state.ring.push(completion);
        self.waiting.store(state.ring.len(), Ordering::Release);
        if state.stamping || state.armed != Armed::No {
            // A failure always counts as solicited, or its waiter would sleep on (IBA 11.4.2.2).
            self.notify(&mut state, completion.solicited || completion.status != WcStatus::Success);
        }
        Ok(())
    }

    /// Handles a completion that finds the ring full. Returns whether it fits now.
    #[cold]
    #[inline(never)]
    fn handle_full(&self, state: &mut State) -> bool {
        if state.ignores_overrun {
            state.ring.take(1, |_, _| ());
            state.stamps.pop_front();
        } else if !self.overrun.swap(true, Ordering::Relaxed) {
            self.events.raise(EventKind::CqErr, EventSource::Cq(self.id));
            // Its waiter gets the error from the next poll, and would sleep on otherwise.
            if state.armed != Armed::No {
                self.fire(state);
            }
        }
        state.ignores_overrun
    }

    /// Stamps the completion that was just added, and notifies the completion channel if it is armed for it.
    #[inline(never)]
    fn notify(&self, state: &mut State, solicited: bool) {
        if state.stamping {
            state.stamps.push_back(Stamp { raw_ns: now().0, wall_ns: wall_clock_ns() });
        }
        let fires = match state.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited,
        };
        if fires {
            self.fire(state);
        }
    }

    /// Sends the event for which the queue is armed.
    fn fire(&self, state: &mut State) {
        self.end_arming(state);
        if let Some(channel) = &self.channel {
            channel.fire(self.me.clone());
        }
    }

    /// Removes the completions of a queue pair that was reset or destroyed.
    pub(crate) fn purge(&self, qpn: Qpn) {
        self.watch.iter().for_each(|watch| watch.forget(PostedTo::Qp(qpn)));
        let mut state = self.state.lock();
        let State { ring, stamps, .. } = &mut *state;
        let mut kept = ring.iter().map(|c| c.qpn != qpn);
        stamps.retain(|_| kept.next().unwrap_or(false));
        drop(kept);
        ring.retain(|c| c.qpn != qpn);
        self.waiting.store(state.ring.len(), Ordering::Release);
    }

    /// Takes at most `most` completions. If the queue makes stamps, writes as many of theirs as `stamps` holds.
    #[inline(always)] // nearly all polls find nothing, which takes one load
    pub(crate) fn take(
        &self,
        most: usize,
        stamps: &mut [Stamp],
        each: &mut impl FnMut(usize, Completion),
    ) -> usize {
        if self.waiting.load(Ordering::Acquire) == 0 { 0 } else { self.take_some(most, stamps, each) }
    }

    #[inline(never)]
    fn take_some(
        &self,
        most: usize,
        stamps: &mut [Stamp],
        each: &mut impl FnMut(usize, Completion),
    ) -> usize {
        let mut state = self.state.lock();
        let n = most.min(state.ring.len());
        if state.has_extras {
            self.take_extras(&mut state, n, stamps);
        }
        state.ring.take(n, each);
        state.polled += n as u64;
        self.waiting.store(state.ring.len(), Ordering::Release);
        n
    }

    /// Takes the oldest completions that `is_mine` selects, as many as `out` holds, and returns their number. The others keep their order.
    pub(crate) fn take_selected(
        &self,
        out: &mut [Completion],
        is_mine: impl Fn(&Completion) -> bool,
    ) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut state = self.state.lock();
        let (mut n, mut at) = (0, 0);
        while let Some(&completion) = state.ring.get(at).filter(|_| n < out.len()) {
            if !is_mine(&completion) {
                at += 1;
                continue;
            }
            self.watch.iter().for_each(|watch| watch.polled(&completion));
            state.ring.remove(at);
            state.stamps.remove(at);
            state.polled += u64::from(at == 0);
            out[n] = completion;
            n += 1;
        }
        self.waiting.store(state.ring.len(), Ordering::Release);
        n
    }

    /// Handles stamps and the watch for the first `n` completions.
    #[cold]
    #[inline(never)]
    fn take_extras(&self, state: &mut State, n: usize, stamps: &mut [Stamp]) {
        if let Some(watch) = self.watch {
            state.ring.iter().take(n).for_each(|completion| watch.polled(completion));
        }
        if state.stamping {
            for (i, stamp) in state.stamps.drain(..n).enumerate() {
                if let Some(out) = stamps.get_mut(i) {
                    *out = stamp;
                }
            }
        }
    }

    /// Returns an error if the queue has overrun and holds no completion that `is_mine` selects.
    pub(crate) fn check_overrun(&self, is_mine: impl Fn(&Completion) -> bool) -> Result<(), Error> {
        if !self.overrun.load(Ordering::Relaxed) {
            return Ok(());
        }
        let state = self.state.lock();
        if state.ring.iter().any(is_mine) { Ok(()) } else { Err(Error::CqOverrun { depth: state.depth }) }
    }

    /// Entries it holds.
    pub(crate) fn depth(&self) -> usize {
        self.state.lock().depth
    }

    /// The oldest completion, if there is one.
    pub(crate) fn unpolled(&self) -> Option<Unpolled> {
        let state = self.state.lock();
        let front = state.ring.get(0)?;
        let has_event = || self.channel.as_ref().is_some_and(|channel| channel.has_event_of(self.id));
        let notice = match state.armed {
            _ if has_event() => Notice::Fired,
            Armed::Solicited => Notice::SolicitedOnly,
            Armed::Any if self.channel.is_some() => Notice::ArmedLate,
            Armed::No if self.channel.is_some() => Notice::NotArmed,
            _ => Notice::None,
        };
        Some(Unpolled {
            cq: self.id,
            polled: state.polled,
            waiting: state.ring.len(),
            qpn: front.qpn,
            wr_id: front.wr_id,
            notice,
        })
    }

    /// Completions of sends and of receives of a queue pair that wait.
    pub(crate) fn unpolled_of(&self, qpn: Qpn) -> (usize, usize) {
        let state = self.state.lock();
        let of_qp = || state.ring.iter().filter(|completion| completion.qpn == qpn);
        let receives =
            of_qp().filter(|completion| completion.opcode as u32 & WcOpcode::Recv as u32 != 0).count();
        (of_qp().count() - receives, receives)
    }

    /// Completions that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Whether no completion waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting() == 0
    }

    /// Stamps all further completions. Completions that already wait get the current time.
    pub(crate) fn stamp(&self) {
        let mut state = self.state.lock();
        if !state.stamping {
            (state.stamping, state.has_extras) = (true, true);
            let (stamp, waiting) = (Stamp { raw_ns: now().0, wall_ns: wall_clock_ns() }, state.ring.len());
            state.stamps = std::iter::repeat_n(stamp, waiting).collect();
            let depth = state.depth;
            state.stamps.reserve(depth.saturating_sub(waiting));
        }
    }

    /// From now on a completion that finds the ring full replaces the oldest one.
    pub(crate) fn ignore_overrun(&self) {
        self.state.lock().ignores_overrun = true;
    }

    pub(crate) fn moderate(&self, moderation: Moderation) {
        self.state.lock().moderation = moderation;
    }

    pub(crate) fn moderation(&self) -> Moderation {
        self.state.lock().moderation
    }

    /// Arms the channel. Returns whether the caller must wake the background threads of its contexts: nothing was armed there before.
    pub(crate) fn arm(&self, solicited_only: bool) -> bool {
        let mut state = self.state.lock();
        let is_first = state.armed == Armed::No && {
            state.armed_in = self.contexts_to_wake();
            self.armed.armed(state.armed_in)
        };
        // A request for solicited completions does not replace one for all completions (IBA 11.4.2.2).
        if state.armed != Armed::Any {
            state.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
        is_first
    }

    /// Disarms the channel. Returns whether a completion had disarmed it before.
    pub(crate) fn disarm(&self) -> bool {
        let mut state = self.state.lock();
        let is_used = state.armed == Armed::No;
        if !is_used {
            self.end_arming(&mut state);
        }
        is_used
    }

    fn end_arming(&self, state: &mut State) {
        state.armed = Armed::No;
        self.armed.disarmed(std::mem::take(&mut state.armed_in));
    }

    /// Begins interrupt-driven mode. Returns as [`Self::arm`] does.
    pub(crate) fn begin_interrupts(&self) -> bool {
        let mut state = self.state.lock();
        state.interrupts_in == 0 && {
            state.interrupts_in = self.contexts_to_wake();
            self.armed.armed(state.interrupts_in)
        }
    }

    /// Ends arming and interrupt-driven mode of a queue that is destroyed.
    pub(crate) fn close(&self) {
        self.disarm();
        self.armed.disarmed(std::mem::take(&mut self.state.lock().interrupts_in));
    }

    /// Changes the depth; refused if more completions wait than would fit.
    pub(crate) fn resize(&self, depth: u32, limits: &DeviceLimits) -> Result<(), Error> {
        check_depth(depth, limits)?;
        let mut state = self.state.lock();
        if state.ring.len() > depth as usize {
            return Err(Error::Invalid { attribute: "cqe", why: "more completions than that are waiting" });
        }
        state.ring.reserve(depth as usize);
        state.depth = depth as usize;
        Ok(())
    }
}

/// Checks whether a completion queue can have this many entries.
pub(crate) fn check_depth(depth: u32, limits: &DeviceLimits) -> Result<(), Error> {
    if depth == 0 {
        return Err(Error::Invalid { attribute: "cqe", why: "a completion queue needs at least one entry" });
    }
    Error::check_limit("cqe", depth.into(), limits.max_cqe.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller_activity::PollerActivity;
    use crate::queues::EventHub;

    /// The background thread of another context leaves the work to its pollers.
    #[test]
    fn an_armed_queue_counts_in_the_contexts_of_its_queue_pairs() {
        let armed = Arc::new(ArmedCqs::default());
        let contexts = [0, 1, 2].map(|index| PollerActivity::new(armed.clone(), index).unwrap());
        let any_armed = || contexts.each_ref().map(PollerActivity::any_armed);
        let events = EventHub::default().subscribe().unwrap();
        let cq = CqCore::new(1, 0, 1, None, armed.clone(), events, None);
        assert!(cq.arm(false));
        assert_eq!(any_armed(), [true, false, false], "no queue pair yet");
        cq.enter_context(2);
        assert_eq!(any_armed(), [true, false, true], "a queue pair that came later");
        cq.disarm();
        assert_eq!(any_armed(), [false; 3]);
        assert!(cq.arm(false) && !cq.arm(false));
        assert_eq!(any_armed(), [false, false, true]);
        assert!(!cq.begin_interrupts() && !cq.begin_interrupts());
        cq.push(Completion::default()).unwrap();
        assert_eq!(any_armed(), [false, false, true], "interrupt-driven, and no longer armed");
        cq.enter_context(1);
        assert_eq!(any_armed(), [false, true, true]);
        cq.close();
        assert_eq!(any_armed(), [false; 3]);
    }
}
