//! The page of `--stat=FILE`: where the time went, when each process waited, and which pages were transferred. One
//! file, without scripts or external resources.

use super::statistics::{self, WAITS, computing_ns};
use crate::page::{self, begin_figure, end_figure, escape};
use crate::sizes::format_duration;
use crate::svg::{legend, rectangle, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: f64 = 980.0;
const LEFT: f64 = 60.0;
const ROW_HEIGHT: f64 = 26.0;
/// The least width of a bar: a shorter time stays visible.
const MIN_BAR_WIDTH: f64 = 0.4;
/// Cells of the map of pages in a row.
const COLUMNS: u64 = 96;
/// Maximum number of visible cells; beyond it, a cell is several pages.
const MAX_CELLS: u64 = 96 * 40;

/// Rows of the table behind a picture.
const TABLE_ROWS: usize = 200;

/// The kinds of calls a process waits in, each with its colour on the page.
const KINDS: [(&str, &str, &[&str]); 5] = [
    ("barrier", "var(--c0)", &["barrier", "wait_all", "free"]),
    ("lock", "var(--c1)", &["lock", "unlock"]),
    ("flag", "var(--c4)", &["wait_flag", "set_flag", "reset_flag"]),
    ("message", "var(--c2)", &["send", "recv", "get", "put"]),
    ("other", "var(--c3)", &[]),
];

/// The whole page.
pub(crate) fn html(command: &str, records: &[Value]) -> String {
    let mut page = page::begin("ferroce dsm", "");
    let _ = writeln!(page, "<h1>{}</h1>", escape(command));
    let transport = records.first().and_then(|process| process["transport"].as_str()).unwrap_or("?");
    page::note(&mut page, &format!("{} processes, transport {transport}.", records.len()));
    let sharing = statistics::sharing(records);
    if !sharing.is_empty() {
        page::note(&mut page, sharing.trim_end());
    }
    page.push_str("<h2>Where the time went</h2>\n");
    shares(&mut page, records);
    page.push_str("<h2>When each process waited</h2>\n");
    timeline(&mut page, records);
    page.push_str("<h2>Transferred pages</h2>\n");
    heat_map(&mut page, records);
    page.push_str("<h2>All figures</h2>\n");
    let (headings, rows) = statistics::rows(records);
    page::table(&mut page, "All figures", headings, rows);
    page::end(page)
}

/// One bar per process.
fn shares(page: &mut String, records: &[Value]) {
    const COLOURS: [&str; 4] = ["var(--c5)", "var(--c3)", "var(--c1)", "var(--c0)"];
    let height = ROW_HEIGHT * records.len() as f64 + 34.0;
    begin_figure(page, "", (WIDTH, height), "time of each process by use");
    let longest = records.iter().filter_map(|process| process["took_ns"].as_u64()).max().unwrap_or(1).max(1);
    for (row, process) in records.iter().enumerate() {
        let y = ROW_HEIGHT * row as f64 + 4.0;
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
                    (width.max(MIN_BAR_WIDTH), ROW_HEIGHT - 8.0),
                    &format!("{name}: {}", format_duration(ns)),
                );
            }
            x += width;
        }
    }
    let names = std::iter::once("own work").chain(WAITS.iter().map(|(name, _)| *name));
    legend(page, (LEFT, height - 8.0), names.zip(COLOURS));
    end_figure(page, "The table at the end of the page has the figures.");
}

fn kind(call: &str) -> (&'static str, &'static str) {
    let found = KINDS.iter().find(|(_, _, calls)| calls.contains(&call)).or(KINDS.last());
    found.map_or(("other", "var(--c3)"), |(name, colour, _)| (*name, *colour))
}

