//! The page of `--stat=FILE`: where the time went, when each process waited, and which pages were transferred. One
//! file, without scripts or external resources.

use super::statistics::{self, WAITS, computing_ns};
use crate::sizes::format_duration;
use crate::svg::{self, escape, legend, rectangle, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: f64 = 980.0;
const LEFT: f64 = 60.0;
const LANE: f64 = 26.0;
/// The least width of a bar: a shorter time stays visible.
const THIN: f64 = 0.4;
/// Cells of the map of pages in a row.
const COLUMNS: u64 = 96;
/// Maximum number of visible cells; beyond it, a cell is several pages.
const MOST_CELLS: u64 = 96 * 40;

/// The kinds of calls a process waits in, each with its colour on the page.
const KINDS: [(&str, &str, &[&str]); 5] = [
    ("barrier", "#0067b1", &["barrier", "wait_all", "free"]),
    ("lock", "#c74a00", &["lock", "unlock"]),
    ("flag", "#b37400", &["wait_flag", "set_flag", "reset_flag"]),
    ("message", "#00805c", &["send", "recv", "get", "put"]),
    ("other", "#a1378b", &[]),
];

/// The whole page.
pub(crate) fn html(command: &str, records: &[Value]) -> String {
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_str("<title>ferroce dsm</title>\n<style>\n");
    page.push_str(crate::report::STYLE);
    page.push_str("</style>\n</head>\n<body>\n");
    let _ = writeln!(page, "<h1>{}</h1>", escape(command));
    let transport = records.first().and_then(|process| process["transport"].as_str()).unwrap_or("?");
    let _ =
        writeln!(page, "<p class=\"soft\">{} processes, transport {}.</p>", records.len(), escape(transport));
    let sharing = statistics::sharing(records);
    if !sharing.is_empty() {
        let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(sharing.trim_end()));
    }
    page.push_str("<h2>Where the time went</h2>\n");
    shares(&mut page, records);
    page.push_str("<h2>When each process waited</h2>\n");
    timeline(&mut page, records);
    page.push_str("<h2>Pages that travelled</h2>\n");
    heat_map(&mut page, records);
    page.push_str("<h2>All figures</h2>\n");
    table(&mut page, records);
    page.push_str("</body>\n</html>\n");
    page
}

fn begin_figure(page: &mut String, height: f64, description: &str) {
    page.push_str("<figure>");
    svg::begin(page, WIDTH, height, description);
}

/// One bar per process.
fn shares(page: &mut String, records: &[Value]) {
    const COLOURS: [&str; 4] = ["#5b6570", "#a1378b", "#c74a00", "#0067b1"];
    let height = LANE * records.len() as f64 + 34.0;
    begin_figure(page, height, "time of each process by use");
    let longest = records.iter().filter_map(|process| process["took_ns"].as_u64()).max().unwrap_or(1).max(1);
    for (lane, process) in records.iter().enumerate() {
        let y = LANE * lane as f64 + 4.0;
        text(page, "end", (LEFT - 10.0, y + 14.0), &process["rank"].to_string());
        let waits =
            WAITS.iter().map(|(name, counter)| (*name, process["counters"][counter].as_u64().unwrap_or(0)));
        let parts = std::iter::once(("own work", computing_ns(process))).chain(waits);
        let mut x = LEFT;
        for ((name, ns), colour) in parts.zip(COLOURS) {
            let width = (WIDTH - LEFT - 10.0) * ns as f64 / longest as f64;
            if ns > 0 {
                rectangle(
                    page,
                    colour,
                    (x, y),
                    (width.max(THIN), LANE - 8.0),
                    &format!("{name}: {}", format_duration(ns)),
                );
            }
            x += width;
        }
    }
    let names = std::iter::once("own work").chain(WAITS.iter().map(|(name, _)| *name));
    legend(page, (LEFT, height - 8.0), names.zip(COLOURS));
    page.push_str("</svg></figure>\n");
}

fn kind(call: &str) -> (&'static str, &'static str) {
    let found = KINDS.iter().find(|(_, _, calls)| calls.contains(&call)).or(KINDS.last());
    found.map_or(("other", "#a1378b"), |(name, colour, _)| (*name, *colour))
}

