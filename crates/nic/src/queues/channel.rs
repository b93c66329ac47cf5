//! Completion channels: a file descriptor that becomes readable when an armed CQ gets a completion.

use super::cq::CqCore;
use crate::error::Error;
use ferroce_os::eventfd::EventFile;
use ferroce_os::lock::Mutex;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A completion channel. Several CQs can share one.
pub struct CompletionChannel {
    fd: EventFile,
    fired: Mutex<VecDeque<Weak<CqCore>>>,
}

impl CompletionChannel {
    pub(crate) fn new() -> Result<Self, Error> {
        let fd = EventFile::new().map_err(Error::system("creating a completion channel"))?;
        Ok(CompletionChannel { fd, fired: Mutex::default() })
    }

    pub(crate) fn fire(&self, cq: Weak<CqCore>) {
        self.fired.lock().push_back(cq);
        self.fd.add();
    }

    /// Waits for an event and returns the number of its CQ ([`crate::Cq::id`]) and the cookie of that CQ. If the descriptor
    /// was set to non-blocking and there is no event, returns `WouldBlock`. A signal ends the wait with `Interrupted`.
    pub fn wait(&self) -> std::io::Result<(u32, u64)> {
        loop {
            self.fd.take()?;
            if let Some(found) = self.pop_alive() {
                return Ok(found);
            }
        }
    }

    /// Takes an event if one is there.
    pub fn try_next(&self) -> Option<(u32, u64)> {
        while self.fd.try_take() {
            if let Some(found) = self.pop_alive() {
                return Some(found);
            }
        }
        None
    }

    /// Sleeps until there is an event, for at most `most`.
    pub(crate) fn sleep(&self, most: Duration) {
        self.fd.sleep(most);
    }

    /// Whether an event of this CQ was not taken yet.
    pub(crate) fn has_event_of(&self, cq: u32) -> bool {
        self.fired.lock().iter().filter_map(Weak::upgrade).any(|fired| fired.id == cq)
    }

    fn pop_alive(&self) -> Option<(u32, u64)> {
        let cq: Arc<CqCore> = self.fired.lock().pop_front()?.upgrade()?;
        Some((cq.id, cq.cookie))
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
