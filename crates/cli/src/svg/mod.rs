//! Elements of SVG pictures, and the logarithmic scale that all of them use. Style sheets define the look of each class.

mod scale;

pub use scale::{LogScale, round_range};
use std::fmt::Write;

/// The classes of a picture that stands alone. Its background is white, because the page around it may be dark.
const STYLE: &str = "text{font:13px sans-serif;fill:#222}.background{fill:#fff}.grid{stroke:#ddd}.axis{stroke:#777}\
     .goal{stroke:#000;stroke-width:3}.end{text-anchor:end}.middle{text-anchor:middle}";

/// Begins a picture that stands alone, in a file of its own. `end` completes it.
pub fn begin_file(width: f64, height: f64, description: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n\
         <style>{STYLE}</style>\n<rect class=\"background\" width=\"{width}\" height=\"{height}\"/>\n",
        escape(description)
    )
}

/// Begins a picture inside a page, whose style sheet applies. `end` completes it.
pub(crate) fn begin(page: &mut String, width: f64, height: f64, description: &str) {
    let _ = writeln!(
        page,
        "<svg viewBox=\"0 0 {width} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        escape(description)
    );
}

/// Ends a picture.
pub fn end(svg: &mut String) {
    svg.push_str("</svg>\n");
}

/// A straight line.
pub fn line(svg: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

/// One line of text. It begins at this point of its baseline, unless the class aligns it otherwise.
pub fn text(svg: &mut String, class: &str, (x, y): (f64, f64), words: &str) {
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(words));
}

/// A filled rectangle that shows `title` under the pointer.
pub fn rectangle(
    svg: &mut String,
    colour: &str,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
    title: &str,
) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"{colour}\"><title>{}</title></rect>",
        escape(title)
    );
}

/// A row of coloured squares, each with its name.
pub fn legend<'a>(svg: &mut String, at: (f64, f64), entries: impl Iterator<Item = (&'a str, &'a str)>) {
    for (n, (name, colour)) in entries.enumerate() {
        let x = at.0 + 130.0 * n as f64;
        rectangle(svg, colour, (x, at.1 - 10.0), (12.0, 12.0), name);
        text(svg, "legend", (x + 18.0, at.1), name);
    }
}

/// Text as HTML, fit for elements and quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}
