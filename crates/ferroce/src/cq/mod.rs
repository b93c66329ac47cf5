//! Completion queues.
//!
//! | file | question |
//! |---|---|
//! | here | what a completion queue can do |
//! | `inbox` | who gets which completion |
//! | `wait` | how threads wait without losing a wake-up |
//! | `asynchronous` | how tasks do (feature `tokio`) |

#[cfg(feature = "tokio")]
mod asynchronous;
mod inbox;
mod wait;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncCq;

use crate::device::Device;
use crate::error::Error;
use crate::pending::Done;
use ferroce_nic::CompletionChannel;
use ferroce_proto::verbs::Completion;
use inbox::Inbox;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A completion queue with its completion channel. Cheap to clone, usable from any thread.
///
/// Completions of `post_send` and `post_recv` come out of [`poll`](Cq::poll) and [`wait`](Cq::wait). Those of owned
/// operations go to their [`Pending`](crate::Pending), whoever polls, and those of owned receives of a shared queue to
/// [`wait_shared`](Cq::wait_shared).
#[derive(Clone)]
pub struct Cq {
    inner: Arc<Inner>,
}

struct Inner {
    nic: ferroce_nic::Cq,
    channel: Arc<CompletionChannel>,
    device: Device,
    inbox: Inbox,
}

impl Cq {
    pub(crate) fn create(device: &Device, depth: u32) -> Result<Cq, Error> {
        let call = Error::in_call("create_cq");
        let channel = device.nic().create_channel().map_err(&call)?;
        let nic = device.nic().create_cq(depth, Some(&channel), 0).map_err(&call)?;
        Ok(Cq { inner: Arc::new(Inner { nic, channel, device: device.clone(), inbox: Inbox::default() }) })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Its number within the device: what events name it by.
    pub fn id(&self) -> u32 {
        self.inner.nic.id()
    }

    /// Entries it holds.
    pub fn depth(&self) -> usize {
        self.inner.nic.depth()
    }

    /// Changes the depth; refused if more completions wait than would fit.
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        self.inner.nic.resize(depth).map_err(Error::in_call("resize_cq"))
    }

    /// The next completion, if one waits. Never blocks.
    pub fn try_next(&self) -> Result<Option<Completion>, Error> {
        let mut one = [Completion::default()];
        Ok((self.poll(&mut one)? == 1).then_some(one[0]))
    }

    /// Waits for the next completion: polls for a moment, then sleeps on the completion channel.
    pub fn wait(&self) -> Result<Completion, Error> {
        self.wait_for(None, || self.try_next())
    }

    /// As [`Cq::wait`], but not longer than `timeout`: then [`Error::TimedOut`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Completion, Error> {
        self.wait_for(Some(Instant::now() + timeout), || self.try_next())
    }

    /// Waits for the next receive that was posted with [`Srq::recv`](crate::Srq::recv), success or not.
    pub fn wait_shared(&self) -> Result<Done, Error> {
        self.wait_for(None, || self.try_shared())
    }

    /// As [`Cq::wait_shared`], but not longer than `timeout`: then [`Error::TimedOut`].
    pub fn wait_shared_timeout(&self, timeout: Duration) -> Result<Done, Error> {
        self.wait_for(Some(Instant::now() + timeout), || self.try_shared())
    }

    /// Makes the descriptor readable with the next completion (or the next solicited one) that is added from now on,
    /// once. Poll again after arming, before sleeping: what was added before makes nothing readable.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Error> {
        self.inner.nic.request_notify(solicited_only).map_err(Error::in_call("req_notify_cq"))
    }

    /// Takes the events that made the descriptor readable, and returns how many.
    pub fn clear_events(&self) -> usize {
        std::iter::from_fn(|| self.inner.channel.try_next()).count()
    }

    /// Sleeps until packets arrive or the armed queue gets a completion, at most so long. Who sleeps here is woken for packets
    /// instead of the device's own thread, and takes care of them: a wake-up less. Arm the queue and poll once more before.
    /// Arming does not outlast the sleep.
    pub fn sleep(&self, most: Duration) -> Result<(), Error> {
        if self.inner.nic.sleep(most).map_err(Error::in_call("sleep"))? {
            self.clear_events();
        }
        Ok(())
    }

    /// Says that the program comes and goes: it polls a little, sleeps, and does something else. From now on, as long as
    /// this queue lives, the device's own thread wakes for packets whenever nobody sleeps for them. Otherwise it takes a program
    /// that polled just now for one that goes on doing so, and looks again a few milliseconds later. For programs that sleep
    /// rather than poll: a long poll would share its packets with that thread.
    pub fn come_and_go(&self) -> Result<(), Error> {
        self.inner.nic.come_and_go().map_err(Error::in_call("come_and_go"))
    }

    pub(crate) fn nic(&self) -> &ferroce_nic::Cq {
        &self.inner.nic
    }

    #[cfg(feature = "tokio")]
    fn is(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cq({})", self.id())
    }
}

/// The completion channel: readable after a completion that [`Cq::arm`] asked for.
impl AsFd for Cq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.channel.as_fd()
    }
}
