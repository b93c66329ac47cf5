//! The HTML report: one file, without scripts or external resources.

mod html;
mod line_plot;
mod plots;
mod sections;

pub(crate) use html::html;

/// How the pages look, light and dark.
pub(crate) const STYLE: &str = include_str!("style.css");
