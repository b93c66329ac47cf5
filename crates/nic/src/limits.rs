//! What a device allows: one table per device. The attributes of the device show it, and the checks read it. The tables of queue pairs and
//! memory regions always hold `MAX_QP` and `MAX_MR` entries: no device here has fewer.
//!
//! Strict mode narrows ferroce's own table to that of a real NIC, so that a program that requests too much fails here as it fails there.

use ferroce_proto::verbs::{QpCap, Transport};

/// Most scatter/gather entries of a work request.
pub const MAX_SGE: u32 = 32;
/// Most work requests of a queue.
pub const MAX_QP_WR: u32 = 1 << 16;
/// Most inline bytes of a send.
pub const MAX_INLINE: u32 = 1024;
/// Most READs and atomics outstanding, in either direction.
pub const MAX_RD_ATOMIC: u8 = 128;
/// Most objects of each of these kinds: protection domains, completion queues, shared receive queues, address handles, work queues,
/// attachments to multicast groups.
pub const MAX_OBJECTS: u32 = 1 << 20;
/// Most receives of an SRQ.
pub const MAX_SRQ_WR: u32 = 1 << 20;
/// Most entries of a CQ.
pub(crate) const MAX_CQE: u32 = 1 << 22;
/// Most memory regions.
pub(crate) const MAX_MR: u32 = 1 << 20;
/// Most queue pairs of one NIC: three quarters of the numbers, so that a random free one is found quickly.
pub(crate) const MAX_QP: u64 = 49_152;

/// The limits of a device, under the names of `ibv_device_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLimits {
    /// Most queue pairs.
    pub max_qp: u64,
    /// Most work requests of a queue.
    pub max_qp_wr: u32,
    /// Most scatter/gather entries of a request.
    pub max_sge: u32,
    /// Most inline bytes of a connected queue pair.
    pub max_inline_data: u32,
    /// Most inline bytes of a datagram queue pair.
    pub max_inline_data_ud: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most entries of a CQ.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Most protection domains.
    pub max_pd: u32,
    /// Most shared receive queues.
    pub max_srq: u32,
    /// Most receives of a shared receive queue.
    pub max_srq_wr: u32,
    /// Most scatter/gather entries of a receive of a shared receive queue.
    pub max_srq_sge: u32,
    /// Most address handles.
    pub max_ah: u32,
    /// Most READs and atomics outstanding per queue pair.
    pub max_rd_atomic: u8,
    /// How a send queue is laid out, if its depth depends on the size of its entries.
    pub send_blocks: Option<SendBlocks>,
}

/// A send queue whose entries take a number of equal blocks each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendBlocks {
    /// Bytes of a block.
    pub block: u32,
    /// Most blocks of a queue.
    pub most: u32,
}

impl DeviceLimits {
    /// What ferroce allows.
    pub const FERROCE: DeviceLimits = DeviceLimits {
        max_qp: MAX_QP,
        max_qp_wr: MAX_QP_WR,
        max_sge: MAX_SGE,
        max_inline_data: MAX_INLINE,
        max_inline_data_ud: MAX_INLINE,
        max_cq: MAX_OBJECTS,
        max_cqe: MAX_CQE,
        max_mr: MAX_MR,
        max_pd: MAX_OBJECTS,
        max_srq: MAX_OBJECTS,
        max_srq_wr: MAX_SRQ_WR,
        max_srq_sge: MAX_SGE,
        max_ah: MAX_OBJECTS,
        max_rd_atomic: MAX_RD_ATOMIC,
        send_blocks: None,
    };

    /// A ConnectX-6 with its usual firmware settings.
    ///
    /// The numbers up to `max_rd_atomic` are those of `ibv_devinfo -v` on such devices, as reported in github.com/openucx/ucx, issues 8229
    /// (vendor_part_id 4123) and 9212. The rest follows from rdma-core, providers/mlx5/verbs.c (`sq_overhead`, `mlx5_calc_send_wqe`,
    /// `mlx5_calc_sq_size`): an entry of the send queue has at most 1024 bytes, of which an RC entry leaves 828 for inline data and a UD
    /// entry 956, and all entries together at most `max_qp_wr` blocks of 64 bytes.
    pub const CONNECTX_6: DeviceLimits = DeviceLimits {
        max_qp: 262_144,
        max_qp_wr: 32_768,
        max_sge: 30,
        max_cq: 16_777_216,
        max_cqe: 4_194_303,
        max_mr: 16_777_216,
        max_pd: 8_388_608,
        max_srq: 8_388_608,
        max_srq_wr: 32_767,
        max_srq_sge: 31,
        max_ah: i32::MAX as u32,
        max_rd_atomic: 16,
        max_inline_data: 828,
        max_inline_data_ud: 956,
        send_blocks: Some(SendBlocks { block: 64, most: 32_768 }),
    };

