//! Sockets, as they are without RDMA: what the RDMA figures are compared with.

pub(crate) mod tcp;
pub(crate) mod udp;
pub(crate) mod udp_stream;
