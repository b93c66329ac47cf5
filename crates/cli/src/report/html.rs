//! The page: comparisons, plots, the full table, how it was measured, and on what.

use super::plots;
use super::sections::{machine, method};
use crate::page::{self, escape};
use crate::perf::suite::{HEADINGS, Headline, ROWS, Results, Row};
use crate::sizes::format_size;
use std::fmt::Write;

/// The whole report.
pub(crate) fn html(results: &Results) -> String {
    let mut page = page::begin("ferroce perf", "");
    page.push_str("<h1>RDMA compared with sockets</h1>\n");
    page::note(&mut page, &subtitle(results));
    headlines(&mut page, &results.headlines);
    page.push_str("<h2>Latency against message size</h2>\n");
    plots::latency(results).draw(&mut page, LATENCY_CAPTION);
    page.push_str("<h2>Bandwidth against message size</h2>\n");
    plots::bandwidth(results).draw(&mut page, BANDWIDTH_CAPTION);
    page.push_str("<h2>All figures</h2>\n");
    table(&mut page, results);
    method(&mut page, results);
    machine(&mut page, results);
    page::end(page)
}

const LATENCY_CAPTION: &str = "Median, lower is better. Ping-pongs (send, write, TCP, UDP) show half a round trip; \
    read, atomic and request/reply show a whole one. Point at a mark for the tail.";
const BANDWIDTH_CAPTION: &str = "Higher is better. One direction, one connection; RDMA keeps up to 128 messages or \
    16 MiB posted, TCP writes one message per call.";

fn subtitle(results: &Results) -> String {
    let faults =
        results.faults.as_ref().map_or(String::new(), |faults| format!(" Faults injected: {faults}."));
    let quick = if results.quick { " A quick run: rough figures." } else { "" };
    let debug =
        if results.machine.optimised { "" } else { " Built without optimisation: the figures do not count." };
    let caution = results.caution().map_or(String::new(), |caution| format!(" {caution}"));
    format!(
        "Two processes on one machine over its loopback interface, {}, all measured in one run of {:.0} s on {}.{quick}{faults}{debug}{caution}",
        results.wire_name(),
        results.duration_s,
        results.date
    )
}

fn headlines(page: &mut String, headlines: &[Headline]) {
    if headlines.is_empty() {
        return;
    }
    let card = |headline: &Headline| {
        let class = match (&headline.noise, headline.reached) {
            (Some(_), _) => "noisy",
            (None, true) => "reached",
            (None, false) => "missed",
        };
        let (better, verdict) = (headline.better, headline.verdict());
        let noise =
            headline.noise.iter().map(|why| format!("<br><span class=\"soft\">{}</span>", escape(why)));
        let below = format!(
            "{}<br><span class=\"soft\">{} to {}</span><br><span class=\"{class}\">goal {} ×, {better}: {verdict}</span>{}",
            escape(&headline.name),
            escape(&headline.measured),
            escape(&headline.against),
            escape(&headline.goal),
            noise.collect::<String>(),
        );
        (format!("{:.2} ×", headline.ratio), below)
    };
    page::headlines(page, headlines.iter().map(card));
}

fn table(page: &mut String, results: &Results) {
    let headings = ["size", ""].into_iter().chain(HEADINGS).chain(["samples", "messages"]);
    page::begin_table(page, "", "All figures", headings);
    for size in results.sizes() {
        let rows: Vec<String> = ROWS.iter().filter_map(|row| table_row(results, row, size)).collect();
        page.push_str("<tbody>\n");
        for (n, row) in rows.iter().enumerate() {
            page.push_str("<tr>");
            if n == 0 {
                let span = rows.len();
                let _ = write!(
                    page,
                    "<th class=\"size\" scope=\"rowgroup\" rowspan=\"{span}\">{}</th>",
                    format_size(size)
                );
            }
            let _ = writeln!(page, "{row}</tr>");
        }
        page.push_str("</tbody>\n");
    }
    page::end_table(page);
    page::note(
        page,
        "* a whole round trip. × TCP: how many times as fast as TCP at that size; a read or atomic is compared with request/reply.",
    );
}

fn table_row(results: &Results, row: &Row, size: u64) -> Option<String> {
    let failed = |error: &str| format!("<span class=\"failed\" title=\"{}\">failed</span>", escape(error));
    let figures = row.figures(results, size, failed)?;
    let samples = results.latency(row.latency, size).map(|latency| latency.samples);
    let bandwidth = row.bandwidth.and_then(|test| results.bandwidth(test, size));
    let counts = [samples, bandwidth.map(|bandwidth| bandwidth.messages)];
    let counts = counts.map(|count| count.map_or(String::new(), |count| count.to_string()));
    let mut html = format!("<th scope=\"row\">{}</th>", escape(row.label));
    for words in figures.into_iter().chain(counts) {
        let _ = write!(html, "<td>{words}</td>");
    }
    Some(html)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::suite::examples;
    use crate::wire::WireChoice;

    #[test]
    fn the_page_stands_alone() {
        let page = html(&examples::results());
        for outside in ["http:", "https:", "<script", "@import", "url(", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), 2);
        for (open, close) in [("<tr>", "</tr>"), ("<tbody>", "</tbody>"), ("<g", "</g>"), ("<td>", "</td>")] {
            assert_eq!(
                page.matches(open).count() - page.matches("<grid").count(),
                page.matches(close).count(),
                "{open}"
            );
        }
    }

    #[test]
    fn the_page_names_the_wire() {
        let page = html(&examples::results_over(WireChoice::Iwarp));
        for expected in ["iWARP over TCP", "TCP, spinning", "Not measured over iWARP: loss"] {
            assert!(page.contains(expected), "{expected}");
        }
        assert!(!page.contains("RoCE") && html(&examples::results()).contains("RoCEv2 packets over UDP"));
    }

    #[test]
    fn a_figure_that_is_too_noisy_is_neither_reached_nor_missed() {
        let mut results = examples::results();
        let headline = &mut results.headlines[0];
        (headline.reached, headline.noise) = (false, Some("the samples < differ".into()));
        let better = headline.better;
        let page = html(&results);
        let verdict = format!(
            " ×, {better}: too noisy to decide</span><br><span class=\"soft\">the samples &lt; differ</span>"
        );
        assert!(page.contains(&verdict), "{page}");
        assert_eq!(
            (page.matches("class=\"noisy\"").count(), page.matches("class=\"missed\"").count()),
            (1, 0)
        );
    }

    #[test]
    fn failures_and_strange_names_are_harmless() {
        let mut results = examples::results();
        results.machine.cpu = "<script>alert(1)</script>".into();
        for cell in &mut results.cells {
            (cell.latency, cell.bandwidth, cell.error) = (None, None, Some("a \"b\" <c>".into()));
        }
        let page = html(&results);
        assert!(!page.contains("<script") && page.contains("a &quot;b&quot; &lt;c&gt;"));
        assert!(page.contains("Nothing was measured"));
    }
}
