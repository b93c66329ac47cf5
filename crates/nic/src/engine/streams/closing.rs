//! Streams that end after their queue pair.
//!
//! A socket that is closed with unread bytes resets the connection, and the reset can destroy what the peer has not read yet: a Terminate, a
//! refusal, the last message. So the sending half is closed first, and the rest of the stream is read and ignored until the peer closes its
//! half, for two seconds at most. A Terminate that the stream has not taken gets five seconds.

use super::end::Unsent;
use super::{CLOSING, StreamEvent, Streams};
use crate::engine::Engine;
use crate::link::{Closing, Segmenting, StreamSocket};
use ferroce_os::epoll::Interest;
use ferroce_os::lock::{Mutex, lock_within};
use ferroce_proto::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long the peer may take to close its half.
const PATIENCE_NS: u64 = 2_000_000_000;
/// The same if the peer must read first, so that a Terminate can be sent.
const UNSENT_PATIENCE_NS: u64 = 5_000_000_000;
/// Most streams that never had a queue pair: refused requests. One more closes the oldest immediately.
const MAX_REFUSED: usize = 64;
/// How long the counters wait: at the exit of the process the lock may belong to a thread that no longer runs.
const COUNT_PATIENCE: Duration = Duration::from_millis(100);
/// Reads of one stream in one poll.
const READS: u32 = 4;

pub(super) struct ClosingStream {
    socket: StreamSocket,
    unsent: Unsent,
    until: Time,
    /// The connection manager's number of the connection, if the end is reported to it.
    connection: Option<u64>,
}

impl ClosingStream {
    /// Whether the peer does not have everything.
    pub(super) fn is_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.socket.unacknowledged() > 0
    }

    /// Sends the unsent bytes, and reads. Returns whether the stream has ended.
    fn advance(&mut self, buffer: &mut [u8]) -> bool {
        let was_unsent = !self.unsent.is_empty();
        match self.unsent.flush(&self.socket, Segmenting::Push) {
            Ok(true) if was_unsent => self.socket.close(Closing::AfterData),
            Ok(_) => {}
            Err(_) => return true,
        }
        for _ in 0..READS {
            match self.socket.receive(buffer) {
                Ok(None) => return false,
                Ok(Some(0)) | Err(_) => return true,
                Ok(Some(_)) => {}
            }
        }
        false
    }
}

/// The streams that are closing, by number; the oldest has the lowest.
#[derive(Default)]
pub(super) struct ClosingStreams {
    streams: Mutex<Numbered>,
    next_ns: AtomicU64,
}

#[derive(Default)]
struct Numbered {
    last: u64,
    streams: BTreeMap<u64, ClosingStream>,
    /// When the time of each is over.
    ends: BTreeSet<(Time, u64)>,
    /// Those that no connection waits for.
    refused: BTreeSet<u64>,
}

impl ClosingStreams {
    pub(super) fn next_ns(&self) -> u64 {
        match self.next_ns.load(Ordering::SeqCst) {
            0 => u64::MAX,
            at => at,
        }
    }

    fn refused(&self) -> Option<usize> {
        Some(lock_within(&self.streams, COUNT_PATIENCE)?.refused.len())
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.streams.lock().streams.keys().copied().collect()
    }

    pub(super) fn any(&self, is_it: impl Fn(&ClosingStream) -> bool) -> bool {
        self.streams.lock().streams.values().any(is_it)
    }

    fn set_next(&self, numbered: &Numbered) {
        let first = numbered.ends.first().map_or(0, |(until, _)| until.0);
        self.next_ns.store(first, Ordering::SeqCst);
    }
}

impl Engine {
    /// Closes a stream after the data that was sent. The end is reported for `connection`.
    pub(super) fn close_stream(
        &self,
        streams: &Streams,
        socket: StreamSocket,
        unsent: Unsent,
        connection: Option<u64>,
        now: Time,
    ) {
        let interest = if unsent.is_empty() { Interest::Read } else { Interest::ReadWrite };
        if unsent.is_empty() {
            socket.close(Closing::AfterData);
        }
        let mut numbered = streams.closing.streams.lock();
        numbered.last += 1;
        let number = numbered.last;
        if streams.sockets.watch(socket.as_fd(), interest, CLOSING | number).is_err() {
            drop(numbered);
            streams.sockets.remove(socket.as_fd());
            connection.into_iter().for_each(|connection| streams.queue_event(connection, StreamEvent::Ended));
            return;
        }
        if connection.is_none() {
            if numbered.refused.len() >= MAX_REFUSED
                && let Some(&oldest) = numbered.refused.first()
            {
                Self::end_closing(streams, &mut numbered, oldest);
            }
            numbered.refused.insert(number);
        }
        let until = now + if unsent.is_empty() { PATIENCE_NS } else { UNSENT_PATIENCE_NS };
        numbered.ends.insert((until, number));
        numbered.streams.insert(number, ClosingStream { socket, unsent, until, connection });
        streams.closing.set_next(&numbered);
        drop(numbered);
        self.activity.wake_before(until.0);
    }

    /// Closes a socket of the connection manager after the data that was sent.
    pub(crate) fn close_socket(&self, socket: StreamSocket, now: Time) {
        if let Some(streams) = &self.streams {
            self.close_stream(streams, socket, Unsent::default(), None, now);
        }
    }

    /// Sockets of the connection manager that are closing.
    pub(crate) fn refused_now(&self) -> u64 {
        self.streams.as_ref().and_then(|streams| streams.closing.refused()).unwrap_or(0) as u64
    }

    /// Serves a stream that is closing.
    pub(super) fn serve_closing(&self, streams: &Streams, number: u64, buffer: &mut [u8]) {
        let mut numbered = streams.closing.streams.lock();
        let Some(stream) = numbered.streams.get_mut(&number) else { return };
        let was_unsent = !stream.unsent.is_empty();
        if stream.advance(buffer) {
            Self::end_closing(streams, &mut numbered, number);
        } else if was_unsent && stream.unsent.is_empty() {
            // If that fails, the stream is served more often than necessary until its time is over.
            let _ = streams.sockets.watch(stream.socket.as_fd(), Interest::Read, CLOSING | number);
        }
    }

    /// Ends the streams whose time is over.
    pub(super) fn expire_closing(&self, streams: &Streams, now: Time) {
        if streams.closing.next_ns() > now.0 {
            return;
        }
        let mut numbered = streams.closing.streams.lock();
        while let Some(&(until, number)) = numbered.ends.first()
            && until <= now
        {
            Self::end_closing(streams, &mut numbered, number);
        }
    }

    fn end_closing(streams: &Streams, numbered: &mut Numbered, number: u64) {
        if let Some(stream) = numbered.streams.remove(&number) {
            numbered.refused.remove(&number);
            numbered.ends.remove(&(stream.until, number));
            streams.sockets.remove(stream.socket.as_fd());
            stream
                .connection
                .into_iter()
                .for_each(|connection| streams.queue_event(connection, StreamEvent::Ended));
        }
        streams.closing.set_next(numbered);
    }
}