/// One row per process, one rectangle per wait.
fn timeline(page: &mut String, records: &[Value]) {
    let began = |process: &Value| process["began_unix_ns"].as_u64().unwrap_or(0);
    let took = |process: &Value| process["took_ns"].as_u64().unwrap_or(0);
    let first = records.iter().map(began).min().unwrap_or(0);
    let last = records.iter().map(|process| began(process) + took(process)).max().unwrap_or(1);
    let scale = (WIDTH - LEFT - 10.0) / (last - first).max(1) as f64;
    let height = ROW_HEIGHT * records.len() as f64 + 56.0;
    begin_figure(page, "", (WIDTH, height), "waits of each process over time");
    let mut left_out = 0;
    for (row, process) in records.iter().enumerate() {
        let y = ROW_HEIGHT * row as f64 + 4.0;
        let offset = began(process) - first;
        text(page, "end", (LEFT - 10.0, y + 14.0), &process["rank"].to_string());
        let x = LEFT + offset as f64 * scale;
        let size = (took(process) as f64 * scale, ROW_HEIGHT - 8.0);
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
            rectangle(
                page,
                kind(call).1,
                (x, y),
                ((ns as f64 * scale).max(MIN_BAR_WIDTH), ROW_HEIGHT - 8.0),
                &words,
            );
        }
        left_out += process["spans_left_out"].as_u64().unwrap_or(0);
    }
    let axis = height - 34.0;
    text(page, "", (LEFT, axis), "0");
    text(page, "end", (WIDTH - 10.0, axis), &format_duration(last - first));
    legend(page, (LEFT, height - 8.0), KINDS.iter().map(|(name, colour, _)| (*name, *colour)));
    end_figure(
        page,
        &if left_out > 0 { format!("{left_out} later waits were not kept.") } else { String::new() },
    );
    longest_waits(page, records);
}

/// The waits as a table.
fn longest_waits(page: &mut String, records: &[Value]) {
    let wait = |rank: &Value, span: &Value| {
        Some((
            span[2].as_u64()?,
            span[1].as_u64()?,
            rank.to_string(),
            span[0].as_str().unwrap_or("?").to_owned(),
        ))
    };
    let of_process = |process: &Value| -> Vec<_> {
        process["spans"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|span| wait(&process["rank"], span))
            .collect()
    };
    let mut waits: Vec<(u64, u64, String, String)> = records.iter().flat_map(of_process).collect();
    waits.sort_by(|a, b| b.cmp(a));
    let rows = waits
        .iter()
        .take(TABLE_ROWS)
        .map(|(ns, at, rank, call)| [rank.clone(), call.clone(), format_duration(*at), format_duration(*ns)]);
    let summary = format!("The {} longest waits of {} as a table", waits.len().min(TABLE_ROWS), waits.len());
    page::details(page, &summary, |page| {
        page::table(page, "The longest waits", ["process", "call", "from its start", "duration"], rows);
    });
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
    let pages_per_cell = (last + 1).div_ceil(MAX_CELLS).max(1);
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
    let height = side * (last / COLUMNS + 1) as f64 + 4.0;
    begin_figure(page, "", (WIDTH, height), "transfers of each page");
    for (&at, &(fetched, changed)) in cells {
        let position = (LEFT + (at % COLUMNS) as f64 * side, (at / COLUMNS) as f64 * side);
        // Logarithmic, so that one hot page does not leave all others white.
        let warmth = ((fetched + changed) as f64).ln_1p() / (hottest as f64).ln_1p();
        let colour = format!("hsl({:.0} 85% {:.0}%)", 50.0 - 50.0 * warmth, 88.0 - 45.0 * warmth);
        let first = at * pages_per_cell;
        let words = format!("page {first}: fetched {fetched} times, changed {changed} times");
        rectangle(page, &colour, position, (side - 0.6, side - 0.6), &words);
    }
    let of_each =
        if pages_per_cell > 1 { format!("Each cell is {pages_per_cell} pages. ") } else { String::new() };
    let order = "Row by row from the start of the shared heap.";
    end_figure(page, &format!("{order} {of_each}The darkest was transferred {hottest} times."));
    let mut busiest: Vec<_> = cells.iter().map(|(at, counts)| (counts.0 + counts.1, at, counts)).collect();
    busiest.sort_by(|a, b| b.cmp(a));
    let shown = busiest.len().min(TABLE_ROWS);
    let rows = busiest.iter().take(TABLE_ROWS).map(|(sum, at, (fetched, changed))| {
        [*at * pages_per_cell, *fetched, *changed, *sum].map(|number| number.to_string())
    });
    page::details(page, &format!("The {shown} busiest cells of {} as a table", cells.len()), |page| {
        page::table(page, "The busiest pages", ["page", "fetched", "changed", "together"], rows);
    });
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
