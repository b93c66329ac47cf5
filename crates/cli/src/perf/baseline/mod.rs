//! Sockets without RDMA, for comparison.

pub(crate) mod tcp;
pub(crate) mod udp;
pub(crate) mod udp_stream;
