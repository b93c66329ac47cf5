//! A software RDMA NIC in user space.

pub mod link;
pub mod registry;
