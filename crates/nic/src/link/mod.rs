//! Links: how packets leave the NIC and reach it.
//!
//! A link carries RoCE packets from the BTH to the padding. It adds and removes the outer headers and the ICRC.
//!
//! | file | contents |
//! |---|---|
//! | `batch` | packets in bulk, in reused memory |
//! | `single_packet` | one small packet of a queue pair, sent without a batch |
//! | `counters` | the counters of a link |
//! | `shared_port` | how the processes that share a port reach each other |
//! | `stream` | TCP streams, the wire of iWARP |
//! | `udp` | RoCEv2 on UDP port 4791, shared by the processes of one user |
//! | `faulty` | a wrapper that loses, reorders, duplicates, delays and corrupts packets, repeatably by seed |
//! | `capture` | a pcapng file of everything that crossed a link |

mod batch;
mod capture;
mod counters;
mod error;
mod faulty;
mod shared_port;
mod single_packet;
mod stream;
mod udp;

pub use ferroce_proto::qp::Attempt;
use ferroce_proto::verbs::Route;
use ferroce_proto::{Gid, Time};
use std::io;
use std::os::fd::RawFd;

pub use batch::{RxBatch, RxPacket, TxBatch, TxView};
pub(crate) use batch::{RxMeta, TxPiece};
pub use capture::Capture;
pub(crate) use capture::flush_all as flush_captures;
pub use counters::LinkCounters;
pub use error::LinkError;
pub use faulty::{FaultConfig, FaultConfigError, Faulty};
pub use ferroce_os::clock::now;
pub use ferroce_os::interfaces::{LocalAddress, local_addresses};
pub use shared_port::SharedPort;
pub use single_packet::SinglePacket;
pub(crate) use stream::{
    Closing, Segmenting, StreamExtras, StreamLink, StreamListener, StreamPiece, StreamSocket,
};
pub use udp::{UdpConfig, UdpLink};
pub(crate) use udp::{is_final_message, management_slot};

/// Byte of a management datagram, reserved and ignored by its readers, where a sender on this host writes the slot of the
/// process that a connection request is for. Links may steer by it; zero means no slot.
pub(crate) const SLOT_HINT_AT: usize = 18;

/// Carries packets between NICs.
///
/// A link adds and removes outer headers and ICRC itself, and addresses peers by the GIDs of a [`Route`]. It may lose packets
/// silently, as wires do: the transport recovers. Every loss that the link notices is counted.
pub trait Link: Send + Sync {
    /// Sends all packets and clears the batch. Packets with equal routes keep their order. Packets that the kernel refuses
    /// are counted and dropped. Several threads may send concurrently, each with its own batch.
    fn send(&self, batch: &mut TxBatch);

    /// Sends one packet without a batch. Returns [`Attempt::Declined`] if the packet needs a control message or the
    /// link does not support this; the caller then queues it in a batch.
    fn try_send_one(&self, packet: &mut SinglePacket, route: &Route) -> Attempt {
        let _ = (packet, route);
        Attempt::Declined
    }

    /// Receives without blocking and returns the number of packets added to `rx`.
    ///
    /// A long GRO batch is verified in chunks, so that its bytes are still in the L1 cache when they are used. While
    /// [`RxBatch::has_more`], a call appends the next chunk. Otherwise it replaces the contents of `rx` with new arrivals.
    ///
    /// One thread at a time: a concurrent call returns 0.
    fn receive(&self, rx: &mut RxBatch, effort: Effort) -> usize;

    /// File descriptors that are readable while `receive` has work. They stay the same for the life of the link.
    /// Wait level-triggered: one `receive` need not drain them.
    fn wait_fds(&self) -> Vec<RawFd>;

    /// Announces that the caller is about to sleep on [`Self::wait_fds`].
    fn prepare_sleep(&self) -> Sleep {
        Sleep::Allowed { deadline: None }
    }

    /// Announces that the caller of [`Self::prepare_sleep`] is awake and polls.
    fn end_sleep(&self) {}

    /// Receives packets to this group from now on. Calls are counted: each needs its `leave_multicast`.
    fn join_multicast(&self, group: Gid) -> io::Result<()>;

    /// Undoes one `join_multicast`.
    fn leave_multicast(&self, group: Gid) -> io::Result<()>;

    /// What the link supports. Constant for the life of the link.
    fn capabilities(&self) -> Capabilities;

    /// Fills in `tos` and `ttl` of received packets from now on; until then they are 0 and 64. This costs some tens of
    /// nanoseconds per packet, so only NICs with UD queue pairs, which deliver them in the GRH, request it.
    fn report_outer_fields(&self);

    /// Sends delayed packets now: the process or the device is about to end.
    fn flush(&self) {}

    /// The counters of the link.
    fn counters(&self) -> LinkCounters;
}

/// How much a call to [`Link::receive`] polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The sources with recent traffic, and the others occasionally: usually one system call. For spinning callers.
    Quick,
    /// Every source. For callers that slept on [`Link::wait_fds`] or are about to.
    Thorough,
}

/// Whether the caller of [`Link::prepare_sleep`] may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sleep {
    /// Packets are waiting: call `receive` instead.
    Pending,
    /// No packets are waiting.
    Allowed {
        /// When `receive` must be called although no descriptor is readable, on [`now`]'s clock.
        deadline: Option<Time>,
    },
}

impl Sleep {
    /// The same, with a sleep that ends at `latest` if that is earlier.
    pub(crate) fn until(self, latest: Option<Time>) -> Sleep {
        match self {
            Sleep::Pending => Sleep::Pending,
            Sleep::Allowed { deadline } => {
                Sleep::Allowed { deadline: deadline.into_iter().chain(latest).min() }
            }
        }
    }
}

/// What a link supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// [`Link::send`] takes packets whose payload lies in registered memory. `false` for links that read the payload from
    /// the batch.
    pub external_payloads: bool,
}
