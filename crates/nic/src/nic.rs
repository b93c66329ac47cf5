//! The device: opening it, asking it, making objects of it.

use crate::addresses::{AddressTable, FollowAddresses};
use crate::cm::CmService;
use crate::config::{Config, LinkChoice};
use crate::counters::Counters;
use crate::engine::{Background, Chore, Engine, MAX_QP, Pulse};
use crate::error::Error;
use crate::fork::Generation;
use crate::gids::{self, GidEntry};
use crate::inspect::{Answerer, Subject};
use crate::link::{Capture, Faulty, Link, UdpConfig, UdpLink, now};
use crate::local::{Fabric, LocalLink};
use crate::lock::{Mutex, RwLock};
use crate::log;
use crate::memory::{Budget, DeviceMemory};
use crate::objects::{
    AsyncEvent, CompletionChannel, Cq, CqCore, EventHub, EventQueue, EventSource, Pd, XrcDomains,
};
use crate::raw::RawPort;
use crate::registry;
use crate::watch::AddressWatch;
use ferroce_proto::cc::Share;
use ferroce_proto::qp::state::AttrLimits;
use ferroce_proto::verbs::{AddressVector, EventKind, Mtu, Route};
use ferroce_proto::{Gid, PdId};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Name of the device, in every process.
pub const DEVICE_NAME: &str = "ferroce0";
/// Most scatter/gather entries of a work request.
pub const MAX_SGE: u32 = 32;
/// Most work requests of a queue.
pub const MAX_QP_WR: u32 = 1 << 16;
/// Most inline bytes of a send.
pub const MAX_INLINE: u32 = 1024;
/// Most READs and atomics outstanding, in either direction.
pub const MAX_RD_ATOMIC: u8 = 128;
/// The window is not larger than this by default: more hides no more of a peer's delays.
const MAX_DEFAULT_WINDOW: u32 = 1024 * 1024;
/// Entries that the GID table has room for.
pub const GID_TABLE_LEN: usize = 256;

#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct NicInner {
    pub(crate) engine: Arc<Engine>,
    /// Bytes that one queue pair may have in flight.
    pub(crate) window_bytes: u32,
    /// Bytes that all of them may have in flight together.
    pub(crate) share: Arc<Share>,
    pub(crate) xrc_domains: XrcDomains,
    device_memory: Budget,
    raw: Mutex<Weak<RawPort>>,
    table: Arc<AddressTable>,
    events: Arc<EventHub>,
    background: Mutex<Option<Arc<Background>>>,
    born: Generation,
    ids: AtomicU32,
}

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
    /// Largest path MTU, in bytes, that every interface carries which leads out of this host.
    pub active_mtu: u32,
    /// Largest path MTU of any of its addresses.
    #[serde(default)]
    pub largest_mtu: u32,
    /// Bytes one queue pair may have in flight.
    pub window_bytes: u32,
}

impl DeviceAttr {
    fn of(table: &AddressTable, window_bytes: u32) -> DeviceAttr {
        DeviceAttr {
            max_qp: MAX_QP,
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE,
            max_inline_data: MAX_INLINE,
            max_cqe: crate::objects::MAX_CQE,
            max_mr: 1 << 20,
            max_rd_atomic: MAX_RD_ATOMIC,
            max_msg_sz: ferroce_proto::qp::MAX_MESSAGE,
            gid_tbl_len: GID_TABLE_LEN,
            active_mtu: table.active_mtu().bytes(),
            largest_mtu: table.largest_mtu().bytes(),
            window_bytes,
        }
    }
}

/// An open device: a software NIC of this process. Cheap to clone; the NIC lives until the last clone and object.
/// Clones share one queue of events; see [`Nic::session`] for another way.
#[derive(Clone)]
pub struct Nic {
    pub(crate) inner: Arc<NicInner>,
    events: Arc<EventQueue>,
}

/// A way back to a NIC that does not keep it open.
#[derive(Clone)]
pub(crate) struct WeakNic(Weak<NicInner>);

impl WeakNic {
    /// A new session, if the NIC is still open.
    pub(crate) fn upgrade(&self) -> Option<Result<Nic, Error>> {
        self.0.upgrade().map(Nic::over)
    }
}

impl Nic {
    /// Opens the device.
    pub fn open(config: Config) -> Result<Nic, Error> {
        let born = Generation::current();
        // First of all: a process that has only one thread yet need not wait for it.
        crate::lock::announce();
        let entries = gids::read(config.addresses.as_deref())?;
        let ways = open_ways(&config)?;
        Self::with_ways(&config, ways, entries, born)
    }

