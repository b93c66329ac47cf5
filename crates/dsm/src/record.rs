//! The record for `ferroce dsm run --stat`: the counters of this process, and its waits with their times.
//!
//! The record is one line of JSON at the end of standard error, behind a mark that no program prints, so it arrives from
//! other hosts, too. The launcher removes it from the output. Nothing is recorded unless the launcher requests it.

use crate::heat::PageTraffic;
use crate::statistics::Statistics;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Set by the launcher.
const VARIABLE: &str = "FERROCE_DSM_STAT";
/// Begins the line; the launcher uses the same mark.
const MARK: &str = "\u{1e}ferroce-dsm-statistics ";
/// Maximum number of single waits in the record; the diagram shows no more.
const MAX_SPANS: usize = 4096;
/// Maximum number of pages in the record; the diagram shows no more.
const MAX_PAGES: usize = 16384;
/// Shorter calls did not wait.
const MIN_NS: u64 = 2_000;

/// The record of one process.
pub(crate) struct Record {
    began: Instant,
    began_unix_ns: u64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    spans: Vec<Value>,
    left_out: u64,
    /// The counters at the start and the end of the counted section.
    first: Option<Statistics>,
    last: Option<Statistics>,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn counters(statistics: &Statistics) -> Map<String, Value> {
    match serde_json::to_value(statistics) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

impl Record {
    /// Starts recording, if the launcher requests it.
    pub(crate) fn begin() -> Option<Record> {
        let wanted = ferroce_os::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty() && value != "0");
        wanted.then(|| Record {
            began: Instant::now(),
            began_unix_ns: nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            kept: Mutex::default(),
        })
    }

    /// Records the duration of a call that began then, and returns it.
    pub(crate) fn note(&self, call: &'static str, started: Instant) -> u64 {
        let took_ns = nanoseconds(started.elapsed());
        if took_ns < MIN_NS {
            return took_ns;
        }
        let mut kept = self.kept.lock();
        if kept.spans.len() < MAX_SPANS {
            let at_ns = nanoseconds(started.duration_since(self.began));
            kept.spans.push(json!([call, at_ns, took_ns]));
        } else {
            kept.left_out += 1;
        }
        took_ns
    }

    /// Starts the counted section.
    pub(crate) fn first(&self, statistics: Statistics) {
        let mut kept = self.kept.lock();
        (kept.first, kept.last) = (Some(statistics), None);
    }

    /// Ends the counted section.
    pub(crate) fn last(&self, statistics: Statistics) {
        self.kept.lock().last = Some(statistics);
    }

    /// Writes the record for the launcher. `who` has rank, transport and the like.
    pub(crate) fn report(&self, mut who: Value, now: &Statistics, pages: Vec<PageTraffic>) {
        let kept = self.kept.lock();
        let last = counters(kept.last.as_ref().unwrap_or(now));
        who["counters"] = difference(last, kept.first.as_ref().map(counters).as_ref()).into();
        who["began_unix_ns"] = self.began_unix_ns.into();
        who["took_ns"] = nanoseconds(self.began.elapsed()).into();
        who["spans"] = kept.spans.clone().into();
        who["spans_left_out"] = kept.left_out.into();
        who["pages"] = busiest(pages).into_iter().map(|page| json!(page)).collect();
        // There is nowhere to report a failure.
        let _ = std::io::stderr().write_all(format!("{MARK}{who}\n").as_bytes());
    }
}

/// `[page, fetched, changed]` of each transferred page; the busiest, if there are too many.
fn busiest(mut pages: Vec<PageTraffic>) -> Vec<[u64; 3]> {
    if pages.len() > MAX_PAGES {
        pages.sort_by_key(|page| std::cmp::Reverse(page.fetched + page.changed));
        pages.truncate(MAX_PAGES);
    }
    pages.into_iter().map(|page| [page.page, page.fetched, page.changed]).collect()
}

/// What was counted since `first`.
fn difference(mut last: Map<String, Value>, first: Option<&Map<String, Value>>) -> Map<String, Value> {
    for (name, value) in &mut last {
        let before = first.and_then(|first| first.get(name)).and_then(Value::as_u64);
        if let (Some(now), Some(before)) = (value.as_u64(), before) {
            *value = now.saturating_sub(before).into();
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_that_counts_is_counted() {
        let map = |value: Value| match value {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        let (first, last) = (map(json!({"locks": 3})), map(json!({"locks": 10, "diffs": 4})));
        assert_eq!(difference(last, Some(&first)), map(json!({"locks": 7, "diffs": 4})));
    }
}
