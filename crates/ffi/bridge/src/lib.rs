//! Types that the two C libraries share. They have no state: each library has its own copy of this crate.
//!
//! | module | content |
//! |---|---|
//! | `verbs` | the structures and numbers of <infiniband/verbs.h>, their layout asserted |
//! | `cm` | the table through which librdmacm reaches the connection manager inside libibverbs |
//! | `export` | exports functions under the names that programs link with |
//! | `address` | addresses and ports, in that table and in sockets |

pub mod address;
pub mod cm;
mod export;
pub mod verbs;
