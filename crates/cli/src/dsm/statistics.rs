//! The counters of the processes, as a table.

use crate::sizes::{format_amount, format_duration};
use crate::table::{Align, Table};
use serde_json::Value;

/// A column: its heading, how its figures are printed, and the figure of a process.
type Column = (&'static str, fn(u64) -> String, fn(&Value) -> u64);

fn counter(process: &Value, name: &str) -> u64 {
    process["counters"][name].as_u64().unwrap_or(0)
}

/// Time that a process waited, by reason.
pub(super) const WAITS: [(&str, &str); 3] =
    [("page faults", "fault_ns"), ("locks", "lock_wait_ns"), ("barriers", "barrier_wait_ns")];

/// Time that the program itself ran.
pub(super) fn computing_ns(process: &Value) -> u64 {
    let waited: u64 = WAITS.iter().map(|(_, name)| counter(process, name)).sum();
    process["took_ns"].as_u64().unwrap_or(0).saturating_sub(waited)
}

/// The columns, in order.
const COLUMNS: [Column; 15] = [
    ("read\nfaults", count, |p| counter(p, "read_faults")),
    ("write\nfaults", count, |p| counter(p, "write_faults")),
    ("pages\nfetched", count, |p| counter(p, "fetches")),
    ("pre-\nfetched", count, |p| counter(p, "prefetches")),
    ("bytes\nfetched", format_amount, |p| counter(p, "fetched_bytes")),
    ("diffs", count, |p| counter(p, "diffs")),
    ("bytes\nof diffs", format_amount, |p| counter(p, "diff_bytes")),
    ("messages", count, |p| counter(p, "messages")),
    ("locks", count, |p| counter(p, "locks")),
    ("barriers", count, |p| counter(p, "barriers")),
    ("wait for\nfaults", format_duration, |p| counter(p, "fault_ns")),
    ("wait for\nlocks", format_duration, |p| counter(p, "lock_wait_ns")),
    ("wait for\nbarriers", format_duration, |p| counter(p, "barrier_wait_ns")),
    ("own\nwork", format_duration, computing_ns),
    ("time", format_duration, |p| p["took_ns"].as_u64().unwrap_or(0)),
];

fn count(number: u64) -> String {
    number.to_string()
}

/// The headings, a row for each process, and the total.
pub(super) fn rows(records: &[Value]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let headings = std::iter::once("process").chain(COLUMNS.iter().map(|(heading, ..)| *heading));
    let row = |name: String, processes: &[Value]| {
        let cell = |(_, show, figure): &Column| show(processes.iter().map(figure).sum());
        std::iter::once(name).chain(COLUMNS.iter().map(cell)).collect()
    };
    let of_one = |process: &Value| row(process["rank"].to_string(), std::slice::from_ref(process));
    let mut rows: Vec<Vec<String>> = records.iter().map(of_one).collect();
    if records.len() > 1 {
        rows.push(row("all".to_owned(), records));
    }
    (headings.collect(), rows)
}

/// The table for the terminal.
pub(crate) fn table(records: &[Value]) -> String {
    if records.is_empty() {
        return "ferroce dsm: no process reported its counters; each does so when it leaves the job (jia_exit, Job::leave).".to_owned();
    }
    let (headings, rows) = rows(records);
    let columns: Vec<(&str, Align)> = headings.into_iter().map(|heading| (heading, Align::Right)).collect();
    let mut table = Table::new(&columns);
    rows.into_iter().for_each(|row| table.line(row));
    let transport = records[0]["transport"].as_str().unwrap_or("?");
    let faults = match records[0]["faults"].as_str() {
        None | Some("none") => String::new(),
        Some(how) => format!(", page faults by {how}"),
    };
    format!("\nTransport: {transport}{faults}\n{}{}", sharing(records), table.render())
}

/// A line for each process that uses pages of co-located processes in place.
pub(super) fn sharing(records: &[Value]) -> String {
    let mut lines = String::new();
    for process in records {
        let shared = process["shared"].as_array().into_iter().flatten();
        let shared: Vec<String> =
            shared.map(|home| format!("{} pages with process {}", home[1], home[0])).collect();
        if !shared.is_empty() {
            lines += &format!("Process {} shares {}.\n", process["rank"], shared.join(", "));
        }
    }
    lines
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// The records of two made-up processes.
    pub(in crate::dsm) fn examples() -> Vec<Value> {
        let process = |rank: u64| {
            json!({
                "rank": rank, "transport": "rdma", "faults": "SIGSEGV", "began_unix_ns": 1_000 + rank, "took_ns": 5_000_000,
                "shared": if rank == 0 { json!([[1, 40], [2, 7]]) } else { json!([]) },
                "counters": {"read_faults": 3 + rank, "fetched_bytes": 20_480, "barrier_wait_ns": 2_000_000},
                "spans": [["barrier", 1_000_000, 2_000_000], ["<x>", 4_000_000, 10_000]],
                "pages": [[0, 4, 1], [7, 1, 0]],
            })
        };
        vec![process(0), process(1)]
    }

    #[test]
    fn the_table_adds_up() {
        let text = table(&examples());
        let all = text.lines().last().expect("a last line");
        assert!(all.contains("all") && all.contains("40.0 KiB") && all.contains("10.0 ms"), "{text}");
        assert!(text.contains("Transport: rdma, page faults by SIGSEGV"));
        assert!(table(&[]).contains("jia_exit"));
        assert!(
            text.contains("\nProcess 0 shares 40 pages with process 1, 7 pages with process 2.\n"),
            "{text}"
        );
        assert!(!text.contains("Process 1 shares"));
    }
}
