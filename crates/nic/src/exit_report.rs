//! `FERROCE_REPORT`: the counters of a NIC, written to a file when it closes.
//!
//! `ferroce run --explain` sums these up. The file is created when the NIC is opened, so an empty file means that the process ended
//! before it could write.

use crate::counters::ReportPlan;
use crate::engine::{Engine, QpPage};
use crate::quota::Quotas;
use ferroce_os::log;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Creates the empty file of the report. A folder that cannot be written is not an error.
pub(crate) fn announce(engine: &Engine, quotas: &Quotas) {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    let folder = ferroce_os::env::var_os("FERROCE_REPORT").filter(|folder| !folder.is_empty());
    let Some(folder) = folder.map(PathBuf::from) else { return };
    // A process may open the device again and again.
    let number = OPENED.fetch_add(1, Ordering::Relaxed);
    let file = folder.join(format!("{}-{number}.json", std::process::id()));
    let _ = std::fs::write(&file, "");
    let _ = engine.device.counters.report.set(ReportPlan { file, objects: quotas.counts() });
}

/// Writes the report.
pub(crate) fn write(engine: &Engine) {
    let Some(ReportPlan { file, objects }) = engine.device.counters.report.get() else { return };
    let counters = engine.report(QpPage::ALL).counters;
    let live: u64 = counters.queue_pairs.iter().map(|qp| qp.retransmitted).sum();
    let mut live_objects: BTreeMap<_, _> =
        objects.iter().map(|(what, count)| (*what, count.load(Ordering::Relaxed) as usize)).collect();
    live_objects.insert("queue pairs", counters.queue_pairs.len());
    live_objects.insert("memory regions and windows", engine.device.regions.count().unwrap_or(0));
    live_objects.retain(|_, count| *count > 0);
    let command = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let report = json!({
        "pid": counters.pid,
        "command": command.trim_end(),
        "completions": counters.completions,
        "failed_completions": counters.failed_completions,
        "flushed_completions": counters.flushed_completions,
        "retransmitted": live + engine.device.counters.retransmitted.load(Ordering::Relaxed),
        "drops": counters.drops,
        "link": counters.link,
        "live_objects": live_objects,
        "unpolled_completions": engine.unpolled_completions(),
        // Of the process, so only in the report of the NIC that closes first.
        "unprinted_lines": log::take_more(),
    });
    let _ = std::fs::write(file, report.to_string());
}
