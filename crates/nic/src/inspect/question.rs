//! What is asked of a NIC beside its counters: a page of its queue pairs, the history of one.
//!
//! The NIC answers as soon as it accepts, so the question must be there by then. It is the abstract name that the asking socket is bound to
//! before it connects. A NIC of an older version ignores the name, and an unnamed socket asks for the first page.

use std::sync::atomic::{AtomicU32, Ordering};

/// How the names of asking sockets begin.
const PREFIX: &str = "ferroce-ask";

/// A question to one NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Question {
    /// Only queue pairs with a larger number are listed.
    pub(super) after: u32,
    /// The queue pair whose history is wanted; zero for none.
    pub(super) history_of: u32,
}

impl Question {
    /// The abstract name of a socket that asks it; `None` for the default question, which needs none.
    pub(super) fn name(self) -> Option<String> {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let Question { after, history_of } = self;
        // The process ID and a count make it unique in the network namespace.
        let (pid, count) = (std::process::id(), ASKED.fetch_add(1, Ordering::Relaxed));
        (self != Question::default()).then(|| format!("{PREFIX}/{pid}/{count}/{after:x}/{history_of:x}"))
    }

    /// The question of a socket with this name; the default question if it is none of ours.
    pub(super) fn of_name(name: &[u8]) -> Question {
        let read = || {
            let mut parts = std::str::from_utf8(name).ok()?.split('/');
            let (prefix, _pid, _count) = (parts.next()?, parts.next()?, parts.next()?);
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
        assert_ne!(name, next);
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