    fn with_ways(
        config: &Config,
        ways: Ways,
        entries: Vec<GidEntry>,
        born: Generation,
    ) -> Result<Nic, Error> {
        let events = Arc::new(EventHub::default());
        let pulse = Arc::new(Pulse::new().map_err(Error::system("creating an event descriptor"))?);
        let engine = Arc::new(Engine::new(ways.link, ways.fabric, pulse));
        let table = Arc::new(AddressTable {
            wanted: config.addresses.clone(),
            mtu_wish: config.mtu,
            entries: RwLock::new(entries),
            // Without netlink (some sandboxes) the table is simply what it was at the start.
            watch: AddressWatch::open().ok(),
            events: events.clone(),
        });
        let ports = registry::own_directory().and_then(|d| registry::Ports::open(d, engine.link.slot())).ok();
        let service = CmService::new(engine.link.slot(), ports, table.clone(), config.cm_secret.clone());
        let _ = engine.cm.set(service);
        crate::exit::remember(&engine);
        crate::farewell::announce(&engine);
        let half_buffer = engine.link.counters().rcvbuf_bytes / 2;
        let window_bytes = config.window_bytes.unwrap_or_else(|| default_window(half_buffer));
        let inner = NicInner {
            window_bytes,
            share: Share::new(u32::try_from(half_buffer).unwrap_or(u32::MAX).max(window_bytes)),
            engine,
            xrc_domains: XrcDomains::default(),
            device_memory: Budget::default(),
            raw: Mutex::default(),
            table,
            events,
            background: Mutex::new(None),
            born,
            ids: AtomicU32::new(1),
        };
        // From here on packets for anybody may land at our socket (steering is a hint): somebody must be there to pass
        // them on, also while the program does nothing.
        inner.background()?;
        Nic::over(Arc::new(inner))
    }

    fn over(inner: Arc<NicInner>) -> Result<Nic, Error> {
        let events = inner.events.subscribe()?;
        Ok(Nic { inner, events })
    }

    /// Another handle on the same NIC, with a queue of events of its own: it hears of the device, and of the objects
    /// that are made through it.
    pub fn session(&self) -> Result<Nic, Error> {
        Nic::over(self.inner.clone())
    }

    pub(crate) fn downgrade(&self) -> WeakNic {
        WeakNic(Arc::downgrade(&self.inner))
    }

    /// Tells every session that the device failed. For the rooms above, when something went wrong that must not.
    pub fn raise_fatal(&self) {
        self.inner.events.raise(EventKind::DeviceFatal, EventSource::Device);
        self.inner.engine.remove_device();
    }

    /// What it can do.
    pub fn attributes(&self) -> DeviceAttr {
        DeviceAttr::of(&self.inner.table, self.inner.window_bytes)
    }

    /// The GID table.
    pub fn gids(&self) -> Vec<GidEntry> {
        self.inner.table.entries.read().clone()
    }

    /// One entry of the GID table.
    pub fn gid(&self, index: usize) -> Option<GidEntry> {
        self.inner.table.entries.read().get(index).cloned()
    }

    /// Slot of this NIC among the user's processes: the high eight bits of its queue pair numbers.
    pub fn slot(&self) -> u8 {
        self.inner.engine.link.slot()
    }

    /// Everything it counted.
    pub fn counters(&self) -> Counters {
        self.inner.engine.report(usize::MAX).0
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&self) -> Result<Arc<Pd>, Error> {
        self.inner.alive()?;
        let id = PdId(self.inner.next_id());
        Ok(Arc::new(Pd { id, nic: self.inner.clone(), events: self.events.clone() }))
    }

    /// The same protection domain, for objects whose events this handle on the device hears.
    pub fn share_pd(&self, pd: &Pd) -> Arc<Pd> {
        Arc::new(Pd { id: pd.id, nic: pd.nic.clone(), events: self.events.clone() })
    }

    /// Takes a piece of device memory whose first byte is aligned to `1 << log_align`. Works in a forked child too: it
    /// needs nothing of the device but its budget.
    pub fn alloc_device_memory(&self, len: usize, log_align: u32) -> Result<Arc<DeviceMemory>, Error> {
        Ok(Arc::new(DeviceMemory::new(len, log_align, &self.inner.device_memory)?))
    }

