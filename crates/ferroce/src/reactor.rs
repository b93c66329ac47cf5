//! Reactors: the part of an async runtime that watches file descriptors.
//!
//! A task waits only for file descriptors that become readable. The futures of this crate use nothing else of a runtime, so
//! they run on any executor.

use crate::error::Error;
use std::future::Future;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Watches file descriptors on behalf of tasks. `Tokio` and `AsyncIo` are ready to use behind the features `tokio` and
/// `async-io`. A program with another reactor implements this trait for it.
pub trait Reactor: Send + Sync + 'static {
    /// A watched descriptor. Dropping it ends the watch.
    type Watched: Readable;

    /// Starts to watch a descriptor.
    fn watch(&self, fd: OwnedFd) -> io::Result<Self::Watched>;
}

/// A file descriptor that a [`Reactor`] watches.
pub trait Readable: Send + Sync + 'static {
    /// Waits until the descriptor is readable.
    ///
    /// Several tasks may wait at the same time, and a dropped future must not lose the wake-up of another. A reactor that
    /// caches readiness clears its cache before this returns, so that a later event makes the descriptor readable again.
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send;
}

/// Watches a copy of the descriptor: its lifetime is then independent of the object's.
pub(crate) fn watch<R: Reactor>(reactor: &R, fd: BorrowedFd<'_>) -> Result<R::Watched, Error> {
    let copy = fd.try_clone_to_owned();
    copy.and_then(|fd| reactor.watch(fd))
        .map_err(|source| Error::System { what: "watching a descriptor", source })
}

/// Waits until `poll` returns a value. `fd` must be readable whenever `poll` can return one.
pub(crate) async fn next<R: Reactor, T>(
    reactor: &R,
    fd: BorrowedFd<'_>,
    mut poll: impl FnMut() -> Result<Option<T>, Error> + Send,
) -> Result<T, Error> {
    if let Some(found) = poll()? {
        return Ok(found);
    }
    let watched = watch(reactor, fd)?;
    loop {
        watched.readable().await.map_err(failed)?;
        if let Some(found) = poll()? {
            return Ok(found);
        }
    }
}

/// The error of a reactor that cannot wait.
pub(crate) fn failed(source: io::Error) -> Error {
    Error::System { what: "waiting for a descriptor", source }
}

/// The reactor of the current tokio runtime, which must have I/O enabled.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokio;

#[cfg(feature = "tokio")]
mod with_tokio {
    use super::{OwnedFd, Reactor, Readable, Tokio, io};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    impl Reactor for Tokio {
        type Watched = AsyncFd<OwnedFd>;

        fn watch(&self, fd: OwnedFd) -> io::Result<Self::Watched> {
            // Newer versions add an unsafe constructor for types whose descriptor changes. That of `OwnedFd` does not, and
            // this constructor exists in all versions.
            #[allow(deprecated)]
            AsyncFd::with_interest(fd, Interest::READABLE)
        }
    }

    impl Readable for AsyncFd<OwnedFd> {
        async fn readable(&self) -> io::Result<()> {
            AsyncFd::readable(self).await?.clear_ready();
            Ok(())
        }
    }
}

/// The reactor of the crate `async-io`. It has a thread of its own, so it works with every executor.
#[cfg(feature = "async-io")]
#[derive(Clone, Copy, Debug, Default)]
pub struct AsyncIo;

#[cfg(feature = "async-io")]
mod with_async_io {
    use super::{AsyncIo, OwnedFd, Reactor, Readable, io};
    use async_io::Async;

    impl Reactor for AsyncIo {
        type Watched = Async<OwnedFd>;

        fn watch(&self, fd: OwnedFd) -> io::Result<Self::Watched> {
            // Keeps the mode of the descriptor, which the NIC has set.
            Async::new_nonblocking(fd)
        }
    }

    impl Readable for Async<OwnedFd> {
        async fn readable(&self) -> io::Result<()> {
            Async::readable(self).await
        }
    }
}
