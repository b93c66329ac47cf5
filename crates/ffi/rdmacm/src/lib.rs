//! `librdmacm.so.1`: connections for C programs, translated to ferroce's NIC.
//!
//! All state of the NIC is in libibverbs.so.1. This library calls its functions that are not verbs through the table of
//! `ferroce_bridge`.
//!
//! | module | content |
//! |---|---|
//! | `abi` | the structures and numbers of <rdma/rdma_cma.h>, their layout asserted |
//! | `exports` | the names that programs link with |
//! | `guard` | the wrapper of every call: panics and refusals become error numbers |
//! | `verbs` | libibverbs.so.1, as this library calls it |
//! | `device`, `devices` | the one device, opened on first use |
//! | `channel`, `event` | event channels, events, and the library's part of each event |
//! | `id`, `options` | ids and their options |
//! | `address`, `route`, `addrinfo` | names, binding, routes |
//! | `ib` | addresses of the family AF_IB |
//! | `listen`, `connect`, `ece` | connecting, accepting, rejecting and disconnecting |
//! | `qp`, `srq` | the id's own queues |
//! | `endpoint` | an id with all its objects in one call |
//! | `multicast` | groups |
//! | `rsocket` | sockets over connections |
//!
//! Every pointer comes from the program. The manual pages define which pointers must be valid, and each `SAFETY` comment
//! relies on that. NULL is refused unless the manual page gives it a meaning.

mod abi;
mod address;
mod addrinfo;
mod channel;
mod connect;
mod device;
mod devices;
mod ece;
mod endpoint;
mod event;
mod exports;
mod guard;
mod ib;
mod id;
mod listen;
mod multicast;
mod options;
mod qp;
mod route;
mod rsocket;
mod srq;
mod verbs;
