//! What the two C libraries agree on. Plain types without state: each library has its own copy of this crate.
//!
//! | room | what lives there |
//! |---|---|
//! | `verbs` | the structures and numbers of <infiniband/verbs.h>, their layout asserted |

pub mod verbs;
