//! Page faults of the program, and its access rights to pages.
//!
//! | file | question |
//! |---|---|
//! | `signal` | how an access to a closed page is caught |
//! | `userfault` | how pages are opened and closed one by one, by userfaultfd |
//! | `sources` | whose mapping each page is shown from |
//! | `view` | which mechanism is used: userfaultfd, or rights of the mapping |

mod signal;
mod sources;
mod userfault;
mod view;

pub(crate) use signal::{Registration, Touch};
pub(crate) use sources::{Source, Sources};
pub(crate) use view::View;
