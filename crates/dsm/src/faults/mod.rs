//! Page faults of the program, and what the program may do with which page.
//!
//! | file | question |
//! |---|---|
//! | `signal` | how a thread that touched a closed page comes to us |
//! | `userfault` | how pages are opened and closed one by one, by userfaultfd |
//! | `sources` | whose mapping each page is shown from |
//! | `view` | which of the two ways is used: userfaultfd, or rights of the mapping |

mod signal;
mod sources;
mod userfault;
mod view;

pub(crate) use signal::{Registration, Touch};
pub(crate) use sources::{Source, Sources};
pub(crate) use view::View;
