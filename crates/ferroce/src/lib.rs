//! Placeholder: replaced by the crate's own table of contents.
