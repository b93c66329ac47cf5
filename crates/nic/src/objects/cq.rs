//! Completion queues, as programs hold them.

use crate::engine::Engine;
use crate::error::Error;
use crate::link::Sleep;
use crate::nic::{Nic, NicInner};
use crate::queues::{CompletionChannel, CqCore, Moderation, Stamp, check_depth};
use crate::quota::Permit;
use ferroce_os::wait_set::WaitSet;
use ferroce_proto::verbs::Completion;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Consecutive successful polls after which a poll drives the engine.
const HITS_PER_DRIVE: u64 = 8;

/// How long a thread that was woken for packets waits while another thread drives the engine.
const LEFT_TO_OTHERS: Duration = Duration::from_micros(100);

impl Nic {
    /// Creates a completion queue of `depth` entries; its channel events contain `cookie`.
    pub fn create_cq(
        &self,
        depth: u32,
        channel: Option<&Arc<CompletionChannel>>,
        cookie: u64,
    ) -> Result<Cq, Error> {
        self.inner().alive()?;
        check_depth(depth, &self.inner().limits)?;
        let permit = self.inner().quotas.cqs.take()?;
        let core = CqCore::new(
            self.inner().next_id(),
            cookie,
            depth,
            channel.cloned(),
            self.engine().device.armed.clone(),
            self.event_queue().clone(),
            self.inner().watch,
        );
        Ok(Cq::new(core, self.inner().clone(), permit))
    }
}

/// A completion queue.
pub struct Cq {
    pub(crate) core: Arc<CqCore>,
    nic: Arc<NicInner>,
    /// The descriptors on which [`Cq::sleep`] sleeps. Created by its first call.
    front: OnceLock<WaitSet>,
    _permit: Permit,
}

impl Cq {
    pub(crate) fn new(core: Arc<CqCore>, nic: Arc<NicInner>, _permit: Permit) -> Self {
        Cq { core, nic, front: OnceLock::new(), _permit }
    }

    pub(crate) fn belongs_to(&self, nic: &Arc<NicInner>) -> bool {
        Arc::ptr_eq(&self.nic, nic)
    }

    /// Number of this CQ within the device. Events and channels identify it by this number.
    pub fn id(&self) -> u32 {
        self.core.id
    }

    /// Its number of entries.
    pub fn depth(&self) -> usize {
        self.core.depth()
    }

    /// Takes completions, oldest first, and returns their number. If none waits, the calling thread drives the engine: polling threads do
    /// the work of the NIC.
    #[inline] // as `poll_into`
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Error> {
        self.poll_stamped(out, &mut [])
    }

    /// The same, with the time of each completion: see [`Cq::stamp_completions`]. Fills at most `stamps.len()` stamps.
    #[inline] // as `poll_into`
    pub fn poll_stamped(&self, out: &mut [Completion], stamps: &mut [Stamp]) -> Result<usize, Error> {
        let most = out.len();
        self.poll_into(
            most,
            |core| core.take(most, stamps, &mut |i, completion| out[i] = completion),
            |_| true,
        )
    }

    /// The same, but passes each completion with its index to `each`, for callers with their own completion type. The queue is locked
    /// meanwhile.
    pub fn poll_each(&self, most: usize, mut each: impl FnMut(usize, Completion)) -> Result<usize, Error> {
        self.poll_into(most, |core| core.take(most, &mut [], &mut each), |_| true)
    }

    /// The same for the completions that `is_mine` selects; the others stay in the queue, in their order.
    pub fn poll_selected(
        &self,
        out: &mut [Completion],
        is_mine: impl Fn(&Completion) -> bool,
    ) -> Result<usize, Error> {
        self.poll_into(out.len(), |core| core.take_selected(out, &is_mine), &is_mine)
    }

    #[inline(always)] // a poll that finds completions should cost little more than copying them
    fn poll_into(
        &self,
        most: usize,
        mut take: impl FnMut(&CqCore) -> usize,
        is_mine: impl Fn(&Completion) -> bool,
    ) -> Result<usize, Error> {
        let n = take(&self.core);
        if n == 0 && most > 0 {
            self.drive()?;
            let n = take(&self.core);
            if n == 0 {
                self.core.check_overrun(is_mine)?;
            }
            return Ok(n);
        }
        self.each_context(|engine| {
            engine.activity.polled();
            // Otherwise a program whose every poll finds completions of its own sends would never receive.
            if engine.activity.polls_since_drive() >= HITS_PER_DRIVE && self.nic.alive().is_ok() {
                engine.drive_for_poller(true);
            }
        });
        Ok(n)
    }

    /// Calls `work` with each progress context of its queue pairs; nearly always there is one.
    #[inline(always)]
    fn each_context(&self, work: impl Fn(&Engine)) {
        match self.core.contexts() {
            0 | 1 => work(&self.nic.engine),
            contexts => self.each_of(contexts, work),
        }
    }

