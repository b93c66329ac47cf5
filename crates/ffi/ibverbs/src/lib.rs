//! `libibverbs.so.1`: the verbs for C programs, translated to ferroce's NIC.
//!
//! | module | content |
//! |---|---|
//! | `exports`, `ops` | how programs reach a function: by symbol, or through the context's tables |
//! | `guard`, `errno` | the wrapper of every call: panics and refusals become error numbers |
//! | `handle`, `live`, `acks` | the object behind a pointer, whether it lives, its dependents, its unacknowledged events |
//! | `device`, `identity`, `context` | the one device, its identity, and opening it |
//! | `query`, `clock`, `gid`, `sysfs`, `names`, `rates` | queries |
//! | `pd`, `domain`, `mr`, `buf`, `mw`, `dm`, `advise`, `ah`, `mcast`, `srq`, `xrcd` | the objects |
//! | `cq`, `cq_ex`, `channel`, `event` | completions and events |
//! | `qp`, `send`, `recv` | queue pairs, and posting to them |
//! | `cm` | the connection manager, for librdmacm.so.1 |
//! | `flow`, `counters`, `wq` | raw packets |
//! | `recorded` | posting and polling with a record, for `ferroce run --timeline` |
//! | `watched` | posting and polling with a check of their object, for `ferroce run --explain=strict` |
//! | `fork`, `import`, `ece`, `kern`, `neighbour`, `private` | symbols that some programs link with |
//!
//! Every pointer comes from the program. The manual pages define which pointers must be valid, and each `SAFETY` comment
//! relies on that. NULL is refused unless the manual page gives it a meaning.

mod acks;
mod advise;
mod ah;
mod buf;
mod channel;
mod clock;
mod cm;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod domain;
mod ece;
mod errno;
mod event;
mod exports;
mod flow;
mod fork;
mod gid;
mod guard;
mod handle;
mod identity;
mod import;
mod kern;
mod live;
mod mcast;
mod mr;
mod mw;
mod names;
mod neighbour;
mod ops;
mod pd;
mod private;
mod qp;
mod query;
mod rates;
mod recorded;
mod recv;
mod send;
mod srq;
mod sysfs;
mod watched;
mod wq;
mod xrcd;

/// The structures and numbers of <infiniband/verbs.h>; both C libraries share them.
use ferroce_bridge::verbs as abi;
