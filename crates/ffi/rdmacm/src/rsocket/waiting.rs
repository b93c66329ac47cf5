//! How a call waits for its socket: it polls for some microseconds, then sleeps on the descriptors until the socket changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::pollfd;
use parking_lot::{Mutex, MutexGuard};

use super::errno::{Errno, Outcome};
use super::settings::Defaults;
use super::wait::{Bell, Sleepers, sleep_on, watch};

/// How long a sleeper waits without events before it probes its peers. A killed peer sends nothing.
pub(super) const PROBE_AFTER: Duration = Duration::from_secs(5);

/// The state of a socket for a waiter. `own` is the caller's bell, which need not be woken.
pub(crate) trait Watched {
    /// Handles completions. If there were any, wakes the other sleepers.
    fn progress(&mut self, own: Option<&Arc<Bell>>);
    /// For callers that poll and never sleep: at a limited rate, polls the sources that need a system call.
    fn glance(&mut self);
    /// Arms the completion queues: the next completion makes a descriptor readable.
    fn arm(&mut self);
    /// The descriptors that signal a change.
    fn watch(&self, fds: &mut Vec<pollfd>);
    /// Takes the events of the descriptors. If there were any, wakes the other sleepers: their descriptors do not show these events.
    fn take_events(&mut self, own: Option<&Arc<Bell>>);
    /// Called after a long time without events.
    fn on_silence(&mut self);
    /// The events of `poll` that are present.
    fn readiness(&self, events: i16) -> i16;
    fn sleepers(&mut self) -> &mut Sleepers;
    fn is_closed(&self) -> bool;
}

/// Waits until `ready`. Returns with the lock held, so that the state cannot change in between.
pub(crate) fn wait<S: Watched>(
    socket: &Mutex<S>,
    must_not_wait: bool,
    ready: impl Fn(&S) -> bool,
) -> Outcome<MutexGuard<'_, S>> {
    let mut state = socket.lock();
    state.progress(None);
    if must_not_wait && !ready(&state) {
        state.glance();
    }
    if ready(&state) {
        return Ok(state);
    }
    if must_not_wait {
        return Err(Errno::WOULD_BLOCK);
    }
    let spinning = Duration::from_micros(Defaults::of_machine().polling_us);
    let started = Instant::now();
    while started.elapsed() < spinning {
        MutexGuard::bump(&mut state);
        state.progress(None);
        if ready(&state) {
            return Ok(state);
        }
    }
    sleep_until(state, None, ready)
}

/// The same without polling first. Returns EWOULDBLOCK at the deadline.
pub(crate) fn sleep_until<'a, S: Watched>(
    mut state: MutexGuard<'a, S>,
    deadline: Option<Instant>,
    ready: impl Fn(&S) -> bool,
) -> Outcome<MutexGuard<'a, S>> {
    let bell = Bell::of_thread()?;
    bell.hush();
    state.sleepers().add(&bell);
    let mut fds = Vec::with_capacity(4);
    let outcome = loop {
        // Armed before the check, so that `poll` reports every later completion.
        state.arm();
        state.progress(Some(&bell));
        if ready(&state) {
            break Ok(());
        }
        if state.is_closed() {
            break Err(Errno(libc::EBADF));
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            break Err(Errno::WOULD_BLOCK);
        }
        fds.clear();
        fds.push(watch(bell.fd(), libc::POLLIN));
        state.watch(&mut fds);
        let quiet = now + PROBE_AFTER;
        let until = deadline.map_or(quiet, |deadline| deadline.min(quiet));
        let slept = MutexGuard::unlocked(&mut state, || sleep_on(&mut fds, Some(until)));
        bell.hush();
        match slept {
            Err(errno) => break Err(errno),
            Ok(0) => state.on_silence(),
            Ok(_) => state.take_events(Some(&bell)),
        }
    };
    state.sleepers().remove(&bell);
    outcome.map(|()| state)
}

/// The interface of `rpoll` to a socket of either kind.
pub(crate) trait Pollable {
    /// The present events among `events` and those that `poll` always reports. `own` is the caller's bell, if it is registered.
    fn ready(&self, events: i16, own: Option<&Arc<Bell>>) -> i16;
    /// The same before a sleep: arms the completion queues first, and adds the descriptors to sleep on.
    fn prepare(&self, bell: &Arc<Bell>, events: i16, fds: &mut Vec<pollfd>) -> i16;
    /// Called if one of the descriptors was ready.
    fn awaken(&self, bell: &Arc<Bell>);
    /// Called after a long time without events.
    fn fall_silent(&self);
    /// Registers or removes a bell.
    fn register(&self, bell: &Arc<Bell>, here: bool);
}

impl<S: Watched> Pollable for Mutex<S> {
    fn ready(&self, events: i16, own: Option<&Arc<Bell>>) -> i16 {
        let mut state = self.lock();
        state.progress(own);
        let ready = state.readiness(events);
        if ready != 0 {
            return ready;
        }
        state.glance();
        state.readiness(events)
    }

    fn prepare(&self, bell: &Arc<Bell>, events: i16, fds: &mut Vec<pollfd>) -> i16 {
        let mut state = self.lock();
        state.arm();
        state.progress(Some(bell));
        state.watch(fds);
        state.readiness(events)
    }

    fn awaken(&self, bell: &Arc<Bell>) {
        self.lock().take_events(Some(bell));
    }

    fn fall_silent(&self) {
        self.lock().on_silence();
    }

    fn register(&self, bell: &Arc<Bell>, here: bool) {
        let mut state = self.lock();
        if here { state.sleepers().add(bell) } else { state.sleepers().remove(bell) }
    }
}
