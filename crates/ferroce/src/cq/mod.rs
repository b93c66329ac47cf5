//! Completion queues.
//!
//! | file | contents |
//! |---|---|
//! | here | the completion queue |
//! | `dispatch` | dispatch of completions to waiters |
//! | `wait` | waiting in threads |
//! | `asynchronous` | waiting in tasks |

mod asynchronous;
mod dispatch;
mod wait;

pub use asynchronous::AsyncCq;

use crate::device::Device;
use crate::error::Error;
use crate::macros::debug;
use crate::pending::Done;
use dispatch::Dispatch;
use ferroce_nic::CompletionChannel;
use ferroce_proto::verbs::Completion;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A completion queue with its completion channel. Cheap to clone, usable from any thread.
///
/// Completions of `post_send` and `post_recv` come out of [`poll`](Cq::poll) and [`wait`](Cq::wait). Those of owned
/// operations go to their [`Pending`](crate::Pending), whichever thread polls, and those of owned receives of a shared
/// queue to [`wait_shared`](Cq::wait_shared).
///
/// Three ways to wait: threads call [`wait`](Cq::wait); tasks use [`AsyncCq`] with the reactor of their runtime; an event
/// loop of the program's own watches the descriptor ([`AsFd`]) and follows the protocol of [`arm`](Cq::arm). The first two may be
/// mixed. A thread or task that sleeps reads the events of the descriptor, so an event loop of the program's own that runs at the same
/// time needs a queue of its own; other threads may poll its queue.
///
/// ```
/// # use std::os::fd::AsFd;
/// # fn wait_for_readable(_: std::os::fd::BorrowedFd<'_>) {}
/// fn next(cq: &ferroce::Cq) -> Result<ferroce::Completion, ferroce::Error> {
///     loop {
///         cq.arm(false)?;
///         if let Some(completion) = cq.try_next()? {
///             return Ok(completion);
///         }
///         wait_for_readable(cq.as_fd());
///         cq.clear_events();
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Cq {
    inner: Arc<Inner>,
}

struct Inner {
    nic: ferroce_nic::Cq,
    channel: Arc<CompletionChannel>,
    device: Device,
    dispatch: Dispatch,
}

impl Cq {
    pub(crate) fn create(device: &Device, depth: u32) -> Result<Cq, Error> {
        let call = Error::in_call("create_cq");
        let channel = device.nic().create_channel().map_err(&call)?;
        let nic = device.nic().create_cq(depth, Some(&channel), 0).map_err(&call)?;
        Ok(Cq {
            inner: Arc::new(Inner { nic, channel, device: device.clone(), dispatch: Dispatch::default() }),
        })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Its number within the device. Events refer to it by this number.
    pub fn id(&self) -> u32 {
        self.inner.nic.id()
    }

    /// Its capacity in completions.
    pub fn depth(&self) -> usize {
        self.inner.nic.depth()
    }

    /// Changes the depth. Fails if the queue holds more completions than that.
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        self.inner.nic.resize(depth).map_err(Error::in_call("resize_cq"))
    }

    /// The next completion, if there is one. Never blocks.
    pub fn try_next(&self) -> Result<Option<Completion>, Error> {
        let mut one = [Completion::default()];
        Ok((self.poll(&mut one)? == 1).then_some(one[0]))
    }

    /// Waits for the next completion: polls for a moment, then sleeps on the completion channel.
    pub fn wait(&self) -> Result<Completion, Error> {
        self.wait_for(None, || self.try_next())
    }

    /// As [`Cq::wait`]. Returns [`Error::TimedOut`] after `timeout`.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Completion, Error> {
        self.wait_for(Some(Instant::now() + timeout), || self.try_next())
    }

    /// Waits for the next receive that was posted with [`Srq::recv`](crate::Srq::recv), success or not.
    pub fn wait_shared(&self) -> Result<Done, Error> {
        self.wait_for(None, || self.try_shared())
    }

    /// As [`Cq::wait_shared`]. Returns [`Error::TimedOut`] after `timeout`.
    pub fn wait_shared_timeout(&self, timeout: Duration) -> Result<Done, Error> {
        self.wait_for(Some(Instant::now() + timeout), || self.try_shared())
    }

    /// Requests one notification: the next completion (or the next solicited one) that is added from now on makes the
    /// descriptor readable. Poll once more between arming and sleeping: earlier completions do not notify.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Error> {
        self.inner.nic.request_notify(solicited_only).map_err(Error::in_call("req_notify_cq"))
    }

    /// Reads the events that made the descriptor readable, and returns their number.
    pub fn clear_events(&self) -> usize {
        std::iter::from_fn(|| self.inner.channel.try_next()).count()
    }

    /// Sleeps until packets arrive or the armed queue gets a completion, at most `most`. Packets then wake this thread instead
    /// of the device's own, which saves one wake-up; the next poll processes them. Arm the queue and poll once more before.
    /// The sleep disarms the queue.
    pub fn sleep(&self, most: Duration) -> Result<(), Error> {
        if self.inner.nic.sleep(most).map_err(Error::in_call("sleep"))? {
            self.clear_events();
        }
        Ok(())
    }

    /// Enables interrupt-driven mode for the lifetime of this queue: packets wake the device's own thread whenever no thread
    /// sleeps in [`Cq::sleep`]. In the default, polled mode the device's thread leaves packets to a program that polled within
    /// the last milliseconds. Use this mode in programs that sleep between short polls; a long poll would compete for packets
    /// with the device's thread.
    pub fn set_interrupt_driven(&self) -> Result<(), Error> {
        self.inner.nic.set_interrupt_driven().map_err(Error::in_call("set_interrupt_driven"))
    }

    pub(crate) fn nic(&self) -> &ferroce_nic::Cq {
        &self.inner.nic
    }

    fn is(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

debug!(Cq, |this| "Cq({})", this.id());

/// The completion channel: readable after a completion that [`Cq::arm`] requested.
impl AsFd for Cq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.channel.as_fd()
    }
}
