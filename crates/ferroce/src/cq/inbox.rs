//! Who gets which completion.
//!
//! Several threads and tasks may wait on one queue for different things, and each takes off it whatever comes. What is
//! not for the taker is put where its waiter looks, and the waiter is woken.

use super::Cq;
use crate::error::Error;
use crate::ledger::{OWNED, Ticket};
use crate::pending::Done;
use ferroce_nic::lock::Mutex;
use ferroce_proto::verbs::Completion;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::task::Waker;

/// Completions that are taken at a time on behalf of others.
const BATCH: usize = 16;

#[derive(Default)]
pub(super) struct Inbox {
    kept: Mutex<Kept>,
    /// Whether `kept.plain` holds anything, so that polling need not lock.
    any_plain: AtomicBool,
    sleepers: AtomicUsize,
}

#[derive(Default)]
struct Kept {
    /// Of `post_send` and `post_recv`, found by somebody who waited for an owned operation.
    plain: VecDeque<Completion>,
    /// Of owned receives that came from a shared queue.
    shared: VecDeque<Done>,
    wakers: Vec<Waker>,
}

impl Cq {
    /// Takes completions of `post_send` and `post_recv`, oldest first, and returns how many. Never blocks. If none
    /// waits, the calling thread drives the device for a moment: whoever polls is the NIC.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Error> {
        if self.inner.inbox.any_plain.load(Ordering::Acquire) {
            self.inner.device.check_ours("poll_cq")?;
            let n = self.take_plain(out);
            if n > 0 {
                return Ok(n);
            }
        }
        loop {
            let n = self.inner.nic.poll(out).map_err(Error::in_call("poll_cq"))?;
            if out[..n].iter().all(|c| c.wr_id & OWNED == 0) {
                return Ok(n);
            }
            let plain = self.settle_owned(&mut out[..n]);
            if plain > 0 {
                return Ok(plain);
            }
        }
    }

    /// The outcome behind a ticket, if it is there. `None` only after the queue was seen empty.
    pub(crate) fn look_for(&self, ticket: &Ticket) -> Result<Option<Done>, Error> {
        self.look(|_| ticket.redeem())
    }

    /// The next owned receive of a shared queue, if one is done.
    pub fn try_shared(&self) -> Result<Option<Done>, Error> {
        self.look(|kept| Ok(kept.lock().shared.pop_front()))
    }

    fn look<T>(&self, find: impl Fn(&Mutex<Kept>) -> Result<Option<T>, Error>) -> Result<Option<T>, Error> {
        self.inner.device.check_ours("poll_cq")?;
        loop {
            if let Some(found) = find(&self.inner.inbox.kept)? {
                return Ok(Some(found));
            }
            if self.sort_batch()? == 0 {
                // Another thread may have taken it off the queue a moment ago.
                return find(&self.inner.inbox.kept);
            }
        }
    }

    /// Takes some completions off the queue, for whomever they are. Returns how many.
    fn sort_batch(&self) -> Result<usize, Error> {
        let mut batch = [Completion::default(); BATCH];
        let n = self.inner.nic.poll(&mut batch).map_err(Error::in_call("poll_cq"))?;
        let plain = self.settle_owned(&mut batch[..n]);
        if plain > 0 {
            let depth = self.depth();
            let mut kept = self.inner.inbox.kept.lock();
            kept.plain.extend(&batch[..plain]);
            self.inner.inbox.any_plain.store(true, Ordering::Release);
            let waiting = kept.plain.len();
            drop(kept);
            self.wake_sleepers();
            if waiting > depth {
                // Nobody takes them; a real queue of this depth would have overflowed.
                return Err(Error::in_call("poll_cq")(ferroce_nic::Error::CqOverrun { depth }));
            }
        }
        Ok(n)
    }

    fn take_plain(&self, out: &mut [Completion]) -> usize {
        let mut kept = self.inner.inbox.kept.lock();
        let n = out.len().min(kept.plain.len());
        for (slot, completion) in out.iter_mut().zip(kept.plain.drain(..n)) {
            *slot = completion;
        }
        self.inner.inbox.any_plain.store(!kept.plain.is_empty(), Ordering::Release);
        n
    }

    /// Hands owned completions over and moves the others to the front. Returns how many those are.
    fn settle_owned(&self, batch: &mut [Completion]) -> usize {
        let mut plain = 0;
        for i in 0..batch.len() {
            if batch[i].wr_id & OWNED == 0 {
                batch.swap(plain, i);
                plain += 1;
            } else if let Some(done) = self.inner.device.ledger().settle(batch[i]) {
                self.inner.inbox.kept.lock().shared.push_back(done);
            }
        }
        if plain < batch.len() {
            self.wake_sleepers();
        }
        plain
    }

    /// Has to be called after something was put where others look.
    pub(crate) fn wake_sleepers(&self) {
        // Pairs with the one in `Sleeper::new`: either we see the sleeper here, or it sees what we put there.
        fence(Ordering::SeqCst);
        if self.inner.inbox.sleepers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let wakers = std::mem::take(&mut self.inner.inbox.kept.lock().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// One who is about to sleep, or sleeps, on a queue.
pub(super) struct Sleeper<'a>(&'a Cq);

impl<'a> Sleeper<'a> {
    pub(super) fn new(cq: &'a Cq) -> Self {
        cq.inner.inbox.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Sleeper(cq)
    }

    /// To be called before the last look, each time.
    pub(super) fn prepare(&self, waker: &Waker) -> Result<(), Error> {
        {
            let wakers = &mut self.0.inner.inbox.kept.lock().wakers;
            if !wakers.iter().any(|w| w.will_wake(waker)) {
                wakers.push(waker.clone());
            }
        }
        self.0.arm(false)
    }

    /// To be called after the descriptor was readable. An event is for all sleepers but only one can take it; so that
    /// one tells the others, and arms the queue for them.
    pub(super) fn take_events(&self) -> Result<(), Error> {
        let others = self.0.inner.inbox.sleepers.load(Ordering::SeqCst) > 1;
        if self.0.clear_events() > 0 && others {
            self.0.arm(false)?;
            self.0.wake_sleepers();
        }
        Ok(())
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let inbox = &self.0.inner.inbox;
        if inbox.sleepers.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        // Nobody may ever ring for those who slept here, and each holds a descriptor. A new sleeper counts before it
        // leaves its waker, so with none counted all are of the past.
        let mut kept = inbox.kept.lock();
        if inbox.sleepers.load(Ordering::SeqCst) == 0 {
            kept.wakers.clear();
        }
    }
}
