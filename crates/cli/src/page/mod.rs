//! What all HTML pages share: the frame with the style sheet, tables, figures, plots with the table behind them. Each page is one file, without
//! external resources. Text from outside goes through [`escape`], which the functions here call for every cell and caption.

mod plot;

use crate::svg;
pub(crate) use crate::svg::escape;
pub(crate) use plot::{Axis, Marker, Plot, Series};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// Begins a page. `own_style` holds the classes that only this kind of page has.
pub(crate) fn begin(title: &str, own_style: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>\n{STYLE}{own_style}</style>\n</head>\n<body>\n",
        escape(title)
    )
}

/// Ends a page.
pub(crate) fn end(mut page: String) -> String {
    page.push_str("</body>\n</html>\n");
    page
}

/// A paragraph in the soft colour.
pub(crate) fn note(page: &mut String, words: &str) {
    let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(words));
}

/// The most important figures, large, each with HTML below.
pub(crate) fn headlines(page: &mut String, cards: impl IntoIterator<Item = (String, String)>) {
    page.push_str("<ul class=\"headlines\">\n");
    for (figure, below) in cards {
        let _ = writeln!(page, "<li><div class=\"ratio\">{}</div>{below}</li>", escape(&figure));
    }
    page.push_str("</ul>\n");
}

/// Begins a box that scrolls sideways where it is wider than the screen; the keyboard reaches it.
fn begin_wide(page: &mut String, label: &str) {
    let _ =
        write!(page, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">", escape(label));
}

/// Begins a table with its headings; a heading may have several lines. [`row`] adds to it, [`end_table`] completes it.
pub(crate) fn begin_table<'a>(
    page: &mut String,
    class: &str,
    label: &str,
    headings: impl IntoIterator<Item = &'a str>,
) {
    begin_wide(page, label);
    let _ = write!(page, "<table class=\"{class}\">\n<thead><tr>");
    for heading in headings {
        let _ = write!(
            page,
            "<th scope=\"col\">{}</th>",
            heading.trim().split('\n').map(escape).collect::<Vec<_>>().join("<br>")
        );
    }
    page.push_str("</tr></thead>\n");
}

/// Ends a table.
pub(crate) fn end_table(page: &mut String) {
    page.push_str("</table></div>\n");
}

/// The cells of a row up to its end; what is no number is aligned to the left. The caller has begun the row.
pub(crate) fn cells(page: &mut String, cells: impl IntoIterator<Item = impl AsRef<str>>) {
    for cell in cells {
        let cell = cell.as_ref();
        let class = if cell.starts_with(char::is_alphabetic) { " class=\"name\"" } else { "" };
        let _ = write!(page, "<td{class}>{}</td>", escape(cell));
    }
    page.push_str("</tr>\n");
}

/// A whole table.
pub(crate) fn table<'a, R: IntoIterator<Item: AsRef<str>>>(
    page: &mut String,
    label: &str,
    headings: impl IntoIterator<Item = &'a str>,
    rows: impl IntoIterator<Item = R>,
) {
    begin_table(page, "", label, headings);
    for row in rows {
        page.push_str("<tr>");
        cells(page, row);
    }
    end_table(page);
}

/// Content that opens on a click or with the keyboard.
pub(crate) fn details(page: &mut String, summary: &str, content: impl FnOnce(&mut String)) {
    let _ = writeln!(page, "<details><summary>{}</summary>", escape(summary));
    content(page);
    page.push_str("</details>\n");
}

/// Begins a picture.
pub(crate) fn begin_figure(page: &mut String, class: &str, (width, height): (f64, f64), description: &str) {
    let _ = write!(page, "<figure class=\"{class}\">");
    begin_wide(page, description);
    svg::begin(page, width, height, description);
}

/// Ends a picture.
pub(crate) fn end_figure(page: &mut String, caption: &str) {
    svg::end(page);
    let _ = writeln!(page, "</div><figcaption>{}</figcaption></figure>", escape(caption));
}
