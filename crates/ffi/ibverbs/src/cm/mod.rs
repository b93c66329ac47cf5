//! The connection manager, for librdmacm.so.1: the functions behind the table of `ferroce_bridge::cm`.
//!
//! | file | what it does |
//! |---|---|
//! | `table` | the table itself, logging and fatal errors |
//! | `channel` | event channels and events |
//! | `id` | ids: binding, resolving, queries |
//! | `connect` | connecting, accepting, rejecting, disconnecting |

mod channel;
mod connect;
mod id;
mod table;

pub(crate) use table::pointer;
