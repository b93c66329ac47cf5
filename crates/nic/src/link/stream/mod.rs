//! TCP streams: the wire of iWARP.
//!
//! Every queue pair has its own stream. One epoll set contains all of them, so this link has one descriptor to sleep on. The bytes
//! do not pass through [`Link`], which carries datagrams: the engine reads and writes each stream itself.

mod extras;
mod socket;
mod tap;

pub(crate) use extras::StreamExtras;
pub(crate) use socket::{Closing, Segmenting, StreamListener, StreamPiece, StreamSocket};

use super::shared_port::SharedPort;
use super::{Capabilities, Effort, Link, LinkCounters, LinkError, RxBatch, TxBatch};
use ferroce_os::epoll::Epoll;
use ferroce_proto::Gid;
use ferroce_shm::registry::{Registry, default_base};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// The sockets of one progress context.
pub(crate) struct StreamLink {
    port: Arc<SharedPort>,
    sockets: Arc<Epoll>,
    extras: Arc<StreamExtras>,
}

impl StreamLink {
    /// Claims a process slot, which queue pair numbers contain, and makes an empty set of sockets.
    pub(crate) fn open(extras: StreamExtras) -> Result<StreamLink, LinkError> {
        let registry = Arc::new(Registry::open(&default_base())?);
        let failed = |what: String| move |source| LinkError::Socket { what, source };
        let directory = registry.directory().display().to_string();
        let port =
            SharedPort::open(registry, Arc::default()).map_err(failed(format!("listen in {directory}")))?;
        let sockets = Epoll::new().map_err(failed("open a poll set".into()))?;
        Ok(StreamLink { port: Arc::new(port), sockets: Arc::new(sockets), extras: Arc::new(extras) })
    }

    /// Capture and faults of its streams.
    pub(crate) fn extras(&self) -> &Arc<StreamExtras> {
        &self.extras
    }

    pub(crate) fn port(&self) -> &Arc<SharedPort> {
        &self.port
    }

    /// The epoll set of its sockets.
    pub(crate) fn sockets(&self) -> &Arc<Epoll> {
        &self.sockets
    }
}

impl Link for StreamLink {
    /// No packets are made for this link.
    fn send(&self, batch: &mut TxBatch) {
        batch.clear();
    }

    fn receive(&self, _: &mut RxBatch, _: Effort) -> usize {
        0
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        vec![self.sockets.as_raw_fd()]
    }

    fn join_multicast(&self, _: Gid) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn leave_multicast(&self, _: Gid) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { external_payloads: false }
    }

    fn report_outer_fields(&self) {}

    fn counters(&self) -> LinkCounters {
        self.extras.counters()
    }
}
