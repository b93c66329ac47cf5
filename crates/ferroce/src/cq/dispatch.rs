//! Dispatch of completions to waiters.
//!
//! Several threads and tasks may wait on one queue for different operations. A waiter for an owned operation takes the completions of
//! all owned operations off the queue, passes each to its operation, and wakes the other waiters. Completions of `post_send` and
//! `post_recv` stay in the queue until the program polls them.

use super::Cq;
use crate::error::Error;
use crate::in_flight::{OutcomeCell, is_owned};
use crate::pending::Done;
use ferroce_nic::lock::Mutex;
use ferroce_proto::verbs::Completion;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::task::Waker;

/// Completions that one poll takes on behalf of all waiters.
const BATCH: usize = 16;

#[derive(Default)]
pub(super) struct Dispatch {
    undelivered: Mutex<Undelivered>,
    waiters: AtomicUsize,
}

#[derive(Default)]
struct Undelivered {
    /// Completed owned receives of a shared receive queue.
    shared: VecDeque<Done>,
    wakers: Vec<Waker>,
}

impl Cq {
    /// Takes completions of `post_send` and `post_recv`, oldest first, and returns their number. Never blocks. If the queue is
    /// empty, the calling thread makes progress for the device: it receives and sends packets.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Error> {
        loop {
            let polled = self.inner.nic.poll(out).map_err(Error::in_call("poll_cq"))?;
            if !out[..polled].iter().any(is_owned) {
                return Ok(polled);
            }
            let plain = self.deliver_owned(&mut out[..polled]);
            if plain > 0 {
                return Ok(plain);
            }
        }
    }

    /// The outcome of an operation, if it is complete. Returns `None` only after finding no owned completion in the queue.
    pub(crate) fn poll_outcome(&self, outcome: &OutcomeCell) -> Result<Option<Done>, Error> {
        self.poll_owned(|_| outcome.take())
    }

    /// The next owned receive of a shared receive queue, if one is done. Never blocks.
    pub fn try_shared(&self) -> Result<Option<Done>, Error> {
        self.poll_owned(|undelivered| Ok(undelivered.lock().shared.pop_front()))
    }

    fn poll_owned<T>(
        &self,
        find: impl Fn(&Mutex<Undelivered>) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        self.inner.device.check_ours("poll_cq")?;
        loop {
            if let Some(found) = find(&self.inner.dispatch.undelivered)? {
                return Ok(Some(found));
            }
            let mut batch = [Completion::default(); BATCH];
            match self.inner.nic.poll_selected(&mut batch, is_owned) {
                Ok(n) if n > 0 => self.deliver_owned(&mut batch[..n]),
                // Another thread may have delivered it after the first look-up.
                polled => {
                    let found = find(&self.inner.dispatch.undelivered)?;
                    return if found.is_some() {
                        Ok(found)
                    } else {
                        polled.map(|_| None).map_err(Error::in_call("poll_cq"))
                    };
                }
            };
        }
    }

    /// Delivers owned completions and moves the others to the front. Returns the number of the others.
    fn deliver_owned(&self, batch: &mut [Completion]) -> usize {
        let mut plain = 0;
        for i in 0..batch.len() {
            if !is_owned(&batch[i]) {
                batch.swap(plain, i);
                plain += 1;
            } else if let Some(done) = self.inner.device.in_flight().complete(batch[i]) {
                self.inner.dispatch.undelivered.lock().shared.push_back(done);
            }
        }
        if plain < batch.len() {
            self.wake_waiters();
        }
        plain
    }

    /// Wakes all waiters. Must follow every change that a waiter may wait for.
    pub(crate) fn wake_waiters(&self) {
        // Pairs with the fence in `Waiter::new`: either this thread sees the waiter, or the waiter sees the change.
        fence(Ordering::SeqCst);
        if self.inner.dispatch.waiters.load(Ordering::Relaxed) == 0 {
            return;
        }
        let wakers = std::mem::take(&mut self.inner.dispatch.undelivered.lock().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A thread or task that sleeps, or is about to sleep, on a queue.
pub(super) struct Waiter<'a>(&'a Cq);

impl<'a> Waiter<'a> {
    pub(super) fn new(cq: &'a Cq) -> Self {
        cq.inner.dispatch.waiters.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Waiter(cq)
    }

    /// Registers the waker and arms the queue. Must precede the last poll before each sleep.
    pub(super) fn prepare(&self, waker: &Waker) -> Result<(), Error> {
        {
            let wakers = &mut self.0.inner.dispatch.undelivered.lock().wakers;
            if !wakers.iter().any(|w| w.will_wake(waker)) {
                wakers.push(waker.clone());
            }
        }
        self.0.arm(false)
    }

    /// Must follow each wake-up by the descriptor. An event concerns all waiters, but only one can read it. That waiter arms the
    /// queue again and wakes the others.
    pub(super) fn take_events(&self) -> Result<(), Error> {
        let cleared = self.0.clear_events();
        // A waiter is counted before it arms the queue, so whoever cleared its event counts it.
        if cleared > 0 && self.0.inner.dispatch.waiters.load(Ordering::SeqCst) > 1 {
            self.0.arm(false)?;
            self.0.wake_waiters();
        }
        Ok(())
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let dispatch = &self.0.inner.dispatch;
        if dispatch.waiters.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        // Wakers own descriptors, so stale ones must be dropped. A waiter is counted before it registers its waker. If the
        // count is zero, all wakers are stale.
        // They are dropped without the lock: a waker is code of the runtime, and may own anything.
        let mut undelivered = dispatch.undelivered.lock();
        let is_last = dispatch.waiters.load(Ordering::SeqCst) == 0;
        let stale = if is_last { std::mem::take(&mut undelivered.wakers) } else { Vec::new() };
        drop(undelivered);
        drop(stale);
    }
}
