//! Page faults of the program, and what the program may do with which page.
//!
//! | file | question |
//! |---|---|
//! | `signal` | how a thread that touched a closed page comes to us |
//! | `userfault` | how pages are opened and closed one by one, by userfaultfd |
//! | `view` | which of the two ways is used: userfaultfd, or rights of the mapping |

mod signal;
mod userfault;
mod view;

pub(crate) use signal::{Registration, Touch};
pub(crate) use view::View;
