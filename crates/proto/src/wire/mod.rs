//! The wire: one file per header.
