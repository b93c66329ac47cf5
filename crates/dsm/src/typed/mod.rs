//! Shared memory with types: what Rust programs use instead of pointers.
//!
//! | file | what |
//! |---|---|
//! | `plain` | which types may be shared |
//! | `shared` | arrays of them |
//! | `guard` | locks that are released when their guard is dropped |

mod guard;
mod plain;
mod shared;

pub use guard::LockGuard;
pub use plain::Plain;
pub use shared::Shared;
