//! The HTML report: one file, without scripts or external resources.

mod html;
mod plots;
mod scale;
mod sections;
mod svg;

pub(crate) use html::{escape, html};

/// How the pages look, light and dark.
pub(crate) const STYLE: &str = include_str!("style.css");
