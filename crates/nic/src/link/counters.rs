//! The counters of a link.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// The counters of a link since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        #[non_exhaustive]
        pub struct LinkCounters {
            $($(#[$doc])* pub $name: u64,)+
            /// Datagrams that the kernel dropped because a receive buffer was full.
            pub rx_overruns: u64,
            /// Size of the largest receive buffer, in bytes, as the kernel granted it.
            pub rcvbuf_bytes: u64,
        }

        /// The running counters. Relaxed: readers do not rely on the order of two counters.
        #[derive(Debug, Default)]
        pub(crate) struct RunningCounters {
            $(pub(crate) $name: AtomicU64,)+
        }

        impl std::iter::Sum for LinkCounters {
            fn sum<I: Iterator<Item = Self>>(links: I) -> Self {
                links.fold(LinkCounters::default(), |a, b| LinkCounters {
                    $($name: a.$name + b.$name,)+
                    rx_overruns: a.rx_overruns + b.rx_overruns,
                    rcvbuf_bytes: a.rcvbuf_bytes.max(b.rcvbuf_bytes),
                })
            }
        }

        impl RunningCounters {
            /// The counters as they are now; the gauges of the socket are left at zero.
            pub(crate) fn snapshot(&self) -> LinkCounters {
                LinkCounters {
                    $($name: self.$name.load(Relaxed),)+
                    rx_overruns: 0,
                    rcvbuf_bytes: 0,
                }
            }
        }
    };
}

counters! {
    /// Packets given to the kernel.
    tx_packets,
    /// Their bytes, from the BTH to the ICRC.
    tx_bytes,
    /// System calls that sent.
    tx_calls,
    /// GSO runs.
    gso_batches,
    /// Packets that the kernel refused and that were dropped.
    send_errors,
    /// Packets longer than the path takes; they are among `send_errors`.
    too_long,
    /// Packets received intact, forwarded ones included.
    rx_packets,
    /// Their bytes, from the BTH to the ICRC.
    rx_bytes,
    /// System calls that received something or found nothing.
    rx_calls,
    /// Packets whose ICRC was wrong.
    bad_icrc,
    /// Datagrams too short to be a packet, or with invalid headers.
    malformed,
    /// Packets for another process of this host that arrived here.
    misdelivered,
    /// Misdelivered packets that were forwarded to their process.
    forwarded_out,
    /// Packets that another process received and forwarded to this one.
    forwarded_in,
    /// Packets for a process that is gone, or whose queue was full.
    forward_errors,
    /// How often the order of the processes on the port had to be repaired.
    repairs,
    /// Packets that fault injection lost.
    injected_losses,
    /// Packets that fault injection sent twice.
    injected_duplicates,
    /// Packets, or reads of streams, that fault injection damaged.
    injected_corruptions,
    /// Packets that fault injection reordered.
    injected_reorders,
    /// Packets to which fault injection added an ECN mark.
    injected_marks,
    /// Reads and writes of streams that fault injection cut short.
    injected_shorts,
    /// Reads and writes of streams that fault injection stalled.
    injected_stalls,
    /// Streams that fault injection reset.
    injected_resets,
    /// Packets that could not be written to the capture file.
    capture_errors,
    /// Packets given to processes of this host through shared memory; not among `tx_packets`.
    local_tx_packets,
    /// Their bytes, from the BTH to the padding.
    local_tx_bytes,
    /// Packets taken from processes of this host through shared memory; not among `rx_packets`.
    local_rx_packets,
    /// Their bytes, from the BTH to the padding.
    local_rx_bytes,
    /// Packets that found a ring full and waited.
    local_waited,
    /// Packets for local peers that were lost: their process is gone, or has not read for a long time.
    local_lost,
    /// Packets to multicast groups received over UDP and dropped, because shared memory delivered them too.
    local_echoes,
    /// How often a sleeping process was woken.
    local_bells,
    /// One-sided operations on memory of other processes that is mapped here.
    direct_mapped,
    /// One-sided operations whose bytes the kernel copied between the processes.
    direct_copied,
    /// Rendezvous sends: messages that a process of this host copies from this one's memory.
    rendezvous_sends,
    /// Messages copied from memory of a local peer that is mapped here.
    messages_fetched,
    /// One-sided operations, and messages of a local peer, that a GPU copied directly, not through host memory; of all devices of the process.
    direct_gpu,
    /// Copies between the memory of a GPU and packets, several to a long message; of all devices of the process.
    staged_gpu,
}

/// Adds to a counter that only the holder of the receiver changes: without the cost of an atomic addition.
pub(crate) fn add_alone(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Adds to a running counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