    /// The smaller value of each limit.
    fn within(self, outer: DeviceLimits) -> DeviceLimits {
        DeviceLimits {
            max_qp: self.max_qp.min(outer.max_qp),
            max_qp_wr: self.max_qp_wr.min(outer.max_qp_wr),
            max_sge: self.max_sge.min(outer.max_sge),
            max_inline_data: self.max_inline_data.min(outer.max_inline_data),
            max_inline_data_ud: self.max_inline_data_ud.min(outer.max_inline_data_ud),
            max_cq: self.max_cq.min(outer.max_cq),
            max_cqe: self.max_cqe.min(outer.max_cqe),
            max_mr: self.max_mr.min(outer.max_mr),
            max_pd: self.max_pd.min(outer.max_pd),
            max_srq: self.max_srq.min(outer.max_srq),
            max_srq_wr: self.max_srq_wr.min(outer.max_srq_wr),
            max_srq_sge: self.max_srq_sge.min(outer.max_srq_sge),
            max_ah: self.max_ah.min(outer.max_ah),
            max_rd_atomic: self.max_rd_atomic.min(outer.max_rd_atomic),
            send_blocks: self.send_blocks.or(outer.send_blocks),
        }
    }

    /// Most inline bytes of a queue pair of this transport.
    pub(crate) fn max_inline(&self, transport: Transport) -> u32 {
        if transport == Transport::Ud { self.max_inline_data_ud } else { self.max_inline_data }
    }
}

impl SendBlocks {
    /// Bytes of an entry before its data: of mlx5, control segment (16) and the longest segment of the transport, which is a memory window's
    /// bind (176) or an address (48).
    const fn overhead(transport: Transport) -> u32 {
        if matches!(transport, Transport::Ud) { 16 + 48 } else { 16 + 176 }
    }

    /// Blocks of one entry of a queue with these sizes.
    pub(crate) fn per_entry(self, transport: Transport, cap: &QpCap) -> u32 {
        let inline = match cap.max_inline_data {
            0 => 0,
            bytes => (4 + bytes).next_multiple_of(16),
        };
        let entry = Self::overhead(transport) + inline.max(16 * cap.max_send_sge);
        entry.div_ceil(self.block)
    }

    /// The deepest queue whose entries have these sizes. The device rounds the number of blocks up to a power of two.
    pub(crate) fn deepest(self, transport: Transport, cap: &QpCap) -> u32 {
        self.most / self.per_entry(transport, cap)
    }
}

/// Strict mode: calls that would fail on hardware fail here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strict {
    /// The rules that all NICs share; ferroce's own limits.
    AnyNic,
    /// The same, and the limits of a ConnectX-6.
    ConnectX6,
}

impl Strict {
    /// What `FERROCE_STRICT` and `ferroce run --strict=` may be, and what each means.
    pub const NAMES: [(&str, Strict); 2] = [("1", Strict::AnyNic), ("connectx-6", Strict::ConnectX6)];

    /// The limits of a device in this mode.
    pub(crate) fn limits(of: Option<Strict>) -> DeviceLimits {
        match of {
            None | Some(Strict::AnyNic) => DeviceLimits::FERROCE,
            Some(Strict::ConnectX6) => DeviceLimits::CONNECTX_6.within(DeviceLimits::FERROCE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All limits but `send_blocks`, which ferroce's own table does not have.
    fn numbers(limits: DeviceLimits) -> [u64; 14] {
        let DeviceLimits {
            max_qp,
            max_qp_wr,
            max_sge,
            max_inline_data,
            max_inline_data_ud,
            max_cq,
            max_cqe,
            max_mr,
            max_pd,
            max_srq,
            max_srq_wr,
            max_srq_sge,
            max_ah,
            max_rd_atomic,
            send_blocks: _,
        } = limits;
        let words =
            [max_qp_wr, max_sge, max_inline_data, max_inline_data_ud, max_cq, max_cqe, max_mr, max_pd];
        let [a, b, c, d, e, f, g, h] = words.map(u64::from);
        let [i, j, k, l] = [max_srq, max_srq_wr, max_srq_sge, max_ah].map(u64::from);
        [max_qp, a, b, c, d, e, f, g, h, i, j, k, l, max_rd_atomic.into()]
    }

    #[test]
    fn a_profile_never_promises_more_than_ferroce_has() {
        let limits = Strict::limits(Some(Strict::ConnectX6));
        let [ours, profile] = [DeviceLimits::FERROCE, DeviceLimits::CONNECTX_6].map(numbers);
        assert_eq!(numbers(limits), std::array::from_fn(|n| ours[n].min(profile[n])));
        assert_eq!(limits.send_blocks, DeviceLimits::CONNECTX_6.send_blocks);
        assert_eq!((limits.max_qp_wr, limits.max_rd_atomic), (32_768, 16));
        // The sizes of two tables, which do not depend on the device.
        assert_eq!((limits.max_qp, limits.max_mr), (MAX_QP, MAX_MR));
        assert_eq!(Strict::limits(None), Strict::limits(Some(Strict::AnyNic)));
    }

    /// The largest queues that mlx5's formulas accept.
    #[test]
    fn a_deep_send_queue_needs_small_entries() {
        let blocks = DeviceLimits::CONNECTX_6.send_blocks.unwrap();
        let cap = |max_send_sge, max_inline_data| QpCap { max_send_sge, max_inline_data, ..QpCap::default() };
        assert_eq!(blocks.deepest(Transport::Rc, &cap(1, 0)), 8192);
        assert_eq!(blocks.deepest(Transport::Ud, &cap(1, 0)), 16_384);
        assert_eq!(blocks.per_entry(Transport::Rc, &cap(1, 828)), 16);
        assert_eq!(blocks.per_entry(Transport::Rc, &cap(1, 829)), 17);
        assert_eq!(blocks.per_entry(Transport::Ud, &cap(1, 956)), 16);
    }
}
