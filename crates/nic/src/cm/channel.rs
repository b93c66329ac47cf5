//! Event channels: a queue behind a real, pollable file descriptor.

use super::{CmEvent, CmId};
use crate::error::Error;
use ferroce_os::eventfd::EventFd;
use ferroce_os::lock::Mutex;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Numbers events, so that each id knows its own: a program that ends ten thousand connections has ten thousand events
/// waiting, and must not look at all of them for each.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Events by their numbers, the first one first.
type Waiting = BTreeMap<u64, CmEvent>;

/// The part that ids hold. Events hold ids, so the queue must be emptied when the program lets go of the channel.
pub(super) struct Queue {
    fd: EventFd,
    /// `None` once the program let go.
    waiting: Mutex<Option<Waiting>>,
}

impl Queue {
    /// Adds an event; gives it back if nobody will ever read it, to be dropped where that is allowed.
    pub(super) fn push(&self, event: CmEvent) -> Option<CmEvent> {
        let mut waiting = self.waiting.lock();
        let Some(queue) = waiting.as_mut() else { return Some(event) };
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        event.id.events.lock().push(number);
        queue.insert(number, event);
        self.fd.add();
        None
    }

    /// Takes out the events that `is_wanted` says.
    pub(super) fn take_out(&self, is_wanted: impl Fn(&CmEvent) -> bool) -> Vec<CmEvent> {
        let mut waiting = self.waiting.lock();
        let Some(queue) = waiting.as_mut() else { return Vec::new() };
        let wanted: Vec<u64> = queue.iter().filter(|(_, event)| is_wanted(event)).map(|(n, _)| *n).collect();
        wanted.into_iter().filter_map(|number| self.take_number(queue, number)).collect()
    }

    /// Takes out the events of one id.
    pub(super) fn take_of(&self, id: &CmId) -> Vec<CmEvent> {
        let mut waiting = self.waiting.lock();
        let Some(queue) = waiting.as_mut() else { return Vec::new() };
        let numbers = std::mem::take(&mut *id.events.lock());
        numbers.into_iter().filter_map(|number| self.take_number(queue, number)).collect()
    }

    fn take_number(&self, queue: &mut Waiting, number: u64) -> Option<CmEvent> {
        let event = queue.remove(&number)?;
        event.id.events.lock().retain(|n| *n != number);
        self.fd.try_take();
        Some(event)
    }

    /// The next event. It counts as handed out, and `seen` looks at it, before anybody can see the one behind it.
    fn pop(&self, seen: impl FnOnce(&CmEvent)) -> Option<CmEvent> {
        let mut waiting = self.waiting.lock();
        let (number, event) = waiting.as_mut()?.pop_first()?;
        event.id.events.lock().retain(|n| *n != number);
        let listener = event.listener.as_ref().and_then(Weak::upgrade);
        listener.as_deref().unwrap_or(&event.id).count_handed_out();
        seen(&event);
        drop(waiting);
        // It may be the last handle, whose end needs other locks.
        drop(listener);
        Some(event)
    }
}

/// An event channel. Events of the ids that were made with it wait here.
pub struct CmChannel {
    pub(super) queue: Arc<Queue>,
}

impl CmChannel {
    pub(crate) fn new() -> Result<CmChannel, Error> {
        let fd = EventFd::new().map_err(Error::system("creating an event channel"))?;
        Ok(CmChannel { queue: Arc::new(Queue { fd, waiting: Mutex::new(Some(Waiting::new())) }) })
    }

    /// Waits for an event. Blocks, unless the descriptor was set to non-blocking: then `WouldBlock` says there is none.
    pub fn wait(&self) -> std::io::Result<CmEvent> {
        self.wait_seeing(|_| {})
    }

    /// The same; `seen` looks at the event before another thread can get the one behind it. It must not call anything of
    /// the channel or of ids but [`CmId::set_cookie`].
    pub fn wait_seeing(&self, mut seen: impl FnMut(&CmEvent)) -> std::io::Result<CmEvent> {
        loop {
            self.queue.fd.take()?;
            if let Some(event) = self.queue.pop(&mut seen) {
                return Ok(event);
            }
        }
    }

    /// An event, if one waits.
    pub fn try_next(&self) -> Option<CmEvent> {
        let event = self.queue.pop(|_| {})?;
        self.queue.fd.try_take();
        Some(event)
    }

    /// Moves the events of `id` that wait elsewhere to here.
    pub(super) fn migrate(&self, from: &Arc<Queue>, id: &CmId) {
        if !Arc::ptr_eq(from, &self.queue) {
            for event in from.take_of(id) {
                drop(self.queue.push(event));
            }
        }
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // Dropped outside of the lock: the last handle of an id may be among them.
        let rest = self.queue.waiting.lock().take();
        drop(rest);
    }
}

/// Readable while an event waits.
impl AsFd for CmChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd.as_fd()
    }
}
