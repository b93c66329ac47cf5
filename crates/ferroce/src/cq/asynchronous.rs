//! Waiting for completions in tasks: a reactor watches the completion channel.

use super::Cq;
use super::dispatch::Waiter;
use crate::error::Error;
use crate::macros::debug;
use crate::pending::{Done, Pending};
use crate::reactor::{self, Reactor, Readable};
use ferroce_proto::verbs::Completion;
use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::pin::pin;
use std::task::Poll;

/// A completion queue whose completions can be awaited. All futures are cancellation-safe: a future takes a completion off
/// the queue only when it returns it, and no future contains a buffer.
///
/// ```
/// # #[cfg(feature = "tokio")]
/// # fn with_tokio() -> Result<(), ferroce::Error> {
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
/// # runtime.block_on(async {
/// use ferroce::{AsyncCq, Device, Tokio};
///
/// let device = Device::open()?;
/// let pd = device.alloc_pd()?;
/// let cq = device.create_cq(16)?;
/// let qp = pd.rc(&cq).create()?;
/// qp.connect(&qp.endpoint()?)?; // a loopback connection
///
/// let completions = AsyncCq::new(&cq, &Tokio)?;
/// let received = qp.recv(pd.buffer(64)?)?;
/// completions.wait(qp.send(pd.buffer(64)?)?).await?;
/// completions.wait(received).await?;
/// # Ok(())
/// # })
/// # }
/// # #[cfg(feature = "tokio")]
/// # with_tokio().unwrap();
/// ```
pub struct AsyncCq<R: Reactor> {
    cq: Cq,
    fd: R::Watched,
}

impl<R: Reactor> AsyncCq<R> {
    /// Registers the completion channel with a reactor.
    pub fn new(cq: &Cq, reactor: &R) -> Result<Self, Error> {
        Ok(AsyncCq { cq: cq.clone(), fd: reactor::watch(reactor, cq.as_fd())? })
    }

    /// The completion queue.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Waits for the next completion of `post_send` or `post_recv`.
    pub async fn completion(&self) -> Result<Completion, Error> {
        self.until(|| self.cq.try_next()).await
    }

    /// Waits for the outcome of an owned operation of this queue. If the future is dropped, the operation continues and can
    /// be awaited again.
    pub async fn settle(&self, pending: &mut Pending) -> Result<Done, Error> {
        if !pending.cq.is(&self.cq) {
            return Err(Error::invalid("settle", "pending", "completes on another completion queue"));
        }
        self.until(|| pending.try_settle()).await
    }

    /// As [`AsyncCq::settle`], with failures as errors.
    pub async fn wait(&self, mut pending: Pending) -> Result<Done, Error> {
        Ok(self.settle(&mut pending).await?.ok()?)
    }

    /// Waits for the next owned receive of a shared receive queue.
    pub async fn shared(&self) -> Result<Done, Error> {
        self.until(|| self.cq.try_shared()).await
    }

    async fn until<T>(&self, mut poll: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        let waiter = Waiter::new(&self.cq);
        loop {
            let mut readable = pin!(self.fd.readable());
            let found = poll_fn(|cx| {
                if let Err(error) = waiter.prepare(cx.waker()) {
                    return Poll::Ready(Err(error));
                }
                match poll() {
                    Ok(None) => {}
                    other => return Poll::Ready(other),
                }
                readable.as_mut().poll(cx).map(|ready| {
                    ready.map_err(reactor::failed)?;
                    waiter.take_events()?;
                    Ok(None)
                })
            });
            if let Some(found) = found.await? {
                return Ok(found);
            }
        }
    }
}

debug!(AsyncCq<R> where R: Reactor, |this| "AsyncCq({})", this.cq.id());
