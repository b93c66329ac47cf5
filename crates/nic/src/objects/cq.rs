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

/// Successful polls, with no other between them, after which one drives the engine.
const HITS_PER_DRIVE: u64 = 8;

/// How long a thread that slept for packets leaves them to another that it found driving.
const LEFT_TO_OTHERS: Duration = Duration::from_micros(100);

impl Nic {
    /// Makes a completion queue of `depth` entries; `cookie` comes back with its channel events.
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
    /// What [`Cq::sleep`] sleeps on, from the first time on.
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

    /// Number of this CQ within the device: what events and channels name it by.
    pub fn id(&self) -> u32 {
        self.core.id
    }

    /// Entries it holds.
    pub fn depth(&self) -> usize {
        self.core.depth()
    }

    /// Takes completions, oldest first, and returns how many. If none waits, the calling thread drives the device
    /// for a moment: whoever polls is the NIC.
    #[inline] // as `poll_into`
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Error> {
        self.poll_stamped(out, &mut [])
    }

    /// The same, and when each completion was made: see [`Cq::stamp_completions`]. Fills as many stamps as there is room
    /// for.
    #[inline] // as `poll_into`
    pub fn poll_stamped(&self, out: &mut [Completion], stamps: &mut [Stamp]) -> Result<usize, Error> {
        self.poll_into(out.len(), stamps, |i, completion| out[i] = completion)
    }

    /// The same for those who want completions in another form: each is handed over with its number, while the queue is
    /// locked.
    pub fn poll_each(&self, most: usize, each: impl FnMut(usize, Completion)) -> Result<usize, Error> {
        self.poll_into(most, &mut [], each)
    }

    #[inline(always)] // a poll that finds completions costs little more than they do
    fn poll_into(
        &self,
        most: usize,
        stamps: &mut [Stamp],
        mut each: impl FnMut(usize, Completion),
    ) -> Result<usize, Error> {
        let n = self.core.take(most, stamps, &mut each);
        if n == 0 && most > 0 {
            return self.drive_and_take(most, stamps, &mut each);
        }
        self.each_context(|engine| {
            engine.activity.polled();
            // A program that always finds completions of its own sends would otherwise never receive.
            if engine.activity.polls_since_drive() >= HITS_PER_DRIVE && self.nic.alive().is_ok() {
                engine.drive_for_poller(true);
            }
        });
        Ok(n)
    }

    /// Does something with each progress context of its queue pairs; nearly always there is one.
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

    /// A poll that found nothing.
    #[inline(never)]
    fn drive_and_take(
        &self,
        most: usize,
        stamps: &mut [Stamp],
        each: &mut impl FnMut(usize, Completion),
    ) -> Result<usize, Error> {
        self.nic.alive()?;
        self.each_context(|engine| engine.drive_for_poller(false));
        let n = self.core.take(most, stamps, each);
        if n == 0 {
            self.core.check_overrun()?;
        }
        Ok(n)
    }

    /// Stamps every completion from now on with its time. This reads two clocks per completion, so it is off by default. Completions
    /// that wait already are stamped with the present time.
    pub fn stamp_completions(&self) {
        self.core.stamp();
    }

    /// Loses the oldest completion from now on when there is no room, instead of breaking the queue.
    pub fn ignore_overrun(&self) {
        self.core.ignore_overrun();
    }

    /// Wishes for fewer events; kept, and of no consequence: see [`Moderation`].
    pub fn moderate(&self, moderation: Moderation) {
        self.core.moderate(moderation);
    }

    /// The wish that was made.
    pub fn moderation(&self) -> Moderation {
        self.core.moderation()
    }

    /// Arms the channel for the next completion (or the next solicited one) that is added from now on. Poll once
    /// more after arming, before waiting: what was added before does not fire.
    pub fn request_notify(&self, solicited_only: bool) -> Result<(), Error> {
        self.nic.alive()?;
        self.each_context(Engine::send_coalesced);
        if self.core.arm(solicited_only) {
            self.each_context(|engine| engine.activity.wake());
        }
        Ok(())
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
        let (core, engine) = (&self.core, self.nic.context(self.core.contexts().trailing_zeros()));
        let is_empty = || core.is_empty();
        // A local peer sends one wake-up each time a NIC announces that it sleeps. The background thread announced it; an application
        // thread that takes the wake-up instead announces it again, before and after, on behalf of both.
        let rings_are_empty = || engine.link.prepare_sleep() != Sleep::Pending;
        let any_packets = is_empty() && (!rings_are_empty() || engine.activity.sleep_in_front(front, most));
        let mut is_used = None;
        // Completions that this thread finds itself need no event on the channel.
        let mut disarm = || is_used = Some(core.disarm());
        let any_left = || front.sleep(Duration::ZERO) || !rings_are_empty();
        if any_packets && !engine.drive_for_sleeper(&mut disarm, any_left).is_done() && is_empty() {
            // The thread that drives goes on until no packet is left, and then the channel reports completions.
            // If it reports none, the packets are still there.
            core.channel.iter().for_each(|channel| channel.sleep(most.min(LEFT_TO_OTHERS)));
        }
        Ok(is_used.unwrap_or_else(|| core.disarm()))
    }

    fn make_front(&self) -> Result<&WaitSet, Error> {
        // Packets of other contexts are left to their background threads, and completions of theirs to the channel.
        let engine = self.nic.context(self.core.contexts().trailing_zeros());
        let made = engine.activity.front(&engine.link.wait_fds()).and_then(|front| {
            let channel = self.core.channel.as_ref().map(|channel| channel.as_fd().as_raw_fd());
            channel.map_or(Ok(()), |fd| front.enter_other(fd)).map(|()| front)
        });
        let front = made.map_err(Error::system("making a set of descriptors"))?;
        Ok(self.front.get_or_init(|| front))
    }

    /// Sets interrupt-driven mode: the program polls a little, sleeps ([`Cq::sleep`]), and does other work without announcing
    /// it. From now on, as long as this CQ lives, the background thread wakes for packets whenever nobody sleeps
    /// for them, however much is polled. A program that polls for long should not use it: the background thread would take part of its packets.
    pub fn set_interrupt_driven(&self) -> Result<(), Error> {
        self.nic.alive()?;
        if self.core.begin_interrupts() {
            self.each_context(|engine| engine.activity.wake());
        }
        Ok(())
    }

    /// Changes the depth; refused if more completions wait than would fit.
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
