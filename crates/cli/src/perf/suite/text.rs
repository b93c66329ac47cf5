//! The results as one table for the terminal.

use super::figures::{HEADINGS, ROWS};
use super::results::Results;
use crate::sizes::format_size;
use crate::table::{Align, Table};

/// The table, the comparisons that matter most, and how to read both.
pub(super) fn render(results: &Results) -> String {
    let mut text = vec![title(results), String::new(), table(results), String::new()];
    text.push("* a whole round trip; the other latencies are half a round trip of a ping-pong.".into());
    text.push("× TCP: how many times as fast as the TCP figure of that size; a read or atomic against request/reply.".into());
    text.push("RDMA, UDP and \"spinning\" sides poll, other TCP sides block; p99 needs 100 samples, p99.9 needs 1000.".into());
    text.extend(results.omitted.iter().cloned());
    text.extend(results.caution());
    if !results.headlines.is_empty() {
        text.push(String::new());
    }
    for headline in &results.headlines {
        text.push(format!(
            "{}: {} to {} = {:.2}\n  goal {}, {}: {}",
            headline.name,
            headline.measured,
            headline.against,
            headline.ratio,
            headline.goal,
            headline.better,
            headline.verdict()
        ));
        text.extend(headline.noise.iter().map(|why| format!("  {why}")));
    }
    text.join("\n")
}

fn title(results: &Results) -> String {
    let machine = &results.machine;
    let faults = results.faults.as_ref().map_or(String::new(), |faults| format!(", faults {faults}"));
    format!(
        "ferroce {} on {}, {} cores, {}; {}; loopback{faults}; {:.0} s",
        machine.ferroce,
        machine.cpu,
        machine.cores,
        machine.kernel,
        results.wire_name(),
        results.duration_s
    )
}

fn table(results: &Results) -> String {
    let figures = HEADINGS.map(|heading| (heading, Align::Right));
    let mut table = Table::new(&[&[("size", Align::Right), ("", Align::Left)], &figures[..]].concat());
    for size in results.sizes() {
        let mut first = true;
        for row in &ROWS {
            let Some(figures) = row.figures(results, size, |_| "failed".into()) else { continue };
            let size = if std::mem::take(&mut first) { format_size(size) } else { String::new() };
            table.line([size, row.label.into()].into_iter().chain(figures));
        }
        table.gap();
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::super::results::examples;
    use super::*;
    use crate::wire::WireChoice;

    #[test]
    fn every_size_and_row_appears() {
        let text = render(&examples::results());
        for expected in ["4 KiB", "1 MiB", "TCP socket", "UDP, spinning", "RC atomic *", "reached"] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert_eq!(text.matches("RC atomic").count(), 1, "atomics have one size");
        assert!(!text.contains("Not measured"), "{text}");
        let iwarp = render(&examples::results_over(WireChoice::Iwarp));
        for expected in [
            "iWARP over TCP",
            "TCP, spinning",
            "RC atomic *",
            "over iWARP: loss, since",
            "UDP sockets, since",
        ] {
            assert!(iwarp.contains(expected), "{expected} in\n{iwarp}");
        }
        assert!(!iwarp.contains("UDP, spinning"), "{iwarp}");
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