    /// The clock that completions are stamped with ([`Cq::stamp_completions`]): nanoseconds on `CLOCK_MONOTONIC`.
    pub fn raw_clock_ns(&self) -> u64 {
        now().0
    }

    /// Makes a completion channel.
    pub fn create_channel(&self) -> Result<Arc<CompletionChannel>, Error> {
        self.inner.alive()?;
        Ok(Arc::new(CompletionChannel::new()?))
    }

    /// Makes a completion queue of `depth` entries; `cookie` comes back with its channel events.
    pub fn create_cq(
        &self,
        depth: u32,
        channel: Option<&Arc<CompletionChannel>>,
        cookie: u64,
    ) -> Result<Cq, Error> {
        self.inner.alive()?;
        if depth == 0 {
            return Err(Error::Invalid {
                attribute: "cqe",
                why: "a completion queue needs at least one entry",
            });
        }
        Error::check_limit("cqe", depth.into(), crate::objects::MAX_CQE.into())?;
        let engine = &self.inner.engine;
        let core = CqCore::new(
            self.inner.next_id(),
            cookie,
            depth,
            channel.cloned(),
            engine.pulse.clone(),
            self.events.clone(),
        );
        Ok(Cq::new(core, self.inner.clone()))
    }

    /// Waits for an asynchronous event; `WouldBlock` if the descriptor was set to non-blocking and there is none,
    /// `Interrupted` after a signal.
    pub fn wait_event(&self) -> std::io::Result<AsyncEvent> {
        self.events.next()
    }

    /// An asynchronous event, if one waits.
    pub fn try_event(&self) -> Option<AsyncEvent> {
        self.events.try_next()
    }

    /// Descriptor that is readable while an asynchronous event waits.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// Where the events of this handle on the device wait.
    pub(crate) fn event_queue(&self) -> &Arc<EventQueue> {
        &self.events
    }

    pub(crate) fn inner(&self) -> &Arc<NicInner> {
        &self.inner
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Whether this is the process that opened the device; an error in a forked child.
    pub fn check_process(&self) -> Result<(), Error> {
        self.inner.alive()
    }
}

/// A window that fits the receive buffer, as far as one can know: the peer's is not ours, but machines of one network
/// tend to be set up alike. The kernel counts its own overhead in, so half of it is for data.
fn default_window(half_buffer: u64) -> u32 {
    half_buffer.clamp(64 * 1024, u64::from(MAX_DEFAULT_WINDOW)) as u32
}

/// The entry that packets to this destination come from: the one that was asked for, except that a group of the other
/// IP version is reached from an address of that version, preferably of the same interface.
fn sender_to<'a>(asked: &'a GidEntry, dgid: Gid, entries: &'a [GidEntry]) -> &'a GidEntry {
    let fits = |entry: &&GidEntry| entry.gid.to_ipv4().is_some() == dgid.to_ipv4().is_some();
    if fits(&asked) || !dgid.is_multicast() {
        return asked;
    }
    let near = entries.iter().filter(fits).find(|entry| entry.if_index == asked.if_index);
    near.or_else(|| entries.iter().find(fits)).unwrap_or(asked)
}

/// The GID table that a device opened with these settings has. Opens nothing, so it works while the port is taken.
pub fn gid_table(config: &Config) -> Result<Vec<GidEntry>, Error> {
    gids::read(config.addresses.as_deref())
}

/// How packets leave and arrive, and the same-host fabric if that is part of it.
struct Ways {
    link: Arc<dyn Link>,
    fabric: Option<Arc<Fabric>>,
}

/// Opens the link, with what was asked for around it.
fn open_ways(config: &Config) -> Result<Ways, Error> {
    let capture = config.capture.as_deref().map(Capture::create).transpose();
    let udp = Arc::new(UdpLink::open(&UdpConfig {
        bind: config.addresses.clone(),
        gso: config.offload,
        gro: config.offload,
        capture: capture.map_err(Error::system("creating the capture file"))?.map(Arc::new),
        ..UdpConfig::default()
    })?);
    if let Some(faults) = &config.faults {
        return Ok(Ways { link: Arc::new(Faulty::new(udp, *faults)), fabric: None });
    }
    if config.link == LinkChoice::Udp || config.capture.is_some() {
        return Ok(Ways { link: udp, fabric: None });
    }
    match LocalLink::open(udp.clone(), config.adopt) {
        Ok(local) => {
            let fabric = Some(local.fabric().clone());
            Ok(Ways { link: Arc::new(local), fabric })
        }
        Err(why) => {
            log::choice(format_args!(
                "UDP to processes of this host too: no shared memory with them ({why})"
            ));
            Ok(Ways { link: udp, fabric: None })
        }
    }
}

impl NicInner {
    /// Whether this is the process that opened the device.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        if self.born.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    pub(crate) fn next_id(&self) -> u32 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The way to whole frames, on the interface of the first GID.
    pub(crate) fn raw_port(&self) -> Result<Arc<RawPort>, Error> {
        let mut known = self.raw.lock();
        if let Some(port) = known.upgrade() {
            return Ok(port);
        }
        let entries = self.table.entries.read();
        let first = entries.first().ok_or(Error::NoSuchGid { index: 0, len: 0 })?;
        let port = Arc::new(RawPort::open(first)?);
        *known = Arc::downgrade(&port);
        Ok(port)
    }

