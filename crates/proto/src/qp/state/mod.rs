//! The states of a queue pair: RESET INIT RTR RTS SQD SQE ERR (IBA 10.3.1).
//!
//! [`check`] compares a `modify` with one table of transitions (attributes from IBA 11.2.5.2). The tests cover the
//! whole table, and `docs/reference/qp-states.md` is generated from it. [`check_values`] compares the values with the
//! device limits. The caller runs both, and [`check_current`], before it changes anything: a refused `modify` has no
//! effect.

mod error;
mod table;
mod timers;
mod values;

pub use error::ModifyError;
pub use table::{
    Attrs, Transition, check, check_current, may_post_recv, may_post_send, relevant, state_name, transitions,
};
pub use timers::{rnr_timer_ns, timeout_ns};
pub use values::{AttrLimits, check_values};
