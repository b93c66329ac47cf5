//! What the device can do, and how much of it.

use crate::addresses::AddressTable;
use crate::config::Wire;
use crate::limits::DeviceLimits;

/// Name of the device, in every process.
pub const DEVICE_NAME: &str = "ferroce0";
/// Capacity of the GID table, in entries.
pub const GID_TABLE_LEN: usize = 256;

/// What the device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Most queue pairs.
    pub max_qp: u64,
    /// Most work requests of a queue.
    pub max_qp_wr: u32,
    /// Most scatter/gather entries of a request.
    pub max_sge: u32,
    /// Most inline bytes.
    pub max_inline_data: u32,
    /// Most entries of a CQ.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Most READs and atomics outstanding per queue pair.
    pub max_rd_atomic: u8,
    /// Longest message.
    pub max_msg_sz: u32,
    /// Entries of the GID table.
    pub gid_tbl_len: usize,
    /// Largest path MTU, in bytes, that all interfaces with a path to other hosts carry.
    pub active_mtu: u32,
    /// Largest path MTU of any of its addresses.
    #[serde(default)]
    pub largest_mtu: u32,
    /// Bytes one queue pair may have in flight.
    pub window_bytes: u32,
}

impl DeviceAttr {
    /// Of a device with these addresses and limits.
    pub(crate) fn of(
        table: &AddressTable,
        limits: &DeviceLimits,
        window_bytes: u32,
        wire: Wire,
    ) -> DeviceAttr {
        DeviceAttr {
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_qp_wr,
            max_sge: limits.max_sge,
            max_inline_data: limits.max_inline_data,
            max_cqe: limits.max_cqe,
            max_mr: limits.max_mr,
            max_rd_atomic: limits.max_rd_atomic,
            max_msg_sz: ferroce_proto::qp::MAX_MESSAGE,
            gid_tbl_len: if wire == Wire::Iwarp { 1 } else { GID_TABLE_LEN },
            active_mtu: table.active_mtu().bytes(),
            largest_mtu: table.largest_mtu().bytes(),
            window_bytes,
        }
    }
}
