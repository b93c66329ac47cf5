//! The HTML report: one file, no script, nothing from elsewhere.

mod html;
mod line_plot;
mod plots;
mod sections;

pub(crate) use html::html;

/// How the pages look, light and dark.
pub(crate) const STYLE: &str = include_str!("style.css");