/// One lane per process, one rectangle per wait.
fn timeline(page: &mut String, records: &[Value]) {
    let began = |process: &Value| process["began_unix_ns"].as_u64().unwrap_or(0);
    let took = |process: &Value| process["took_ns"].as_u64().unwrap_or(0);
    let first = records.iter().map(began).min().unwrap_or(0);
    let last = records.iter().map(|process| began(process) + took(process)).max().unwrap_or(1);
    let scale = (WIDTH - LEFT - 10.0) / (last - first).max(1) as f64;
    let height = LANE * records.len() as f64 + 56.0;
    begin_figure(page, height, "waits of each process over time");
    let mut left_out = 0;
    for (lane, process) in records.iter().enumerate() {
        let y = LANE * lane as f64 + 4.0;
        let offset = began(process) - first;
        text(page, "end", (LEFT - 10.0, y + 14.0), &process["rank"].to_string());
        let x = LEFT + offset as f64 * scale;
        let size = (took(process) as f64 * scale, LANE - 8.0);
        let _ = writeln!(
            page,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#8a949e\" fill-opacity=\"0.25\"/>",
            size.0, size.1
        );
        for span in process["spans"].as_array().into_iter().flatten() {
            let (call, at, ns) = (span[0].as_str().unwrap_or("?"), span[1].as_u64(), span[2].as_u64());
            let (Some(at), Some(ns)) = (at, ns) else { continue };
            let words = format!("{call}: {} at {}", format_duration(ns), format_duration(offset + at));
            let x = LEFT + (offset + at) as f64 * scale;
            rectangle(page, kind(call).1, (x, y), ((ns as f64 * scale).max(THIN), LANE - 8.0), &words);
        }
        left_out += process["spans_left_out"].as_u64().unwrap_or(0);
    }
    let axis = height - 34.0;
    text(page, "", (LEFT, axis), "0");
    text(page, "end", (WIDTH - 10.0, axis), &format_duration(last - first));
    legend(page, (LEFT, height - 8.0), KINDS.iter().map(|(name, colour, _)| (*name, *colour)));
    page.push_str("</svg>");
    if left_out > 0 {
        let _ = write!(page, "<figcaption>{left_out} later waits were not kept.</figcaption>");
    }
    page.push_str("</figure>\n");
}

/// How often each page was transferred: fetched or changed, by all processes together.
fn heat_map(page: &mut String, records: &[Value]) {
    let entries = records.iter().flat_map(|process| process["pages"].as_array().into_iter().flatten());
    let numbers = |entry: &Value| Some([entry[0].as_u64()?, entry[1].as_u64()?, entry[2].as_u64()?]);
    let pages: Vec<[u64; 3]> = entries.filter_map(numbers).collect();
    let Some(last) = pages.iter().map(|[at, ..]| *at).max() else {
        page.push_str("<p>None: the processes share memory, or did not count.</p>\n");
        return;
    };
    let pages_per_cell = (last + 1).div_ceil(MOST_CELLS).max(1);
    let mut cells: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for [at, fetched, changed] in pages {
        let cell = cells.entry(at / pages_per_cell).or_default();
        *cell = (cell.0 + fetched, cell.1 + changed);
    }
    draw_cells(page, &cells, pages_per_cell);
}

fn draw_cells(page: &mut String, cells: &BTreeMap<u64, (u64, u64)>, pages_per_cell: u64) {
    let last = cells.last_key_value().map_or(0, |(&at, _)| at);
    let hottest = cells.values().map(|(a, b)| a + b).max().unwrap_or(1).max(1);
    let side = (WIDTH - LEFT) / COLUMNS as f64;
    begin_figure(page, side * (last / COLUMNS + 1) as f64 + 4.0, "how often each page travelled");
    for (&at, &(fetched, changed)) in cells {
        let place = (LEFT + (at % COLUMNS) as f64 * side, (at / COLUMNS) as f64 * side);
        // Logarithmic, so that one hot page does not leave all others white.
        let warmth = ((fetched + changed) as f64).ln_1p() / (hottest as f64).ln_1p();
        let colour = format!("hsl({:.0} 85% {:.0}%)", 50.0 - 50.0 * warmth, 88.0 - 45.0 * warmth);
        let first = at * pages_per_cell;
        let words = format!("page {first}: fetched {fetched} times, changed {changed} times");
        rectangle(page, &colour, place, (side - 0.6, side - 0.6), &words);
    }
    let of_each =
        if pages_per_cell > 1 { format!("Each cell is {pages_per_cell} pages. ") } else { String::new() };
    let _ = writeln!(
        page,
        "</svg><figcaption>Row by row from the start of the shared heap. {of_each}The darkest travelled {hottest} \
         times.</figcaption></figure>"
    );
}

fn table(page: &mut String, records: &[Value]) {
    let (headings, rows) = statistics::rows(records);
    page.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for heading in headings {
        let _ = write!(
            page,
            "<th scope=\"col\">{}</th>",
            heading.lines().map(escape).collect::<Vec<_>>().join("<br>")
        );
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        page.push_str("<tr>");
        row.iter().for_each(|cell| {
            let _ = write!(page, "<td>{}</td>", escape(cell));
        });
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::super::statistics::tests::examples;
    use super::*;

    #[test]
    fn the_page_stands_alone() {
        let page = html("./mm -n \"<8>\"", &examples());
        for outside in ["http:", "https:", "<script", "@import", "url(", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("&lt;8&gt;") && page.contains("&lt;x&gt;"));
        assert_eq!(page.matches("<svg").count(), 3);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.contains("fetched 8 times, changed 2 times"), "both processes add up");
        assert!(page.contains("Process 0 shares 40 pages with process 1"));
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    #[test]
    fn an_empty_page_is_valid() {
        assert!(html("x", &[]).contains("None:"));
    }
}
