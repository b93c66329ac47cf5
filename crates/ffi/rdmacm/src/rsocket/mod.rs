//! Sockets over connections: rdma-core's rsockets, the same calls and the same bytes on the wire.
//!
//! Built on the public calls of this library and on the verbs, as any program could be; nothing here depends on the
//! NIC.
//!
//! | module | content |
//! |---|---|
//! | `entry`, `errno` | the calls as C makes them, and what every one goes through |
//! | `socket`, `table` | which number is which socket |
//! | `wire`, `stream` | the protocol of streams, pure: bytes and a machine |
//! | `connection` | a stream socket: the machine driven by events and completions |
//! | `endpoint`, `completions`, `memory`, `messages`, `channel` | what a stream has of the NIC and of the connection manager |
//! | `datagram` | a datagram socket, its headers included |
//! | `wait`, `waiting`, `poll` | sleeping, waking, and `rpoll` |
//! | `keepalive` | the service behind `SO_KEEPALIVE` |
//! | `address`, `vectors`, `option`, `flags`, `settings` | arguments, flags and sizes |
//! | `calls` | the calls that all this is made of |

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
