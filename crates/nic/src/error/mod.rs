//! Why a call was refused.

mod cm;

pub use cm::CmRefusal;

use crate::config::ConfigError;
use crate::link::LinkError;
use ferroce_os::fork::Generation;
use ferroce_proto::qp::PostError;
use ferroce_proto::qp::state::ModifyError;
use ferroce_proto::verbs::MemoryFault;
use std::borrow::Cow;
use std::io;
use std::net::IpAddr;

/// An error of a call. What goes wrong later, on the wire, comes back as a completion or an event instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The link could not be opened.
    #[error("cannot open the device: {0}")]
    Link(#[from] LinkError),
    /// `modify` was refused.
    #[error("{0}")]
    Modify(ModifyError),
    /// A work request was refused.
    #[error("{0}")]
    Post(#[from] PostError),
    /// Faults of streams on a wire without streams.
    #[error("RoCE has no streams: FERROCE_FAULTS takes short, stall and reset only with FERROCE_WIRE=iwarp")]
    StreamFaults,
    /// The wire does not have it.
    #[error("iWARP has no {what}")]
    NotOnThisWire {
        /// What was asked for.
        what: &'static str,
    },
    /// A number is beyond what the device can do.
    #[error("{what} is {value}, the device allows {limit}")]
    Limit {
        /// Which number.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The most (or the least) there is.
        limit: u64,
    },
    /// The arguments contradict each other or the object.
    #[error("{attribute}: {why}")]
    Invalid {
        /// Which argument.
        attribute: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The GID table has no such entry.
    #[error("sgid_index is {index}, but the GID table has {len} entries; `ferroce gids` lists them")]
    NoSuchGid {
        /// What was asked for.
        index: usize,
        /// Entries there are.
        len: usize,
    },
    /// More objects of a kind than the device has.
    #[error("all {limit} {what} of the device are in use")]
    Exhausted {
        /// Objects of which kind.
        what: &'static str,
        /// How many there are.
        limit: u64,
    },
    /// Strict mode: the entries of the send queue take too much of the NIC's memory.
    #[error(
        "max_send_wr is {max_send_wr}: with these max_send_sge and max_inline_data an entry takes {entry_bytes} bytes, and the device has \
         {queue_bytes} bytes per send queue, which is {deepest} entries; ask for fewer, or for less inline data"
    )]
    SendQueueTooLarge {
        /// Entries asked for.
        max_send_wr: u32,
        /// Bytes of one.
        entry_bytes: u32,
        /// Bytes of the largest queue.
        queue_bytes: u32,
        /// Entries that fit.
        deepest: u32,
    },
    /// Strict mode: a NIC would pin more memory than the process may lock.
    #[error(
        "a NIC pins registered memory: {kib} KiB more than the {locked_kib} KiB registered so far exceed RLIMIT_MEMLOCK, which is {limit_kib} KiB; \
         raise it (`ulimit -l unlimited`, memlock in /etc/security/limits.conf, LimitMEMLOCK of systemd) or register less"
    )]
    LockedMemory {
        /// Asked for.
        kib: u64,
        /// Of all registrations of the process.
        locked_kib: u64,
        /// The limit.
        limit_kib: u64,
    },
    /// Memory cannot be used that way.
    #[error("{0}")]
    Memory(MemoryFault),
    /// The object is still in use.
    #[error("{what} is still in use by {by}")]
    Busy {
        /// Which object.
        what: &'static str,
        /// The objects that use it.
        by: Cow<'static, str>,
    },
    /// The completion queue overflowed earlier.
    #[error(
        "the completion queue overflowed: more than {depth} completions were waiting; make it deeper or poll more often"
    )]
    CqOverrun {
        /// Its depth.
        depth: usize,
    },
    /// The connection manager refused.
    #[error(transparent)]
    Cm(#[from] CmRefusal),
    /// The NIC belongs to the parent process.
    #[error("this device was opened before fork(); open it again in the child")]
    Forked,
    /// A setting cannot be understood.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The routing table has no path to the destination.
    #[error(
        "no route leads from {from} to {to}: {source}; correct the destination GID or sgid_index, or add a route (`ip route get {to} from {from}` shows the same)"
    )]
    NoRoute {
        /// The address of the source GID.
        from: IpAddr,
        /// That of the destination GID.
        to: IpAddr,
        /// The reason of the system.
        source: io::Error,
    },
    /// In strict mode: the Ethernet address of the next hop is not known.
    #[error(
        "the next hop {next_hop} on {interface}, through which {to} is reached, did not answer {} for {waited_ms} ms; check that the destination GID is right \
         and that this host is up (`ip neigh show {next_hop}`)",
        if next_hop.is_ipv4() { "ARP" } else { "neighbour solicitations" }
    )]
    NextHopSilent {
        /// The address of the destination GID.
        to: IpAddr,
        /// The router, or the destination itself.
        next_hop: IpAddr,
        /// The interface that leads there.
        interface: String,
        /// How long the answer was awaited.
        waited_ms: u64,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

impl From<ModifyError> for Error {
    fn from(e: ModifyError) -> Self {
        Error::Modify(e)
    }
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { what, source }
    }

    /// Refuses in a forked child what belongs to the process that was there at `born`.
    #[inline]
    pub(crate) fn check_process(born: Generation) -> Result<(), Error> {
        if born.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    pub(crate) fn check_limit(what: &'static str, value: u64, limit: u64) -> Result<(), Error> {
        if value > limit { Err(Error::Limit { what, value, limit }) } else { Ok(()) }
    }
}
