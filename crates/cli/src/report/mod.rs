//! The HTML report: one file, no script, nothing from elsewhere.

mod html;
mod plots;
mod scale;
mod sections;
mod svg;

pub(crate) use html::html;
