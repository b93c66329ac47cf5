//! Links: how packets leave the NIC and reach it.
//!
//! A link carries RoCEv2 packets from the BTH to the padding; outer headers and ICRC are its own affair.
//!
//! | file | what lives there |
//! |---|---|
//! | `batch` | packets in bulk, in memory that is used again |
//! | `short` | one short packet of a queue pair, sent at once |
//! | `counters` | what a link did |
//! | `shared_port` | how the processes that share a port reach each other |
//! | `udp` | RoCEv2 on UDP port 4791, shared by the processes of one user |
//! | `faulty` | a wrapper that loses, reorders, duplicates, delays and damages packets by seed |
//! | `capture` | a pcapng file of everything that crossed a link |

mod batch;
mod capture;
mod clock;
mod counters;
mod error;
mod faulty;
mod shared_port;
mod short;
mod udp;

use ferroce_proto::verbs::Route;
use ferroce_proto::{Gid, Time};
use std::io;
use std::os::fd::RawFd;

pub use batch::{RxBatch, RxPacket, TxBatch, TxView};
pub(crate) use batch::{RxMeta, TxPiece};
pub use capture::Capture;
pub(crate) use capture::flush_all as flush_captures;
pub(crate) use clock::coarse_now;
pub use clock::now;
pub(crate) use clock::wall_clock_ns;
pub use counters::LinkCounters;
pub use error::LinkError;
pub use faulty::{FaultConfig, FaultConfigError, Faulty};
pub use shared_port::SharedPort;
pub use short::Short;
pub use udp::{LocalAddress, UdpConfig, UdpLink, local_addresses};
pub(crate) use udp::{Origin, is_last_word, management_slot, open_udp};

/// Byte of a management datagram, reserved and ignored by its readers, where a sender on this host names the slot of the
/// process that an offer is for. Links may deliver by it; zero says nothing.
pub(crate) const SLOT_HINT_AT: usize = 18;

/// Something that carries packets between NICs.
///
/// Links lose packets silently, as wires do: the transport recovers. Every loss that the link notices is counted.
pub trait Link: Send + Sync {
    /// Sends all packets and clears the batch. Packets with equal routes keep their order. What the kernel refuses is
    /// counted and dropped. Any number of threads may send at a time, each with its batch.
    fn send(&self, batch: &mut TxBatch);

    /// Sends the packet in `short` at once, if it can leave with nothing said beside it. False: it was not sent, and belongs in a batch.
    fn send_short(&self, short: &mut Short, route: &Route) -> bool {
        let _ = (short, route);
        false
    }

    /// Whether `send` takes packets whose payload lies in registered memory and not in the batch. Not if it looks at the
    /// bytes on their way.
    fn takes_external(&self) -> bool {
        false
    }

    /// Replaces the contents of `rx` by what has arrived, without blocking, and returns the number of packets. Some may be left for
    /// [`Self::receive_more`]: a long train of packets is verified piece by piece, so that the bytes are still near when they are wanted.
    ///
    /// A spinning caller passes `thorough = false` and pays for one system call: sources without traffic lately are
    /// looked at only now and then. A caller that slept on [`Self::wait_fds`], or is about to, passes `true` and every
    /// source is looked at.
    ///
    /// One thread at a time: a second one finds nothing.
    fn receive_some(&self, rx: &mut RxBatch, thorough: bool) -> usize;

    /// Adds to `rx` some of what [`Self::receive_some`] left, and returns whether there was any. Whoever does not ask until there is none
    /// loses the rest.
    fn receive_more(&self, rx: &mut RxBatch) -> bool {
        let _ = rx;
        false
    }

    /// Both: all that has arrived.
    fn receive(&self, rx: &mut RxBatch, thorough: bool) -> usize {
        self.receive_some(rx, thorough);
        while rx.has_more && self.receive_more(rx) {}
        rx.len()
    }

    /// File descriptors that are readable while `receive` has work. They stay the same for the life of the link.
    /// Level-triggered waiting only: one `receive` need not drain them.
    fn wait_fds(&self) -> Vec<RawFd>;

    /// When `receive` must be called next although no descriptor is readable; `None` if never. On [`now`]'s clock.
    fn deadline(&self) -> Option<Time>;

    /// Receives packets to this group from now on. Calls are counted: each needs its `leave_multicast`.
    fn join_multicast(&self, group: Gid) -> io::Result<()>;

    /// Takes back one `join_multicast`.
    fn leave_multicast(&self, group: Gid) -> io::Result<()>;

    /// What the link did so far.
    fn counters(&self) -> LinkCounters;

    /// Has `tos` and `ttl` of received packets filled in from now on; before, they are 0 and 64. Costs some tens of
    /// nanoseconds per packet, so only NICs with datagram queue pairs, which show them to the application, ask for it.
    fn report_outer_fields(&self);

    /// Sends what is held back, whatever its time: the link is about to go, and what is on the wire by then arrives.
    fn flush(&self) {}

    /// The caller is about to sleep on [`Self::wait_fds`]. False if it must not: something has arrived already.
    fn about_to_sleep(&self) -> bool {
        true
    }

    /// The caller of [`Self::about_to_sleep`] is awake again.
    fn woke_up(&self) {}
}
