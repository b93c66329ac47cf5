//! The report of `ferroce perf`: one file, without scripts or external resources.

mod html;
mod plots;
mod sections;

pub(crate) use html::html;
