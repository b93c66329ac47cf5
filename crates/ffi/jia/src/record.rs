//! What `ferroce dsm run --stat` shows: the counters of this process, and when it waited for what.
//!
//! One line of JSON on standard error at the end, behind a mark that no program prints; the launcher takes it out again.
//! So it arrives from other machines, too. Nothing is recorded unless the launcher asks.

use crate::clock;
use ferroce_dsm::Job;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::ffi::c_uint;
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Set by the launcher.
const VARIABLE: &str = "FERROCE_DSM_STAT";
/// Begins the line. The launcher knows it as well.
const MARK: &str = "\u{1e}ferroce-dsm-statistics ";
/// Waits that are kept one by one; more than that no picture shows.
const MOST_SPANS: usize = 4096;
/// Pages that are told; more than that no picture shows.
const MOST_PAGES: usize = 16384;
/// Shorter calls did not wait.
const SHORTEST_NS: u64 = 2_000;

static RECORD: OnceLock<Mutex<Record>> = OnceLock::new();

struct Record {
    began: Instant,
    began_unix_ns: u64,
    spans: Vec<Value>,
    left_out: u64,
    /// The counters when the part that counts began, and when it ended.
    first: Option<Map<String, Value>>,
    last: Option<Map<String, Value>>,
}

fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn counters(job: &Job) -> Map<String, Value> {
    match serde_json::to_value(job.statistics()) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Starts recording, if anybody wants to see it.
pub(crate) fn begin(job: &Job) {
    let wanted = std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty() && value != "0");
    if wanted {
        let began_unix_ns = nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        let record = Record {
            began: Instant::now(),
            began_unix_ns,
            spans: Vec::new(),
            left_out: 0,
            first: None,
            last: None,
        };
        let _ = RECORD.set(Mutex::new(record));
        job.count_pages(true);
    }
}

/// Runs a call, and notes how long it took.
pub(crate) fn timed<T>(call: &'static str, work: impl FnOnce() -> T) -> T {
    let Some(record) = RECORD.get() else { return work() };
    let started = Instant::now();
    let result = work();
    let took_ns = nanoseconds(started.elapsed());
    if took_ns >= SHORTEST_NS {
        let mut record = record.lock();
        if record.spans.len() < MOST_SPANS {
            let at_ns = nanoseconds(started.duration_since(record.began));
            record.spans.push(json!([call, at_ns, took_ns]));
        } else {
            record.left_out += 1;
        }
    }
    result
}

/// `[page, fetched, changed]` of each page that travelled; the busiest, where there are too many.
fn pages(job: &Job) -> Vec<[u64; 3]> {
    let mut pages = job.pages();
    if pages.len() > MOST_PAGES {
        pages.sort_by_key(|page| std::cmp::Reverse(page.fetched + page.changed));
        pages.truncate(MOST_PAGES);
    }
    pages.into_iter().map(|page| [page.page, page.fetched, page.changed]).collect()
}

/// Tells the launcher.
pub(crate) fn report(job: &Job) {
    let Some(record) = RECORD.get() else { return };
    let record = record.lock();
    let counters = difference(record.last.clone().unwrap_or_else(|| counters(job)), record.first.as_ref());
    let line = json!({
        "rank": job.rank(),
        "transport": job.transport().name(),
        "began_unix_ns": record.began_unix_ns,
        "took_ns": nanoseconds(record.began.elapsed()),
        "counters": counters,
        "spans": record.spans,
        "spans_left_out": record.left_out,
        "pages": pages(job),
    });
    // Nobody to tell if this fails.
    let _ = std::io::stderr().write_all(format!("{MARK}{line}\n").as_bytes());
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

fn since_start_us() -> c_uint {
    // Wraps after an hour and a bit, as a C program's number of this kind does.
    clock::start().elapsed().as_micros() as c_uint
}

/// The part that counts begins.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_startstat() -> c_uint {
    crate::process::run("jia_startstat", |job| {
        if let Some(record) = RECORD.get() {
            let mut record = record.lock();
            record.first = Some(counters(job));
            record.last = None;
        }
        Ok(since_start_us())
    })
}

/// The part that counts ends.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_stopstat() -> c_uint {
    crate::process::run("jia_stopstat", |job| {
        if let Some(record) = RECORD.get() {
            record.lock().last = Some(counters(job));
        }
        Ok(since_start_us())
    })
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
