//! TCP streams: how the engine serves queue pairs of iWARP.
//!
//! | file | question |
//! |---|---|
//! | here | which sockets a progress context has, and what it reports to the connection manager |
//! | `end` | the stream of one queue pair |
//! | `egress` | how an FPDU is sent |
//! | `receive` | how bytes arrive |
//! | `drive` | what happens in one poll |
//! | `calls` | what verbs and the connection manager do to a queue pair |
//! | `closing` | streams that end after their queue pair did |
//! | `settle` | what happens to them when the device or the process ends |
//!
//! One epoll set has all sockets, those of the connection manager too. The holder of the progress lock reads every stream that has bytes, even
//! if its socket accepts none. So two ends that answer READs cannot block each other. A stream that accepts no bytes is watched until it does.
//!
//! The lock of such a queue pair is [`StreamEnd::machine`]. The connection manager is called without it.

mod calls;
mod closing;
mod drive;
mod egress;
mod end;
mod receive;
mod settle;

pub(crate) use calls::NewStream;
pub(crate) use end::StreamEnd;

use super::Engine;
use super::QpCore;
use crate::link::StreamExtras;
use closing::ClosingStreams;
use ferroce_os::epoll::Epoll;
use ferroce_os::lock::Mutex;
use ferroce_proto::Qpn;
use ferroce_proto::iwarp::wire::Crc32c;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tokens of the connection manager's sockets have this bit.
const AGENT: u64 = 1 << 63;
/// Tokens of streams without a queue pair have this bit. All other tokens are queue pair numbers.
const CLOSING: u64 = 1 << 62;

/// What happened to a stream of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEvent {
    /// The first FPDU of the peer arrived.
    Ready,
    /// The stream ended.
    Ended,
}

/// The streams of one progress context.
pub(crate) struct Streams {
    sockets: Arc<Epoll>,
    extras: Arc<StreamExtras>,
    polling: Mutex<StreamPolling>,
    closing: ClosingStreams,
    /// Events that the connection manager has not received, by its number of the connection.
    events: Mutex<Vec<(u64, StreamEvent)>>,
    any_event: AtomicBool,
    crc: Crc32c,
}

/// What the holder of the progress lock works with.
#[derive(Default)]
struct StreamPolling {
    /// Bytes that were received, until they are placed.
    buffer: Vec<u8>,
    /// The queue pair whose stream had bytes last: the next bytes are mostly there too.
    recent: Option<Qpn>,
    /// Polls since all sockets were polled.
    quick_polls: u32,
}

impl Streams {
    pub(crate) fn new(sockets: Arc<Epoll>, extras: Arc<StreamExtras>) -> Streams {
        Streams {
            sockets,
            extras,
            polling: Mutex::default(),
            closing: ClosingStreams::default(),
            events: Mutex::default(),
            any_event: AtomicBool::new(false),
            crc: Crc32c::new(),
        }
    }

    /// When a poll is due although no socket is ready.
    pub(super) fn next_ns(&self) -> u64 {
        if self.any_event.load(Ordering::SeqCst) { 0 } else { self.closing.next_ns() }
    }

    fn queue_event(&self, connection: u64, event: StreamEvent) {
        self.events.lock().push((connection, event));
        self.any_event.store(true, Ordering::SeqCst);
    }

    fn take_events(&self) -> Vec<(u64, StreamEvent)> {
        match self.any_event.swap(false, Ordering::SeqCst) {
            true => std::mem::take(&mut *self.events.lock()),
            false => Vec::new(),
        }
    }
}

impl Engine {
    /// The sockets of this context; `None` if its wire is not iWARP.
    pub(crate) fn sockets(&self) -> Option<&Epoll> {
        self.streams.as_ref().map(|streams| &*streams.sockets)
    }

    /// Capture and faults of the streams of this context; `None` if its wire is not iWARP.
    pub(crate) fn stream_extras(&self) -> Option<&Arc<StreamExtras>> {
        self.streams.as_ref().map(|streams| &streams.extras)
    }

    /// The token of the connection manager's socket with this number.
    pub(crate) const fn agent_token(number: u64) -> u64 {
        AGENT | number
    }

    /// Wakes the background thread if the connection manager has events to receive.
    fn wake_for_events(&self, streams: &Streams) {
        if streams.any_event.load(Ordering::SeqCst) {
            self.activity.wake();
        }
    }
}

impl QpCore {
    /// Its stream, if its wire is iWARP.
    pub(crate) fn stream(&self) -> Option<&StreamEnd> {
        self.stream.as_deref()
    }
}
