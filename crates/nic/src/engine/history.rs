//! The last events of a queue pair, for diagnosis.
//!
//! Only rare events are kept (state changes, retries, NAKs, drops, failures), so a transfer without faults records nothing.

use ferroce_os::clock::now;
use ferroce_os::lock::Mutex;
use ferroce_proto::qp::HistoryEvent;
use ferroce_proto::verbs::WcStatus;
use std::collections::VecDeque;

/// Most events that are kept, and the most before the first query.
pub(crate) const HISTORY_LEN: usize = 100;
const INITIAL_LEN: usize = 16;

/// An event, and how often it happened in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The last time, on `CLOCK_MONOTONIC`.
    pub(crate) at_ns: u64,
    pub(crate) event: HistoryEvent,
    pub(crate) count: u32,
}

/// The last [`HISTORY_LEN`] events. Posting and polling allocate nothing, whatever the peer does: the buffer holds a few events from
/// the start, and all of them from the first query on.
pub(crate) struct History(Mutex<VecDeque<Entry>>);

impl Default for History {
    fn default() -> History {
        History(Mutex::new(VecDeque::with_capacity(INITIAL_LEN)))
    }
}

impl History {
    /// Adds an event. A repetition of the last event only increments its count.
    #[cold]
    #[inline(never)]
    pub(crate) fn record(&self, event: HistoryEvent, count: u32) {
        let at_ns = now().0;
        let mut entries = self.0.lock();
        match entries.back_mut() {
            Some(last) if last.event == event => {
                (last.at_ns, last.count) = (at_ns, last.count.saturating_add(count));
            }
            _ => {
                if entries.len() == entries.capacity().min(HISTORY_LEN) {
                    entries.pop_front();
                }
                entries.push_back(Entry { at_ns, event, count });
            }
        }
    }

    /// Adds a completion that did not succeed.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_failed(&self, status: WcStatus, wr_id: u64, vendor_err: u32) {
        let failed = HistoryEvent::Failed { status, wr_id, vendor_err };
        self.record(if status == WcStatus::WrFlushErr { HistoryEvent::Flushed } else { failed }, 1);
    }

    /// All of them, the oldest first.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let mut entries = self.0.lock();
        let more = HISTORY_LEN - entries.len();
        entries.reserve_exact(more);
        entries.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hundred_are_kept_and_repetitions_counted() {
        let history = History::default();
        for wr_id in 0..50 {
            history.record(HistoryEvent::Failed { status: WcStatus::GeneralErr, wr_id, vendor_err: 0 }, 1);
        }
        assert_eq!(history.entries().len(), INITIAL_LEN);
        history.0.lock().clear();
        history.record(HistoryEvent::Retransmitted, 3);
        history.record(HistoryEvent::Retransmitted, 4);
        history.record(HistoryEvent::Timeout, 1);
        let counts = |history: &History| history.entries().iter().map(|e| e.count).collect::<Vec<_>>();
        assert_eq!(counts(&history), [7, 1]);
        for wr_id in 0..150 {
            history.record(HistoryEvent::Failed { status: WcStatus::GeneralErr, wr_id, vendor_err: 0 }, 1);
        }
        let entries = history.entries();
        assert_eq!(entries.len(), HISTORY_LEN);
        assert!(matches!(entries[0].event, HistoryEvent::Failed { wr_id: 50, .. }));
        assert!(entries.is_sorted_by_key(|entry| entry.at_ns));
    }
}
