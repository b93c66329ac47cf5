//! Sockets over connections: rdma-core's rsockets, with the same calls and the same bytes on the wire.
//!
//! This module uses only the public calls of this library and the verbs; it has no access to the NIC.
//!
//! | module | content |
//! |---|---|
//! | `entry`, `errno` | the calls for C programs, and the wrapper of each |
//! | `socket`, `table` | the sockets by number |
//! | `wire`, `stream` | the protocol of streams without I/O: wire format and state machine |
//! | `connection` | a stream socket: the machine driven by events and completions |
//! | `endpoint`, `completions`, `memory`, `messages`, `channel` | the NIC's and the connection manager's objects of a stream |
//! | `datagram` | a datagram socket and its headers |
//! | `wait`, `waiting`, `poll`, `repoll` | sleeping, waking, `rpoll` and `repoll_wait` |
//! | `keepalive` | the service of `SO_KEEPALIVE` |
//! | `address`, `vectors`, `option`, `flags`, `settings` | arguments, flags and sizes |
//! | `calls` | the calls of this library and the verbs that sockets use |

mod address;
mod calls;
mod channel;
mod completions;
mod connection;
mod datagram;
mod endpoint;
mod entry;
mod errno;
mod flags;
mod keepalive;
mod memory;
mod messages;
mod option;
mod poll;
mod repoll;
mod settings;
mod socket;
mod stream;
mod table;
mod vectors;
mod wait;
mod waiting;
mod wire;
