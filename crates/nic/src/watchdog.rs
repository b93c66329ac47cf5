//! `FERROCE_LOG=explain` also explains hangs: a peer that does not answer, completions that nobody polls.
//!
//! A chore of the background thread. Without that variable there is none.

use crate::engine::{Chore, Engine, QpCore};
use crate::queues::{CqCore, Unpolled};
use ferroce_os::log;
use ferroce_os::timerfd::Interval;
use ferroce_proto::Qpn;
use ferroce_proto::iwarp::StreamWaiting;
use ferroce_proto::qp::Waiting;
use std::collections::HashMap;
use std::hash::Hash;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Time between two samples.
const PERIOD: Duration = Duration::from_millis(500);
/// After how many samples without a change a request, or a completion, counts as stalled. A program may leave its completions for a while.
const STALLED_REQUEST: u32 = 2;
const STALLED_COMPLETION: u32 = 4;

/// A value that stays the same from sample to sample.
struct Watched<T> {
    first: T,
    samples: u32,
}

/// Finds queue pairs and completion queues in which nothing changes.
pub(crate) struct Watchdog {
    interval: Interval,
    engine: Arc<Engine>,
    requests: HashMap<Qpn, Watched<Waiting>>,
    streams: HashMap<Qpn, Watched<StreamWaiting>>,
    completions: HashMap<u32, Watched<Unpolled>>,
}

impl Watchdog {
    /// One for this device, if explanations are requested.
    pub(crate) fn of(engine: &Arc<Engine>) -> Option<Watchdog> {
        let interval = log::explains().then(|| Interval::new(PERIOD).ok()).flatten()?;
        let engine = engine.clone();
        let (requests, streams, completions) = Default::default();
        Some(Watchdog { interval, engine, requests, streams, completions })
    }

    fn sample_requests(&mut self, qps: &[Arc<QpCore>]) {
        // A queue pair whose lock is held is not stalled, and the holder may copy for long.
        let waiting = qps.iter().filter_map(|qp| Some((qp.qpn, qp.machine.try_lock()?.waiting()?)));
        watch(&mut self.requests, waiting, Waiting::is_stalled_since, STALLED_REQUEST, |first, now| {
            log::stall(format_args!("{}", now.why(first)));
        });
    }

    fn sample_streams(&mut self, qps: &[Arc<QpCore>]) {
        let streams = qps.iter().filter_map(|qp| Some((qp.qpn, qp.stream()?)));
        let waiting = streams.filter_map(|(qpn, stream)| Some((qpn, stream.machine.try_lock()?.waiting()?)));
        watch(&mut self.streams, waiting, StreamWaiting::is_stalled_since, STALLED_REQUEST, |_, now| {
            log::stall(format_args!("{now}"))
        });
    }

    fn sample_completions(&mut self, qps: &[Arc<QpCore>]) {
        let cqs = qps.iter().flat_map(|qp| [&qp.send_cq, &qp.recv_cq]).map(|cq| (cq.id, cq));
        let cqs: HashMap<u32, &Arc<CqCore>> = cqs.collect();
        let unpolled = cqs.into_iter().filter_map(|(id, cq)| Some((id, cq.unpolled()?)));
        let max_wait = PERIOD * STALLED_COMPLETION;
        watch(&mut self.completions, unpolled, Unpolled::is_same, STALLED_COMPLETION, |_, now| {
            log::stall(format_args!(
                "nobody has polled {now} for {} s: {}",
                max_wait.as_secs(),
                now.advice()
            ));
        });
    }
}

/// Compares the current samples with the previous ones. Calls `report` once for each that stays the same `limit` times.
fn watch<K: Eq + Hash, T>(
    watched: &mut HashMap<K, Watched<T>>,
    now: impl Iterator<Item = (K, T)>,
    is_same: impl Fn(&T, &T) -> bool,
    limit: u32,
    mut report: impl FnMut(&T, &T),
) {
    let mut before = std::mem::take(watched);
    for (key, value) in now {
        let same = before.remove(&key).filter(|old| is_same(&value, &old.first));
        let Some(old) = same else {
            watched.insert(key, Watched { first: value, samples: 0 });
            continue;
        };
        let samples = old.samples.saturating_add(1);
        if samples == limit {
            report(&old.first, &value);
        }
        watched.insert(key, Watched { first: old.first, samples });
    }
}

impl Chore for Watchdog {
    fn descriptor(&self) -> RawFd {
        self.interval.as_raw_fd()
    }

    fn attend(&mut self) {
        self.interval.take();
        let contexts = self.engine.device.contexts();
        let qps: Vec<_> = contexts.iter().flat_map(|context| context.qps.all()).collect();
        self.sample_requests(&qps);
        self.sample_streams(&qps);
        self.sample_completions(&qps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_the_same_is_reported_once() {
        let (mut watched, mut reported) = (HashMap::new(), Vec::new());
        for values in [[1, 5], [2, 5], [3, 5], [3, 5], [3, 5], [3, 6]] {
            let now = values.into_iter().enumerate();
            watch(&mut watched, now, |a, b| a == b, 2, |_, now| reported.push(*now));
        }
        assert_eq!(reported, [5, 3]);
        watch(&mut watched, std::iter::empty(), |a: &i32, b| a == b, 2, |_, _| {});
        assert!(watched.is_empty(), "what is gone is forgotten");
    }
}
