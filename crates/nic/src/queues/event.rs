//! Asynchronous events: a queue behind a real, pollable file descriptor.

use crate::error::Error;
use ferroce_os::eventfd::EventFile;
use ferroce_os::lock::Mutex;
use ferroce_proto::Qpn;
use ferroce_proto::verbs::EventKind;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

/// Most events that wait. Beyond that the oldest are dropped: the program does not read them.
const MAX_WAITING: usize = 4096;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventSource {
    /// The device.
    Device,
    /// Its port.
    Port(u8),
    /// A queue pair.
    Qp(Qpn),
    /// One handle of a queue pair that can have several: see [`crate::XrcDomain::open_qp`]. Each handle gets its own event.
    QpHandle(Qpn, u32),
    /// A completion queue, by its number.
    Cq(u32),
    /// A shared receive queue, by its number.
    Srq(u32),
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub kind: EventKind,
    /// The object that it happened to.
    pub source: EventSource,
}

/// The events of one handle on the NIC: those of the device, and of the objects made through that handle.
pub(crate) struct EventQueue {
    fd: EventFile,
    waiting: Mutex<VecDeque<AsyncEvent>>,
}

impl EventQueue {
    pub(crate) fn new() -> Result<Self, Error> {
        let fd = EventFile::new().map_err(Error::system("creating the event descriptor"))?;
        Ok(EventQueue { fd, waiting: Mutex::default() })
    }

    pub(crate) fn raise(&self, kind: EventKind, source: EventSource) {
        let mut waiting = self.waiting.lock();
        if waiting.len() == MAX_WAITING {
            waiting.pop_front();
            waiting.push_back(AsyncEvent { kind, source });
            return;
        }
        waiting.push_back(AsyncEvent { kind, source });
        self.fd.add();
    }

    /// The oldest event; blocks unless the descriptor was set to non-blocking.
    pub(crate) fn next(&self) -> std::io::Result<AsyncEvent> {
        loop {
            self.fd.take()?;
            if let Some(event) = self.waiting.lock().pop_front() {
                return Ok(event);
            }
        }
    }

    /// The oldest event, if one waits.
    pub(crate) fn try_next(&self) -> Option<AsyncEvent> {
        let mut waiting = self.waiting.lock();
        let event = waiting.pop_front()?;
        self.fd.try_take();
        Some(event)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The queues that get the events of the whole device.
#[derive(Default)]
pub(crate) struct EventHub {
    queues: Mutex<Vec<Weak<EventQueue>>>,
}

impl EventHub {
    /// Adds a queue that gets these events.
    pub(crate) fn subscribe(&self) -> Result<Arc<EventQueue>, Error> {
        let queue = Arc::new(EventQueue::new()?);
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// Adds an event to all of them.
    pub(crate) fn raise(&self, kind: EventKind, source: EventSource) {
        for queue in self.queues.lock().iter().filter_map(Weak::upgrade) {
            queue.raise(kind, source);
        }
    }
}
