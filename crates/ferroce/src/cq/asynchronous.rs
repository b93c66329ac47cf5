//! How tasks wait: the completion channel as a source of a tokio reactor.

use super::Cq;
use super::inbox::Sleeper;
use crate::error::Error;
use crate::pending::{Done, Pending};
use ferroce_proto::verbs::Completion;
use std::future::poll_fn;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::pin;
use std::task::Poll;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A completion queue whose completions can be awaited. All futures are cancellation-safe: a completion is taken off
/// the queue only in the moment it is returned, and buffers never live in a future.
pub struct AsyncCq {
    cq: Cq,
    fd: AsyncFd<Source>,
}

/// Keeps the descriptor open that the reactor watches.
struct Source(Cq);

impl AsRawFd for Source {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsyncCq {
    /// Registers the queue with the reactor of the present tokio runtime.
    pub fn new(cq: &Cq) -> Result<Self, Error> {
        // Newer versions have an unsafe one instead, for sources that close or exchange their descriptor. Ours does
        // neither, and so works with all versions.
        #[allow(deprecated)]
        let fd = AsyncFd::with_interest(Source(cq.clone()), Interest::READABLE);
        let fd = fd.map_err(|source| Error::System { what: "watching the completion channel", source })?;
        Ok(AsyncCq { cq: cq.clone(), fd })
    }

    /// The queue.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// The next completion of `post_send` or `post_recv`.
    pub async fn completion(&self) -> Result<Completion, Error> {
        self.until(|| self.cq.try_next()).await
    }

    /// The outcome of an owned operation of this queue. If the future is dropped, the operation goes on and can be
    /// awaited again.
    pub async fn settle(&self, pending: &mut Pending) -> Result<Done, Error> {
        if !pending.cq.is(&self.cq) {
            let why = "completes on another completion queue";
            return Err(Error::in_call("settle")(ferroce_nic::Error::Invalid { attribute: "pending", why }));
        }
        self.until(|| pending.try_settle()).await
    }

    /// As [`AsyncCq::settle`], with failures as errors.
    pub async fn wait(&self, mut pending: Pending) -> Result<Done, Error> {
        Ok(self.settle(&mut pending).await?.ok()?)
    }

    /// The next owned receive of a shared queue.
    pub async fn shared(&self) -> Result<Done, Error> {
        self.until(|| self.cq.try_shared()).await
    }

    async fn until<T>(&self, mut look: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
        if let Some(found) = look()? {
            return Ok(found);
        }
        let sleeper = Sleeper::new(&self.cq);
        loop {
            let mut readable = pin!(self.fd.readable());
            let found = poll_fn(|cx| {
                if let Err(error) = sleeper.prepare(cx.waker()) {
                    return Poll::Ready(Err(error));
                }
                match look() {
                    Ok(None) => {}
                    other => return Poll::Ready(other),
                }
                readable.as_mut().poll(cx).map(|ready| {
                    let mut ready = ready.map_err(|source| Error::System {
                        what: "waiting for the completion channel",
                        source,
                    })?;
                    // Before the events are taken: one that comes in between must make it ready again.
                    ready.clear_ready();
                    sleeper.take_events()?;
                    Ok(None)
                })
            });
            if let Some(found) = found.await? {
                return Ok(found);
            }
        }
    }
}
