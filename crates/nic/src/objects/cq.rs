//! Completion queues.

use super::channel::CompletionChannel;
use super::event::{EventQueue, EventSource};
use crate::engine::Pulse;
use crate::error::Error;
use crate::link::{Sleep, now, wall_clock_ns};
use crate::lock::Mutex;
use crate::nic::NicInner;
use crate::wait_set::WaitSet;
use ferroce_proto::Qpn;
use ferroce_proto::verbs::{Completion, EventKind, WcStatus};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Most entries of a CQ.
pub(crate) const MAX_CQE: u32 = 1 << 22;

/// Successful polls, with no other between them, after which one gives the engine a turn.
const HITS_PER_TURN: u64 = 8;

/// How long a thread that slept for packets leaves them to another that it found driving.
const LEFT_TO_OTHERS: Duration = Duration::from_micros(100);

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

/// What a program wishes about how often it is woken. Events come at once, which is never later than it wishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moderation {
    /// Completions per event.
    pub count: u16,
    /// Longest time that an event may wait for more of them.
    pub period_us: u16,
}

struct State {
    ring: VecDeque<Completion>,
    /// One for each entry of the ring if `stamping`, else none.
    stamps: VecDeque<Stamp>,
    stamping: bool,
    moderation: Moderation,
    depth: usize,
    armed: Armed,
    /// A full ring loses its oldest completion instead of breaking.
    ignores_overrun: bool,
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
        let state = Mutex::new(State {
            ring,
            stamps: VecDeque::new(),
            stamping: false,
            moderation: Moderation::default(),
            depth,
            armed: Armed::No,
            ignores_overrun: false,
        });
        Arc::new_cyclic(|me| CqCore {
            id,
            cookie,
            me: me.clone(),
            state,
            waiting: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            channel,
            pulse,
            events,
        })
    }

    /// Adds a completion. False if there is no room: the CQ is broken then, and the queue pair with it
    /// (IBA 11.6.3.1).
    #[must_use]
    #[inline(always)] // then a completion is made where it will lie
    pub(crate) fn push(&self, completion: Completion) -> bool {
        let mut state = self.state.lock();
        if state.ring.len() >= state.depth && !self.make_room(&mut state) {
            return false;
        }
        state.ring.push_back(completion);
        self.waiting.store(state.ring.len(), Ordering::Release);
        if state.stamping || state.armed != Armed::No {
            // A failure always counts as solicited, or its waiter would sleep on (IBA 11.4.2.2).
            self.tell(&mut state, completion.solicited || completion.status != WcStatus::Success);
        }
        true
    }

    /// What becomes of a completion that finds the ring full: whether there is room for it now.
    #[cold]
    #[inline(never)]
    fn make_room(&self, state: &mut State) -> bool {
        if state.ignores_overrun {
            state.ring.pop_front();
            state.stamps.pop_front();
        } else if !self.overrun.swap(true, Ordering::Relaxed) {
            self.events.raise(EventKind::CqErr, EventSource::Cq(self.id));
        }
        state.ignores_overrun
    }

    /// Stamps the completion that was just added, and tells whoever waits for it.
    #[inline(never)]
    fn tell(&self, state: &mut State, solicited: bool) {
        if state.stamping {
            state.stamps.push_back(Stamp { raw_ns: now().0, wall_ns: wall_clock_ns() });
        }
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
    }

    /// Forgets the completions of a queue pair that is gone.
    pub(crate) fn purge(&self, qpn: Qpn) {
        let mut state = self.state.lock();
        let State { ring, stamps, .. } = &mut *state;
        let mut kept = ring.iter().map(|c| c.qpn != qpn);
        stamps.retain(|_| kept.next().unwrap_or(false));
        ring.retain(|c| c.qpn != qpn);
        self.waiting.store(state.ring.len(), Ordering::Release);
    }

    /// Takes at most so many completions, and their stamps if the queue makes any and there is room for them.
    #[inline(always)] // nearly all polls find nothing, and that is one look
    fn take(&self, most: usize, stamps: &mut [Stamp], each: &mut impl FnMut(usize, Completion)) -> usize {
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
        // One by one: nearly always there is one.
        for i in 0..n {
            // Looked at where it lies, for it is large.
            let Some(&completion) = state.ring.front() else { break };
            each(i, completion);
            state.ring.pop_front();
        }
        if state.stamping {
            for (i, stamp) in state.stamps.drain(..n).enumerate() {
                if let Some(place) = stamps.get_mut(i) {
                    *place = stamp;
                }
            }
        }
        self.waiting.store(state.ring.len(), Ordering::Release);
        n
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
    /// What [`Cq::sleep`] sleeps on, from the first time on.
    front: OnceLock<WaitSet>,
    comes_and_goes: AtomicBool,
}

impl Cq {
    pub(crate) fn new(core: Arc<CqCore>, nic: Arc<NicInner>) -> Self {
        Cq { core, nic, front: OnceLock::new(), comes_and_goes: AtomicBool::new(false) }
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
        self.poll_stamped(out, &mut [])
    }

    /// The same, and when each completion was made: see [`Cq::stamp_completions`]. Fills as many stamps as there is room
    /// for.
    pub fn poll_stamped(&self, out: &mut [Completion], stamps: &mut [Stamp]) -> Result<usize, Error> {
        self.poll_into(out.len(), stamps, |i, completion| out[i] = completion)
    }

    /// The same for those who want completions in another form: each is handed over with its number, while the queue is
    /// locked.
    pub fn poll_each(&self, most: usize, each: impl FnMut(usize, Completion)) -> Result<usize, Error> {
        self.poll_into(most, &mut [], each)
    }

