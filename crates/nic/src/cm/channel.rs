//! Event channels: a queue behind a real, pollable file descriptor.

use super::{CmEvent, CmId};
use crate::error::Error;
use ferroce_os::eventfd::EventFile;
use ferroce_os::lock::Mutex;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The number of the next event. Each id stores the numbers of its events. Otherwise a program that ends ten thousand connections would
/// search ten thousand waiting events for each id.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Events by their numbers, the first one first.
type Waiting = BTreeMap<u64, CmEvent>;

/// The part that ids hold. Events hold ids, so the queue must be emptied when the program drops the channel.
pub(super) struct Queue {
    fd: EventFile,
    /// `None` once the program dropped the channel.
    waiting: Mutex<Option<Waiting>>,
}

impl Queue {
    /// Adds an event. Returns it if the channel was dropped; the caller then drops the event where this is allowed.
    pub(super) fn push(&self, event: CmEvent) -> Option<CmEvent> {
        let mut waiting = self.waiting.lock();
        let Some(queue) = waiting.as_mut() else { return Some(event) };
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        event.id.events.lock().push(number);
        queue.insert(number, event);
        self.fd.add();
        None
    }

    /// Removes and returns the events for which `is_wanted` holds.
    pub(super) fn take_out(&self, is_wanted: impl Fn(&CmEvent) -> bool) -> Vec<CmEvent> {
        let mut waiting = self.waiting.lock();
        let Some(queue) = waiting.as_mut() else { return Vec::new() };
        let wanted: Vec<u64> = queue.iter().filter(|(_, event)| is_wanted(event)).map(|(n, _)| *n).collect();
        wanted.into_iter().filter_map(|number| self.take_number(queue, number)).collect()
    }

    /// Removes and returns the events of one id.
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

    /// The next event. Counts it as handed out and passes it to `seen` before another thread can get the next one.
    fn pop(&self, seen: impl FnOnce(&CmEvent)) -> Option<CmEvent> {
        let mut waiting = self.waiting.lock();
        let (number, event) = waiting.as_mut()?.pop_first()?;
        event.id.events.lock().retain(|n| *n != number);
        let listener = event.listener.as_ref().and_then(Weak::upgrade);
        listener.as_deref().unwrap_or(&event.id).count_handed_out();
        seen(&event);
        drop(waiting);
        // May be the last handle, whose drop takes other locks.
        drop(listener);
        Some(event)
    }
}

/// An event channel: a queue of the events of its ids.
pub struct CmChannel {
    pub(super) queue: Arc<Queue>,
}

impl CmChannel {
    pub(crate) fn new() -> Result<CmChannel, Error> {
        let fd = EventFile::new().map_err(Error::system("creating an event channel"))?;
        Ok(CmChannel { queue: Arc::new(Queue { fd, waiting: Mutex::new(Some(Waiting::new())) }) })
    }

    /// Waits for an event. Blocks, unless the descriptor was set to non-blocking: then it returns `WouldBlock` if there is none.
    pub fn wait(&self) -> std::io::Result<CmEvent> {
        self.wait_seeing(|_| {})
    }

    /// The same, but passes the event to `seen` before another thread can get the next one. `seen` must not call the channel or ids, except
    /// [`CmId::set_cookie`].
    pub fn wait_seeing(&self, mut seen: impl FnMut(&CmEvent)) -> std::io::Result<CmEvent> {
        loop {
            self.queue.fd.take()?;
            if let Some(event) = self.queue.pop(&mut seen) {
                return Ok(event);
            }
        }
    }

    /// The next event, if one waits.
    pub fn try_next(&self) -> Option<CmEvent> {
        let event = self.queue.pop(|_| {})?;
        self.queue.fd.try_take();
        Some(event)
    }

    /// Moves the events of `id` that wait in `from` to this channel.
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
        // Drop the events outside of the lock: the last handle of an id may be among them.
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
