//! Requests to a NIC: a page of its queue pairs, and optionally the history of one queue pair.
//!
//! The NIC answers as soon as it accepts a connection, so the request must already be readable then. It is the abstract name to which the
//! client binds its socket before it connects. An unnamed socket requests the first page. NICs of older versions ignore the name.

use std::sync::atomic::{AtomicU32, Ordering};

/// The prefix of the names of client sockets.
const PREFIX: &str = "ferroce-ask";

/// A request to one NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Question {
    /// Only queue pairs with a larger number are listed.
    pub(super) after: u32,
    /// The queue pair whose history is requested; zero for none.
    pub(super) history_of: u32,
}

impl Question {
    /// The abstract name of a socket with this request; `None` for the default request, which needs no name.
    pub(super) fn name(self) -> Option<String> {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let Question { after, history_of } = self;
        // The name must be unique in the network namespace. Process IDs are not, because several PID namespaces may share it.
        let (random, count) = (ferroce_os::random::number::<u64>(), ASKED.fetch_add(1, Ordering::Relaxed));
        (self != Question::default()).then(|| format!("{PREFIX}/{random:x}/{count}/{after:x}/{history_of:x}"))
    }

    /// The request of a socket with this name; the default request if the name has another format.
    pub(super) fn of_name(name: &[u8]) -> Question {
        let read = || {
            let mut parts = std::str::from_utf8(name).ok()?.split('/');
            let (prefix, _random, _count) = (parts.next()?, parts.next()?, parts.next()?);
            let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
            let question = Question { after: number()?, history_of: number()? };
            (prefix == PREFIX && parts.next().is_none()).then_some(question)
        };
        read().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_survive_their_name() {
        assert_eq!(Question::default().name(), None);
        let question = Question { after: 0x7f_ffff, history_of: 0x10_0001 };
        let (name, next) = (question.name().unwrap(), question.name().unwrap());
        // The counts of two processes are the same.
        let random = |name: &str| name.split('/').nth(1).map(str::to_owned);
        assert_ne!(random(&name), random(&next));
        assert!(name.len() < 100);
        assert_eq!(Question::of_name(name.as_bytes()), question);
        for name in [
            "",
            "ferroce-ask",
            "ferroce-ask/1/2/3",
            "ferroce-ask/1/2/3/x",
            "other/1/2/3/4",
            "ferroce-ask/1/2/3/4/5",
        ] {
            assert_eq!(Question::of_name(name.as_bytes()), Question::default(), "{name}");
        }
        assert_eq!(Question::of_name(&[0xff, 0]), Question::default());
    }
}
