//! `librdmacm.so.1`: connections for C programs, translated to ferroce's NIC.
//!
//! All state of the NIC lives in libibverbs.so.1. This library reaches the functions that are not verbs through the
//! table of `ferroce_bridge`.
//!
//! | module | content |
//! |---|---|
//! | `abi` | the structures and numbers of <rdma/rdma_cma.h>, their layout asserted |
//! | `exports` | the names that programs link with |
//! | `guard` | the wrapper of every call: panics and refusals become error numbers |
//! | `verbs` | libibverbs.so.1, as this library calls it |
//! | `device`, `devices` | the one device, opened on first use |
//! | `channel`, `event` | event channels, events, and what is done for the program when it gets one |
//! | `id`, `options` | ids and their options |
//! | `address`, `route`, `addrinfo` | names, binding, routes |
//! | `ib` | names of the family AF_IB |
//! | `listen`, `connect`, `ece` | connecting, accepting, rejecting and disconnecting |
//! | `qp`, `srq` | the id's own queues |
//! | `endpoint` | all of it in one call |
//! | `multicast` | groups |
//! | `rsocket` | sockets over connections |
//!
//! Every pointer is the program's. The manual says which of them must be good, and that is what each `SAFETY` comment
//! leans on; NULL is refused wherever the manual does not give it a meaning.

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
