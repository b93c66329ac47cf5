//! The wire: one file per header, each a type with a parser that cannot panic and a writer that mirrors it.
//!
//! ```text
//! Ethernet | IPv4 or IPv6 | UDP 4791 | BTH | extension headers | payload | pad | ICRC
//!             ipv4 ipv6      udp       bth   headers             packet          icrc
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `opcode` | the BTH opcode, and which extension headers follow from it |
//! | `bth` | base transport header |
//! | `reth`, `aeth`, `atomic`, `deth`, `feth` | extension headers with several fields |
//! | `piggyback` | an acknowledgement in a request packet, between two ferroce ends |
//! | `one_field` | extension headers with one field: AtomicAckETH, ImmDt, IETH, XRCETH |
//! | `headers` | BTH and all extension headers in packet order |
//! | `packet` | headers and payload of a received packet |
//! | `send_only`, `write_middle`, `ack_only` | the same for a SEND of one packet, from the middle of a WRITE, and for a positive ACK, in fewer steps |
//! | `rendezvous_send` | a SEND or WRITE that refers to the sender's memory; only in shared memory |
//! | `ipv4`, `ipv6`, `udp`, `grh` | outer headers |
//! | `icrc` | the invariant checksum |
//! | `icrc_prefix` | the part of it that packets of one flow share |
//! | `mad`, [`cm`] | management datagrams, and the messages of communication management in them |
//!
//! Reserved bits are written as zero and ignored when read, except for five bits of the BTH that ferroce ends use between
//! themselves. So a parsed packet is written back with the same bytes, except for the other reserved bits.

mod ack_only;
mod aeth;
mod atomic;
mod bth;
pub mod cm;
mod deth;
mod ecn;
mod ethernet;
mod feth;
mod grh;
mod headers;
mod icrc;
mod icrc_prefix;
mod ipv4;
mod ipv6;
mod mad;
mod malformed;
mod one_field;
mod opcode;
mod packet;
mod piggyback;
mod rendezvous_send;
mod reth;
mod send_only;
mod udp;
mod write_middle;

pub use ack_only::AckOnly;
pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic::AtomicEth;
pub use bth::{Bth, BthRun, clear_partial_icrc, dest_qpn, has_partial_icrc};
pub use deth::Deth;
pub use ecn::{ECN_BITS, ECN_CAPABLE, ECN_CE};
pub use ethernet::ETHERNET_OVERHEAD;
pub use feth::Feth;
pub use grh::Grh;
pub use headers::Headers;
pub use icrc::{FlowAddrs, ICRC_LEN, Icrc, icrc, verify_icrc};
pub use icrc_prefix::{FlowIcrc, IcrcPrefix, VerifiedIcrc};
pub use ipv4::Ipv4Header;
pub use ipv6::Ipv6Header;
pub use mad::{BadMad, GSI_QKEY, MAD_BODY_LEN, MAD_LEN, MadHeader, NotGsi, check_gsi, gsi_headers};
pub use malformed::Malformed;
pub use opcode::{Opcode, Operation, Service};
pub use packet::Packet;
pub use piggyback::PiggybackedAck;
pub use rendezvous_send::{RendezvousSend, SourcePiece, SourceRef};
pub use reth::Reth;
pub use send_only::{SendOnly, pad_of};
pub use udp::{ROCE_UDP_PORT, UdpHeader};
pub use write_middle::WriteMiddle;

/// The longest message of a connected transport (IBA 9.7.1.1).
pub const MAX_MESSAGE: u32 = 1 << 31;
