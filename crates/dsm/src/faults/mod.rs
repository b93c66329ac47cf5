//! Page faults of the program, by SIGSEGV.

mod signal;

pub(crate) use signal::{Registration, Touch};
