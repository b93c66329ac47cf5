//! The default sizes of a socket, from the administrator's files or else from rdma-core.

use std::path::Path;
use std::sync::OnceLock;

use crate::rsocket::stream::LOW_WATER;
use crate::rsocket::wire::expressible_mappings;

/// The administrator's folder, with one file per number (`man 7 rsocket`).
const FOLDER: &str = "/etc/rdma/rsocket";
/// The maximum and minimum size of a queue of a QP.
const MAX_QUEUE: u32 = 0xfffe;
pub(crate) const MIN_QUEUE: u16 = 16;
/// The minimum size of a receive ring: each half holds [`LOW_WATER`] bytes.
const MIN_RING: u32 = 2 * LOW_WATER;
/// The maximum size of a ring: offsets have 32 bits, and the requested size is doubled.
const MAX_RING: u32 = 1 << 30;

/// Sizes of a socket; they can change until it connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizing {
    pub(crate) send_ring: u32,
    pub(crate) recv_ring: u32,
    pub(crate) send_queue: u16,
    pub(crate) recv_queue: u16,
    pub(crate) inline: u32,
    pub(crate) mappings: u16,
}

impl Sizing {
    /// `SO_SNDBUF`: doubled, as the kernel doubles it.
    pub(crate) fn set_send_ring(&mut self, bytes: u32) {
        self.send_ring = ring(bytes.saturating_mul(2));
    }

    /// `SO_RCVBUF`.
    pub(crate) fn set_recv_ring(&mut self, bytes: u32) {
        self.recv_ring = ring(bytes.saturating_mul(2));
    }

    /// `RDMA_SQSIZE`.
    pub(crate) fn set_send_queue(&mut self, requests: u32) {
        self.send_queue = requests.min(MAX_QUEUE) as u16;
    }

    /// `RDMA_RQSIZE`.
    pub(crate) fn set_recv_queue(&mut self, requests: u32) {
        self.recv_queue = requests.min(MAX_QUEUE) as u16;
    }

    /// `RDMA_INLINE`.
    pub(crate) fn set_inline(&mut self, bytes: u32) {
        self.inline = bytes.min(MAX_QUEUE);
    }

    /// `RDMA_IOMAPSIZE`.
    pub(crate) fn set_mappings(&mut self, count: u32) {
        self.mappings = expressible_mappings(count);
    }

    /// Limits the queue sizes to the maximum of a device.
    pub(crate) fn fit(&mut self, max_queue: u32) {
        let most = max_queue.clamp(MIN_QUEUE.into(), MAX_QUEUE) as u16;
        self.send_queue = self.send_queue.clamp(MIN_QUEUE, most);
        self.recv_queue = self.recv_queue.clamp(MIN_QUEUE, most);
    }
}

/// Limits the size of a ring, and makes it even: a receive ring is granted in halves.
fn ring(bytes: u32) -> u32 {
    bytes.clamp(MIN_RING, MAX_RING) & !1
}

/// The defaults of all sockets of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Defaults {
    pub(crate) sizing: Sizing,
    /// How long a blocking call polls before it sleeps.
    pub(crate) polling_us: u64,
}

impl Defaults {
    /// The defaults of this host, read once.
    pub(crate) fn of_machine() -> &'static Defaults {
        static READ: OnceLock<Defaults> = OnceLock::new();
        READ.get_or_init(|| Defaults::read(Path::new(FOLDER)))
    }

    fn read(folder: &Path) -> Defaults {
        let number = |name: &str, otherwise: u32| {
            let text = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(otherwise)
        };
        let mut sizing = Sizing {
            send_ring: ring(number("wmem_default", 1 << 17)),
            recv_ring: ring(number("mem_default", 1 << 17)),
            send_queue: 0,
            recv_queue: 0,
            inline: 0,
            mappings: 0,
        };
        sizing.set_send_queue(number("sqsize_default", 384));
        sizing.set_recv_queue(number("rqsize_default", 384));
        sizing.set_inline(number("inline_default", 64));
        sizing.set_mappings(number("iomap_size", 0));
        Defaults { sizing, polling_us: number("polling_time", 10).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_files_the_defaults_are_rdma_cores() {
        let defaults = Defaults::read(Path::new("/nonexistent"));
        let expected = Sizing {
            send_ring: 131_072,
            recv_ring: 131_072,
            send_queue: 384,
            recv_queue: 384,
            inline: 64,
            mappings: 0,
        };
        assert_eq!(defaults, Defaults { sizing: expected, polling_us: 10 });
    }

    #[test]
    fn sizes_stay_in_bounds() {
        let mut sizing = Defaults::read(Path::new("/nonexistent")).sizing;
        sizing.set_recv_ring(0);
        assert_eq!(sizing.recv_ring, 4096);
        sizing.set_send_ring(u32::MAX);
        assert_eq!(sizing.send_ring, 1 << 30);
        sizing.set_recv_ring(1 << 19);
        assert_eq!(sizing.recv_ring, 1 << 20);
        sizing.set_send_queue(1_000_000);
        sizing.set_recv_queue(1);
        sizing.fit(32_768);
        assert_eq!((sizing.send_queue, sizing.recv_queue), (32_768, 16));
    }
}