    /// Largest path MTU of any path.
    pub(crate) fn largest_mtu(&self) -> Mtu {
        self.table.largest_mtu()
    }

    /// What attributes may be, for a queue pair on this path.
    pub(crate) fn attr_limits(&self, route: Option<&Route>) -> AttrLimits {
        let path_mtu = route.map(|route| self.table.mtu_between(route.sgid, route.dgid));
        AttrLimits {
            max_rd_atomic: MAX_RD_ATOMIC,
            max_dest_rd_atomic: MAX_RD_ATOMIC,
            pkeys: 1,
            gids: GID_TABLE_LEN as u16,
            active_mtu: path_mtu.unwrap_or_else(|| self.largest_mtu()),
        }
    }

    /// Looks up the source address and checks that packets can get from it to the destination.
    pub(crate) fn resolve(&self, vector: &AddressVector, entropy: u16) -> Result<Route, Error> {
        let entries = self.table.entries.read();
        let index = usize::from(vector.sgid_index);
        let asked = entries.get(index).ok_or(Error::NoSuchGid { index, len: entries.len() })?;
        let source = sender_to(asked, vector.dgid, &entries);
        if source.gid.to_ipv4().is_some() != vector.dgid.to_ipv4().is_some() {
            return Err(Error::Invalid {
                attribute: "sgid_index",
                why: "source and destination GID are not of the same IP version",
            });
        }
        Ok(Route {
            sgid: source.gid,
            dgid: vector.dgid,
            flow_label: vector.flow_label,
            hop_limit: if vector.hop_limit == 0 { 64 } else { vector.hop_limit },
            traffic_class: vector.traffic_class,
            entropy: if vector.flow_label == 0 { entropy } else { vector.flow_label as u16 },
        })
    }

    /// The background thread, started if it is not there yet.
    pub(crate) fn background(&self) -> Result<Arc<Background>, Error> {
        let mut background = self.background.lock();
        if let Some(running) = &*background {
            return Ok(running.clone());
        }
        let follow = FollowAddresses::new(self.table.clone(), self.engine.clone());
        let mut chores: Vec<Box<dyn Chore>> = vec![Box::new(follow)];
        chores.extend(self.answerer().map(|answerer| Box::new(answerer) as Box<dyn Chore>));
        let events = self.events.clone();
        let engine = Arc::downgrade(&self.engine);
        let on_panic = move || {
            events.raise(EventKind::DeviceFatal, EventSource::Device);
            engine.upgrade().inspect(|engine| engine.remove_device());
        };
        let started = Arc::new(Background::start(self.engine.clone(), chores, on_panic)?);
        *background = Some(started.clone());
        Ok(started)
    }

    /// Answers `ferroce counters`. A NIC that cannot be asked still works, so there is no error.
    fn answerer(&self) -> Option<Answerer> {
        let (table, window_bytes) = (self.table.clone(), self.window_bytes);
        let subject = Subject {
            engine: self.engine.clone(),
            attributes: Box::new(move || DeviceAttr::of(&table, window_bytes)),
            since: std::time::Instant::now(),
        };
        Answerer::open(&registry::own_directory().ok()?, subject, self.born).ok()
    }
}

impl Drop for NicInner {
    fn drop(&mut self) {
        let background = self.background.get_mut().take();
        if self.alive().is_ok() {
            self.engine.close_connections();
            drop(background);
            self.engine.settle();
            crate::farewell::write(&self.engine);
        } else if let Some(background) = background.and_then(Arc::into_inner) {
            background.forget();
        }
    }
}
