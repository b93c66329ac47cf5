//! The page: comparisons, plots, the full table, how it was measured, and on what.

use super::plots;
use super::sections::{machine, method};
use crate::perf::suite::{HEADINGS, Headline, ROWS, Results, Row};
use crate::sizes::format_size;
use crate::svg::escape;
use std::fmt::Write;

/// The whole report.
pub(crate) fn html(results: &Results) -> String {
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_str("<title>ferroce perf</title>\n<style>\n");
    page.push_str(super::STYLE);
    page.push_str("</style>\n</head>\n<body>\n<h1>RDMA compared with sockets</h1>\n");
    let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(&subtitle(results)));
    headlines(&mut page, &results.headlines);
    figure(&mut page, "Latency", plots::latency(results).render(), LATENCY_CAPTION);
    figure(&mut page, "Bandwidth", plots::bandwidth(results).render(), BANDWIDTH_CAPTION);
    page.push_str("<h2>All figures</h2>\n");
    table(&mut page, results);
    method(&mut page, results);
    machine(&mut page, results);
    page.push_str("</body>\n</html>\n");
    page
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
        "Two processes on one machine over its loopback interface, all measured in one run of {:.0} s on {}.{quick}{faults}{debug}{caution}",
        results.duration_s, results.date
    )
}

fn headlines(page: &mut String, headlines: &[Headline]) {
    if headlines.is_empty() {
        return;
    }
    page.push_str("<ul class=\"headlines\">\n");
    for headline in headlines {
        let class = if headline.reached { "reached" } else { "missed" };
        let verdict = headline.verdict();
        let _ = writeln!(
            page,
            "<li><div class=\"ratio\">{:.2} ×</div>{}<br><span class=\"soft\">{} to {}</span><br>\
             <span class=\"{class}\">{} × wanted: {verdict}</span></li>",
            headline.ratio,
            escape(&headline.name),
            escape(&headline.measured),
            escape(&headline.against),
            escape(&headline.goal),
        );
    }
    page.push_str("</ul>\n");
}

fn figure(page: &mut String, title: &str, picture: Option<String>, caption: &str) {
    let _ = writeln!(page, "<h2>{title} against message size</h2>");
    match picture {
        Some(svg) => {
            let _ = writeln!(page, "<figure>\n{svg}<figcaption>{}</figcaption>\n</figure>", escape(caption));
        }
        None => page.push_str("<p class=\"failed\">Nothing was measured.</p>\n"),
    }
}

fn table(page: &mut String, results: &Results) {
    page.push_str("<div class=\"wide\"><table>\n<thead><tr><th>size</th><th></th>");
    for heading in HEADINGS.into_iter().chain(["samples", "messages"]) {
        let heading = heading.replace('\n', "<br>");
        let _ = write!(page, "<th scope=\"col\">{heading}</th>");
    }
    page.push_str("</tr></thead>\n");
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
    page.push_str("</table></div>\n<p class=\"soft\">* a whole round trip. × TCP: how many times as fast as TCP at that \
        size; a read or atomic is compared with request/reply.</p>\n");
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