    #[inline(never)] // keeps the fast path small
    fn each_of(&self, mut contexts: u32, work: impl Fn(&Engine)) {
        while contexts != 0 {
            work(self.nic.context(contexts.trailing_zeros()));
            contexts &= contexts - 1;
        }
    }

    /// Drives the engine for a poll that found nothing.
    #[inline(never)]
    fn drive(&self) -> Result<(), Error> {
        self.nic.alive()?;
        self.each_context(|engine| engine.drive_for_poller(false));
        Ok(())
    }

    /// Stamps every later completion with its time. This reads two clocks per completion, so it is off by default. Completions that already
    /// wait get the current time.
    pub fn stamp_completions(&self) {
        self.core.stamp();
    }

    /// From now on, a completion that finds the queue full replaces the oldest one. By default it breaks the queue.
    pub fn ignore_overrun(&self) {
        self.core.ignore_overrun();
    }

    /// Sets the moderation of events. It is stored, but has no effect: see [`Moderation`].
    pub fn moderate(&self, moderation: Moderation) {
        self.core.moderate(moderation);
    }

    /// The moderation that was set.
    pub fn moderation(&self) -> Moderation {
        self.core.moderation()
    }

    /// Arms the channel for the next completion (or the next solicited one) that is added from now on. Poll once more between arming and
    /// waiting: completions that were added earlier raise no event.
    pub fn request_notify(&self, solicited_only: bool) -> Result<(), Error> {
        self.nic.alive()?;
        self.each_context(Engine::send_coalesced);
        if self.core.arm(solicited_only) {
            self.each_context(|engine| engine.activity.wake());
        }
        Ok(())
    }

    /// Sleeps until packets arrive or the armed CQ gets a completion, at most for `most`. Packets wake this thread before the background
    /// thread, and it drives the engine itself. This saves one wake-up compared with the channel. Arm the queue and poll once more before
    /// the call. The sleep disarms the queue. Returns `true` if the queue fired before that: then the channel has an event.
    pub fn sleep(&self, most: Duration) -> Result<bool, Error> {
        self.nic.alive()?;
        let front = match self.front.get() {
            Some(front) => front,
            None => self.make_front()?,
        };
        let (core, engine) = (&self.core, self.nic.context(self.core.contexts().trailing_zeros()));
        let is_empty = || core.is_empty();
        // A local peer sends one wake-up for each announcement that a NIC sleeps. The background thread has made one. An application thread
        // that takes its wake-up announces again, before and after the sleep, on behalf of both.
        let rings_are_empty = || engine.link.prepare_sleep() != Sleep::Pending;
        let any_packets = is_empty() && (!rings_are_empty() || engine.activity.sleep_in_front(front, most));
        let mut is_used = None;
        // Completions that this thread finds itself need no event on the channel.
        let mut disarm = || is_used = Some(core.disarm());
        let any_left = || front.sleep(Duration::ZERO) || !rings_are_empty();
        if any_packets && !engine.drive_for_sleeper(&mut disarm, any_left).is_done() && is_empty() {
            // The driving thread continues until no packet is left, and the channel reports the completions it makes.
            // If the channel reports none, packets may still wait.
            core.channel.iter().for_each(|channel| channel.sleep(most.min(LEFT_TO_OTHERS)));
        }
        Ok(is_used.unwrap_or_else(|| core.disarm()))
    }

    fn make_front(&self) -> Result<&WaitSet, Error> {
        // The background threads of other contexts handle their packets, and the channel reports their completions.
        let engine = self.nic.context(self.core.contexts().trailing_zeros());
        let made = engine.activity.front(&engine.link.wait_fds()).and_then(|front| {
            let channel = self.core.channel.as_ref().map(|channel| channel.as_fd().as_raw_fd());
            channel.map_or(Ok(()), |fd| front.enter_other(fd)).map(|()| front)
        });
        let front = made.map_err(Error::system("making a set of descriptors"))?;
        Ok(self.front.get_or_init(|| front))
    }

    /// Sets interrupt-driven mode, for programs that poll briefly, sleep ([`Cq::sleep`]) and do other work. While this CQ lives, the
    /// background thread wakes for packets whenever no application thread sleeps for them, even if threads poll. A program that polls
    /// continuously should not use it: the background thread would take part of its packets.
    pub fn set_interrupt_driven(&self) -> Result<(), Error> {
        self.nic.alive()?;
        if self.core.begin_interrupts() {
            self.each_context(|engine| engine.activity.wake());
        }
        Ok(())
    }

    /// Changes the depth. Returns an error if more completions wait than fit.
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        self.core.resize(depth, &self.nic.limits)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if self.nic.alive().is_err() {
            return;
        }
        self.core.close();
        self.nic.more.release(&self.core);
    }
}
