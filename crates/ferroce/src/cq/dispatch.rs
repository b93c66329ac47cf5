//! Dispatch of completions to waiters.
//!
//! Several threads and tasks may wait on one queue for different operations. Each polls every completion. A completion of
//! another waiter's operation is stored for that waiter, and the waiter is woken.
//!
//! A plain completion that a waiter polls is stored while the queue is still locked. So it is always in the queue or stored, and a
//! thread that finds the queue empty finds it stored. It also stays in order: whoever polls a later one finds it stored.

use super::Cq;
use crate::error::Error;
use crate::in_flight::{OWNED, OutcomeCell};
use crate::pending::Done;
use ferroce_nic::lock::Mutex;
use ferroce_proto::verbs::Completion;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::task::Waker;

/// Completions that one poll takes on behalf of all waiters.
const BATCH: usize = 16;

#[derive(Default)]
pub(super) struct Dispatch {
    undelivered: Mutex<Undelivered>,
    /// Whether `undelivered.plain` has an entry, so that polling need not lock.
    any_plain: AtomicBool,
    /// Plain completions that were ever stored. It changes only while the queue is locked.
    stored: AtomicU64,
    waiters: AtomicUsize,
    /// Called once, after a waiter has polled completions.
    #[cfg(test)]
    after_poll: Mutex<Option<tests::Hook>>,
}

#[derive(Default)]
struct Undelivered {
    /// Completions of `post_send` and `post_recv` that a waiter for an owned operation has polled.
    plain: VecDeque<Completion>,
    /// Completed owned receives of a shared receive queue.
    shared: VecDeque<Done>,
    wakers: Vec<Waker>,
    /// Plain completions that were ever taken, less those that were stored before others: the stored one at position `n` has number `taken + n`.
    taken: u64,
}

impl Dispatch {
    /// Stores a completion of `post_send` or `post_recv`, and returns the number of stored ones. The caller holds the lock of the
    /// queue that it comes from, and no code takes that lock while it holds `undelivered`.
    fn store_plain(&self, completion: Completion) -> usize {
        let mut undelivered = self.undelivered.lock();
        undelivered.plain.push_back(completion);
        self.stored.fetch_add(1, Ordering::Relaxed);
        self.any_plain.store(true, Ordering::Release);
        undelivered.plain.len()
    }

    /// Takes stored plain completions, oldest first, and returns their number.
    fn take_stored(&self, undelivered: &mut Undelivered, out: &mut [Completion]) -> usize {
        let n = out.len().min(undelivered.plain.len());
        for (outcome, completion) in out.iter_mut().zip(undelivered.plain.drain(..n)) {
            *outcome = completion;
        }
        undelivered.taken = undelivered.taken.wrapping_add(n as u64);
        self.any_plain.store(!undelivered.plain.is_empty(), Ordering::Release);
        n
    }
}

