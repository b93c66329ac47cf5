//! The HTML report: one file, no script, nothing from elsewhere.

mod html;
mod plots;
mod scale;
mod sections;
mod svg;

pub(crate) use html::{escape, html};

/// How the pages look, light and dark.
pub(crate) const STYLE: &str = include_str!("style.css");