    #[inline]
    fn poll_into(
        &self,
        most: usize,
        stamps: &mut [Stamp],
        mut each: impl FnMut(usize, Completion),
    ) -> Result<usize, Error> {
        let n = self.core.take(most, stamps, &mut each);
        if n > 0 || most == 0 {
            let engine = &self.nic.engine;
            engine.pulse.polled();
            // A program that always finds completions of its own sends would otherwise never receive.
            if engine.pulse.polls_since_drive() >= HITS_PER_TURN && self.nic.alive().is_ok() {
                engine.drive_for_poller(true);
            }
            return Ok(n);
        }
        self.nic.alive()?;
        self.nic.engine.drive_for_poller(false);
        let n = self.core.take(most, stamps, &mut each);
        if n == 0 {
            self.core.check_overrun()?;
        }
        Ok(n)
    }

    /// From now on notes when each completion is made. Costs two looks at the clock per completion, so nothing does it
    /// unasked. Completions that wait already are stamped with now.
    pub fn stamp_completions(&self) {
        let mut state = self.core.state.lock();
        if !state.stamping {
            state.stamping = true;
            let (stamp, waiting) = (Stamp { raw_ns: now().0, wall_ns: wall_clock_ns() }, state.ring.len());
            state.stamps = std::iter::repeat_n(stamp, waiting).collect();
            let depth = state.depth;
            state.stamps.reserve(depth.saturating_sub(waiting));
        }
    }

    /// Loses the oldest completion from now on when there is no room, instead of breaking the queue.
    pub fn ignore_overrun(&self) {
        self.core.state.lock().ignores_overrun = true;
    }

    /// Wishes for fewer events; kept, and of no consequence: see [`Moderation`].
    pub fn moderate(&self, moderation: Moderation) {
        self.core.state.lock().moderation = moderation;
    }

    /// The wish that was made.
    pub fn moderation(&self) -> Moderation {
        self.core.state.lock().moderation
    }

    /// Arms the channel for the next completion (or the next solicited one) that is added from now on. Poll once
    /// more after arming, before waiting: what was added before does not fire.
    pub fn request_notify(&self, solicited_only: bool) -> Result<(), Error> {
        self.nic.alive()?;
        let is_first = {
            let mut state = self.core.state.lock();
            let is_first = state.armed == Armed::No && self.nic.engine.pulse.armed();
            // Asking for solicited ones does not take back asking for all (IBA 11.4.2.2).
            if state.armed != Armed::Any {
                state.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
            }
            is_first
        };
        let background = self.nic.background()?;
        if is_first {
            background.wake();
        }
        Ok(())
    }

    /// Takes arming back; whether it was used up already.
    fn disarm(&self) -> bool {
        let mut state = self.core.state.lock();
        let is_used = state.armed == Armed::No;
        if !is_used {
            state.armed = Armed::No;
            self.core.pulse.disarmed();
        }
        is_used
    }

    /// Sleeps until packets arrive or the armed CQ gets a completion, at most so long. Who sleeps here is woken for packets
    /// before the background thread, and drives: a wake-up less than by the channel. Arm the queue and poll once more before.
    /// Arming does not outlast the sleep; returns whether it was used up: then the channel has an event.
    pub fn sleep(&self, most: Duration) -> Result<bool, Error> {
        self.nic.alive()?;
        let front = match self.front.get() {
            Some(front) => front,
            None => self.make_front()?,
        };
        let (core, engine) = (&self.core, &self.nic.engine);
        let is_empty = || core.waiting.load(Ordering::Acquire) == 0;
        // Neighbours ring for those who said that they sleep, once each time. The background thread said so; whoever was rung for
        // instead says it again, before and after, on behalf of both.
        let rings_are_empty = || engine.link.prepare_sleep() != Sleep::Pending;
        let any_packets = is_empty() && (!rings_are_empty() || engine.pulse.sleep_in_front(front, most));
        let mut is_used = None;
        // What we find ourselves need not be told by the channel.
        let mut disarm = || is_used = Some(self.disarm());
        let any_left = || front.sleep(Duration::ZERO) || !rings_are_empty();
        if any_packets && !engine.drive_for_sleeper(&mut disarm, any_left) && is_empty() {
            // Whoever drives goes on until there is nothing left, and then the channel tells us.
            // If it does not, the packets are still there.
            core.channel.iter().for_each(|channel| channel.sleep(most.min(LEFT_TO_OTHERS)));
        }
        Ok(is_used.unwrap_or_else(|| self.disarm()))
    }

    fn make_front(&self) -> Result<&WaitSet, Error> {
        let pulse = &self.nic.engine.pulse;
        let made = pulse.front(&self.nic.engine.link.wait_fds()).and_then(|front| {
            let channel = self.core.channel.as_ref().map(|channel| channel.as_fd().as_raw_fd());
            channel.map_or(Ok(()), |fd| front.enter_other(fd)).map(|()| front)
        });
        let front = made.map_err(Error::system("making a set of descriptors"))?;
        Ok(self.front.get_or_init(|| front))
    }

    /// Says that the program comes and goes: it polls a little, sleeps ([`Cq::sleep`]), and does something else without saying
    /// so. From now on, as long as this CQ lives, the background thread wakes for packets whenever nobody sleeps
    /// for them, however much is polled. A program that polls for long should not say so: it would share its packets.
    pub fn come_and_go(&self) -> Result<(), Error> {
        self.nic.alive()?;
        let background = self.nic.background()?;
        if !self.comes_and_goes.swap(true, Ordering::Relaxed) && self.core.pulse.armed() {
            background.wake();
        }
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
        self.disarm();
        if self.comes_and_goes.load(Ordering::Relaxed) {
            self.core.pulse.disarmed();
        }
    }
}