impl Cq {
    /// Takes completions of `post_send` and `post_recv`, oldest first, and returns their number. Never blocks. If the queue is
    /// empty, the calling thread makes progress for the device: it receives and sends packets.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Error> {
        let dispatch = &self.inner.dispatch;
        if dispatch.any_plain.load(Ordering::Acquire) {
            let taken = self.take_plain(out)?;
            if taken > 0 {
                return Ok(taken);
            }
        }
        loop {
            let (mut older, most) = (0, out.len());
            let take = |index: usize, completion| {
                out[index] = completion;
                // None is stored while the queue is locked.
                older = dispatch.stored.load(Ordering::Relaxed);
            };
            let polled = self.inner.nic.poll_each(most, take).map_err(Error::in_call("poll_cq"))?;
            if polled == 0 {
                // Another thread may have stored some meanwhile.
                return if dispatch.any_plain.load(Ordering::Acquire) { self.take_plain(out) } else { Ok(0) };
            }
            let all_plain = out[..polled].iter().all(|c| c.wr_id & OWNED == 0);
            let plain = if all_plain { polled } else { self.deliver_owned(&mut out[..polled]) };
            if plain > 0 && !dispatch.any_plain.load(Ordering::Relaxed) {
                return Ok(plain);
            }
            if plain > 0 {
                return Ok(self.take_older_first(out, plain, older));
            }
        }
    }

    /// The outcome of an operation, if it is complete. Returns `None` only after finding the queue empty.
    pub(crate) fn poll_outcome(&self, outcome: &OutcomeCell) -> Result<Option<Done>, Error> {
        self.poll_stored(|_| outcome.take())
    }

    /// The next owned receive of a shared receive queue, if one is done. Never blocks.
    pub fn try_shared(&self) -> Result<Option<Done>, Error> {
        self.poll_stored(|undelivered| Ok(undelivered.lock().shared.pop_front()))
    }

    fn poll_stored<T>(
        &self,
        find: impl Fn(&Mutex<Undelivered>) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        self.inner.device.check_ours("poll_cq")?;
        loop {
            if let Some(found) = find(&self.inner.dispatch.undelivered)? {
                return Ok(Some(found));
            }
            if self.dispatch_batch()? == 0 {
                // Another thread may have stored it after the first look-up.
                return find(&self.inner.dispatch.undelivered);
            }
        }
    }

    /// Takes some completions off the queue and dispatches them. Returns their number.
    fn dispatch_batch(&self) -> Result<usize, Error> {
        let mut batch = [Completion::default(); BATCH];
        let (mut owned, mut stored) = (0, 0);
        let take = |_, completion: Completion| {
            if completion.wr_id & OWNED == 0 {
                stored = self.inner.dispatch.store_plain(completion);
            } else {
                batch[owned] = completion;
                owned += 1;
            }
        };
        let n = self.inner.nic.poll_each(BATCH, take).map_err(Error::in_call("poll_cq"))?;
        #[cfg(test)]
        tests::pause(self, n);
        self.deliver_owned(&mut batch[..owned]);
        if stored > 0 {
            self.wake_waiters();
            let depth = self.depth();
            if stored > depth {
                // The program does not poll them. A hardware queue of this depth would overflow.
                return Err(Error::in_call("poll_cq")(ferroce_nic::Error::CqOverrun { depth }));
            }
        }
        Ok(n)
    }

    /// Takes stored plain completions, oldest first, and returns their number.
    #[cold]
    fn take_plain(&self, out: &mut [Completion]) -> Result<usize, Error> {
        let dispatch = &self.inner.dispatch;
        self.inner.device.check_ours("poll_cq")?;
        Ok(dispatch.take_stored(&mut dispatch.undelivered.lock(), out))
    }

    /// Another thread has stored completions. The first `older` that were ever stored precede the first `plain` of `out`, and are taken first.
    /// Returns the number of completions in `out` then; others stay stored.
    #[cold]
    fn take_older_first(&self, out: &mut [Completion], plain: usize, older: u64) -> usize {
        let dispatch = &self.inner.dispatch;
        let mut undelivered = dispatch.undelivered.lock();
        // Negative if all of them are taken, and more.
        let older = older.wrapping_sub(undelivered.taken) as i64;
        let older = usize::try_from(older).unwrap_or(0).min(undelivered.plain.len());
        if older == 0 {
            return plain;
        }
        let newer = undelivered.plain.split_off(older);
        undelivered.plain.extend(&out[..plain]);
        undelivered.plain.extend(newer);
        // The newer ones keep their numbers.
        undelivered.taken = undelivered.taken.wrapping_sub(plain as u64);
        dispatch.take_stored(&mut undelivered, out)
    }

    /// Delivers owned completions and moves the others to the front. Returns the number of the others.
    fn deliver_owned(&self, batch: &mut [Completion]) -> usize {
        let mut plain = 0;
        for i in 0..batch.len() {
            if batch[i].wr_id & OWNED == 0 {
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
        let others = self.0.inner.dispatch.waiters.load(Ordering::SeqCst) > 1;
        if self.0.clear_events() > 0 && others {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Device};
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::mpsc;

    pub(super) type Hook = Box<dyn FnOnce(&Cq) + Send>;

    pub(super) fn pause(cq: &Cq, polled: usize) {
        let mut hook = cq.inner.dispatch.after_poll.lock();
        if let Some(hook) = hook.take_if(|_| polled > 0) {
            hook(cq);
        }
    }

    #[test]
    fn a_completion_that_a_waiter_polls_is_always_in_sight_and_in_order() {
        let loopback = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let config = Config::from_env().expect("environment").with(|c| c.addresses = Some(loopback));
        let device = Device::open_with(config).expect("a device");
        let (pd, cq) = (device.alloc_pd().expect("a PD"), device.create_cq(16).expect("a CQ"));
        let qp = pd.rc(&cq).create().expect("a queue pair");
        qp.connect(&qp.endpoint().expect("an endpoint")).expect("connected");
        let region = pd.region(8).remote_write().register().expect("a region");
        let mut never = qp.recv(pd.buffer(8).expect("a buffer")).expect("posted");
        let next = |cq: &Cq| loop {
            if let Some(completion) = cq.try_next().expect("polled") {
                return completion.wr_id;
            }
            std::thread::yield_now();
        };
        let (tell, told) = mpsc::channel();
        let (sender, target) = (qp.clone(), region.remote());
        *cq.inner.dispatch.after_poll.lock() = Some(Box::new(move |cq: &Cq| {
            sender.write_inline(2, b"2", target).expect("posted");
            tell.send(next(cq)).expect("the test waits");
        }));
        qp.write_inline(1, b"1", region.remote()).expect("posted");
        let first = loop {
            assert!(never.try_settle().expect("polled").is_none());
            if let Ok(first) = told.try_recv() {
                break first;
            }
            std::thread::yield_now();
        };
        assert_eq!([first, next(&cq)], [1, 2]);
    }

    #[test]
    fn stored_completions_go_before_those_that_were_polled_after_them() {
        let loopback = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let config = Config::from_env().expect("environment").with(|c| c.addresses = Some(loopback));
        let device = Device::open_with(config).expect("a device");
        let cq = device.create_cq(16).expect("a CQ");
        let number = |wr_id| Completion { wr_id, ..Completion::default() };
        let store = |wr_id| cq.inner.dispatch.store_plain(number(wr_id));
        let stored = || cq.inner.dispatch.stored.load(Ordering::Relaxed);
        for round in 0..3 {
            let [a, b, c, d, e, f] = [1, 2, 3, 4, 5, 6].map(|n| 10 * round + n);
            store(a);
            store(b);
            let mut polled = [number(c), number(d)];
            let older = stored();
            store(e);
            assert_eq!(cq.take_older_first(&mut polled, 2, older), 2);
            assert_eq!(polled.map(|completion| completion.wr_id), [a, b]);
            // Polled after e was stored.
            let mut later = [number(f)];
            let older = stored();
            assert_eq!(cq.take_older_first(&mut later, 1, older), 1);
            let rest = [(); 3].map(|()| cq.try_next().expect("polled").expect("stored").wr_id);
            assert_eq!((later[0].wr_id, rest), (c, [d, e, f]));
            let mut alone = [number(f)];
            assert_eq!((cq.take_older_first(&mut alone, 1, older), alone[0].wr_id), (1, f));
        }
    }
}
