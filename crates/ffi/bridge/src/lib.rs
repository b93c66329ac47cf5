//! Types that the two C libraries share. They have no state: each library has its own copy of this crate.
//!
//! | module | content |
//! |---|---|
//! | `verbs` | the structures and numbers of <infiniband/verbs.h>, their layout asserted |
//! | `cm` | the table through which librdmacm reaches the connection manager inside libibverbs |
//! | `export` | how a function gets the name that programs link with |
//! | `address` | addresses and ports as they cross that table, and as sockets have them |

pub mod address;
pub mod cm;
mod export;
pub mod verbs;
