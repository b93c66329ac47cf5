//! The results as one table for the terminal.

use super::figures::{NOTHING, ROWS, Row, microseconds, rate, ratio};
use super::results::Results;
use crate::sizes::format_size;
use crate::table::{Align, Table};

/// The table, the comparisons that matter most, and how to read both.
pub(super) fn render(results: &Results) -> String {
    let mut text = vec![title(results), String::new(), table(results), String::new()];
    text.push("* a whole round trip; the other latencies are half a round trip of a ping-pong.".into());
    text.push("× TCP: how many times as fast as the TCP figure of that size; a read or atomic against request/reply.".into());
    text.push("RDMA and UDP sides poll, TCP sides block; p99 needs 100 samples, p99.9 needs 1000.".into());
    text.extend(results.caution());
    if !results.headlines.is_empty() {
        text.push(String::new());
    }
    for headline in &results.headlines {
        text.push(format!(
            "{}: {} to {} = {:.2}   ({}, {})",
            headline.name,
            headline.measured,
            headline.against,
            headline.ratio,
            headline.goal,
            if headline.reached { "reached" } else { "not reached" }
        ));
    }
    text.join("\n")
}

fn title(results: &Results) -> String {
    let machine = &results.machine;
    let faults = results.faults.as_ref().map_or(String::new(), |faults| format!(", faults {faults}"));
    format!(
        "ferroce {} on {}, {} cores, {}; loopback{faults}; {:.0} s",
        machine.ferroce, machine.cpu, machine.cores, machine.kernel, results.duration_s
    )
}

fn table(results: &Results) -> String {
    let mut table = Table::new(&[
        ("size", Align::Right),
        ("", Align::Left),
        ("median\nµs", Align::Right),
        ("p99\nµs", Align::Right),
        ("p99.9\nµs", Align::Right),
        ("× TCP\nlatency", Align::Right),
        ("bandwidth\nGB/s", Align::Right),
        ("rate\nM msg/s", Align::Right),
        ("× TCP\nrate", Align::Right),
    ]);
    for size in results.sizes() {
        let mut first = true;
        for row in &ROWS {
            let Some(mut cells) = line(results, row, size) else { continue };
            cells[0] = if first { format_size(size) } else { String::new() };
            first = false;
            table.line(cells);
        }
        table.gap();
    }
    table.render()
}

fn line(results: &Results, row: &Row, size: u64) -> Option<[String; 9]> {
    let latency_cell = results.cell(row.latency, size);
    let bandwidth_cell = row.bandwidth.and_then(|test| results.cell(test, size));
    latency_cell.or(bandwidth_cell)?;
    let latency = latency_cell.and_then(|cell| cell.latency.as_ref());
    let bandwidth = bandwidth_cell.and_then(|cell| cell.bandwidth.as_ref());
    let failed = |cell: Option<&super::Cell>| cell.is_some_and(|cell| cell.error.is_some());
    let median =
        if failed(latency_cell) { "failed".into() } else { microseconds(latency.map(|l| l.median_ns)) };
    let (gigabytes, messages) = match row.bandwidth {
        None => (String::new(), String::new()),
        Some(_) if failed(bandwidth_cell) => ("failed".into(), NOTHING.into()),
        Some(_) => {
            (rate(bandwidth.map(|b| b.gigabytes_per_s)), rate(bandwidth.map(|b| b.million_messages_per_s)))
        }
    };
    Some([
        String::new(),
        row.label.into(),
        median,
        microseconds(latency.and_then(|l| l.p99_ns)),
        microseconds(latency.and_then(|l| l.p999_ns)),
        ratio(results.speed_up(row.latency, size)),
        gigabytes,
        messages,
        ratio(row.bandwidth.and_then(|test| results.speed_up(test, size))),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::results::examples;
    use super::*;

    #[test]
    fn every_size_and_row_appears() {
        let text = render(&examples::results());
        for expected in ["4 KiB", "1 MiB", "TCP socket", "UDP, spinning", "RC atomic *", "reached"] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert_eq!(text.matches("RC atomic").count(), 1, "atomics have one size");
        assert!(text.lines().all(|line| line.chars().count() <= 130), "{text}");
    }

    #[test]
    fn failures_show() {
        let mut results = examples::results();
        for cell in &mut results.cells {
            (cell.latency, cell.bandwidth, cell.error) = (None, None, Some("broken".into()));
        }
        let text = render(&results);
        assert!(text.contains("failed"));
    }
}
