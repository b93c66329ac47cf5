//! The device: the state of its objects, and its queries.

use crate::addresses::{AddressTable, source_towards};
use crate::cm::{CmChannel, CmId, CmService};
use crate::config::{Config, Wire};
use crate::contexts::{Context, MoreContexts};
use crate::counters::Counters;
use crate::device_attr::{DeviceAttr, GID_TABLE_LEN};
use crate::device_memory::{Budget, DeviceMemory};
use crate::engine::{Background, Engine, QpPage, QpQueues};
use crate::error::Error;
use crate::exit_report;
use crate::gids::GidEntry;
use crate::limits::DeviceLimits;
use crate::link::now;
use crate::memory::WatchedNic;
use crate::next_hop::check_next_hop;
use crate::queues::{AsyncEvent, CompletionChannel, EventHub, EventQueue, EventSource};
use crate::quota::Quotas;
use crate::raw::RawPort;
use crate::xrc::XrcDomains;
use ferroce_os::fork::Generation;
use ferroce_os::lock::Mutex;
use ferroce_proto::Gid;
use ferroce_proto::cm::{CmCounters, PortSpace};
use ferroce_proto::qp::state::AttrLimits;
use ferroce_proto::verbs::{AddressVector, EventKind, Mtu, Route};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct NicInner {
    /// The first progress context.
    pub(crate) engine: Arc<Engine>,
    /// The others.
    pub(crate) more: MoreContexts,
    /// What it was opened with.
    pub(crate) config: Config,
    pub(crate) limits: DeviceLimits,
    /// There with [`Config::watch`].
    pub(crate) watch: Option<WatchedNic>,
    /// Bytes that one queue pair may have in flight.
    pub(crate) window_bytes: u32,
    pub(crate) xrc_domains: XrcDomains,
    pub(crate) device_memory: Budget,
    pub(crate) quotas: Quotas,
    pub(crate) raw: Mutex<Weak<RawPort>>,
    pub(crate) table: Arc<AddressTable>,
    pub(crate) events: Arc<EventHub>,
    pub(crate) cm: Arc<CmService>,
    /// There until the device is dropped.
    pub(crate) background: Option<Background>,
    pub(crate) born: Generation,
    pub(crate) ids: AtomicU32,
}

/// An open device: a software NIC of this process. Cheap to clone; the NIC lives until the last clone and object.
/// Clones share one queue of events; see [`Nic::session`] for another way.
#[derive(Clone)]
pub struct Nic {
    inner: Arc<NicInner>,
    events: Arc<EventQueue>,
}

/// A weak reference to a NIC, which does not keep it open.
#[derive(Clone)]
pub(crate) struct WeakNic(Weak<NicInner>);

impl WeakNic {
    /// A new session, if the NIC is still open.
    pub(crate) fn upgrade(&self) -> Option<Result<Nic, Error>> {
        self.0.upgrade().map(Nic::over)
    }
}

impl Nic {
    /// A handle with events of its own.
    pub(crate) fn over(inner: Arc<NicInner>) -> Result<Nic, Error> {
        let events = inner.events.subscribe()?;
        Ok(Nic { inner, events })
    }

    /// Another handle on the same NIC, with its own event queue: it gets the events of the device, and of the objects that are created
    /// through it.
    pub fn session(&self) -> Result<Nic, Error> {
        Nic::over(self.inner.clone())
    }

    pub(crate) fn downgrade(&self) -> WeakNic {
        WeakNic(Arc::downgrade(&self.inner))
    }

    /// Raises `DeviceFatal` in every session. For the crates above, after an internal error.
    pub fn raise_fatal(&self) {
        self.inner.events.raise(EventKind::DeviceFatal, EventSource::Device);
        self.inner.cm.remove_device();
    }

    /// What it can do.
    pub fn attributes(&self) -> DeviceAttr {
        DeviceAttr::of(&self.inner.table, &self.inner.limits, self.inner.window_bytes, self.wire())
    }

    /// Its limits.
    pub fn limits(&self) -> &DeviceLimits {
        &self.inner.limits
    }

    /// Whether it watches what the program does with buffers and objects in use: see [`Config::watch`].
    pub fn is_watched(&self) -> bool {
        self.inner.watch.is_some()
    }
    /// Whether it refuses what hardware would refuse: see [`Config::strict`].
    pub fn is_strict(&self) -> bool {
        self.inner.config.strict.is_some()
    }

    /// The wire that it was opened for.
    pub fn wire(&self) -> Wire {
        self.inner.config.wire
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
        self.inner.engine.shared_port.slot()
    }

    /// Everything it counted.
    pub fn counters(&self) -> Counters {
        self.inner.engine.report(QpPage::ALL).counters
    }

    /// Takes a piece of device memory whose first byte is aligned to `1 << log_align`. Works in a forked child too, since
    /// it uses only the device's budget.
    pub fn alloc_device_memory(&self, len: usize, log_align: u32) -> Result<Arc<DeviceMemory>, Error> {
        Ok(Arc::new(DeviceMemory::new(len, log_align, &self.inner.device_memory)?))
    }

    /// The clock that completions are stamped with ([`crate::Cq::stamp_completions`]): nanoseconds on `CLOCK_MONOTONIC`.
    pub fn raw_clock_ns(&self) -> u64 {
        now().0
    }

    /// Makes an event channel of the connection manager.
    pub fn create_cm_channel(&self) -> Result<CmChannel, Error> {
        self.check_process()?;
        CmChannel::new()
    }

    /// Makes an id of the connection manager, whose events go to `channel`. The cookie is the program's.
    pub fn create_cm_id(
        &self,
        channel: &CmChannel,
        space: PortSpace,
        cookie: u64,
    ) -> Result<Arc<CmId>, Error> {
        self.check_process()?;
        Ok(CmId::new(self.inner.cm.clone(), self.inner.clone(), channel, space, cookie))
    }

    /// What the connection manager counted.
    pub fn cm_counters(&self) -> CmCounters {
        self.inner.cm.counters()
    }

    /// Makes a completion channel.
    pub fn create_channel(&self) -> Result<Arc<CompletionChannel>, Error> {
        self.inner.alive()?;
        Ok(Arc::new(CompletionChannel::new()?))
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

    /// The event queue of this handle on the device.
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

/// The entry that packets to this destination come from: the requested one, except that a group of the other
/// IP version is reached from an address of that version, preferably of the same interface.
fn sender_to<'a>(requested: &'a GidEntry, dgid: Gid, entries: &'a [GidEntry]) -> &'a GidEntry {
    let fits = |entry: &&GidEntry| entry.gid.to_ipv4().is_some() == dgid.to_ipv4().is_some();
    if fits(&requested) || !dgid.is_multicast() {
        return requested;
    }
    let near = entries.iter().filter(fits).find(|entry| entry.if_index == requested.if_index);
    near.or_else(|| entries.iter().find(fits)).unwrap_or(requested)
}

impl NicInner {
    /// Whether this is the process that opened the device.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        Error::check_process(self.born)
    }

    /// Refuses in a process that has not opened the device, and on iWARP: only RoCE has this.
    pub(crate) fn only_on_roce(&self, what: &'static str) -> Result<(), Error> {
        self.alive()?;
        match self.config.wire {
            Wire::Roce => Ok(()),
            Wire::Iwarp => Err(Error::NotOnThisWire { what }),
        }
    }

    pub(crate) fn next_id(&self) -> u32 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The port for raw frames, on the interface of the first GID.
    pub(crate) fn raw_port(&self) -> Result<Arc<RawPort>, Error> {
        self.only_on_roce("raw packets")?;
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
            max_rd_atomic: self.limits.max_rd_atomic,
            max_dest_rd_atomic: self.limits.max_rd_atomic,
            pkeys: 1,
            gids: GID_TABLE_LEN as u16,
            active_mtu: path_mtu.unwrap_or_else(|| self.largest_mtu()),
        }
    }

    /// Looks up the source address and checks that packets can get from it to the destination.
    pub(crate) fn resolve(&self, vector: &AddressVector, entropy: u16) -> Result<Route, Error> {
        let entries = self.table.entries.read();
        let index = usize::from(vector.sgid_index);
        let requested = entries.get(index).ok_or(Error::NoSuchGid { index, len: entries.len() })?;
        let source = sender_to(requested, vector.dgid, &entries);
        if source.gid.to_ipv4().is_some() != vector.dgid.to_ipv4().is_some() {
            return Err(Error::Invalid {
                attribute: "sgid_index",
                why: "source and destination GID are not of the same IP version",
            });
        }
        let is_here = entries.iter().any(|entry| entry.gid == vector.dgid);
        if !is_here && !vector.dgid.is_multicast() {
            // As Linux does when it resolves the Ethernet address.
            let find = |from| source_towards(from, vector.dgid.to_ip(), source.if_index);
            let (from, to) = (source.address, vector.dgid.to_ip());
            find(None)
                .or_else(|error| find(Some(from)).map_err(|_| error))
                .map_err(|source| Error::NoRoute { from, to, source })?;
        }
        let route = Route {
            sgid: source.gid,
            dgid: vector.dgid,
            flow_label: vector.flow_label,
            hop_limit: if vector.hop_limit == 0 { 64 } else { vector.hop_limit },
            traffic_class: vector.traffic_class,
            entropy: if vector.flow_label == 0 { entropy } else { vector.flow_label as u16 },
        };
        let (from, to, scope_id) = (source.address, vector.dgid.to_ip(), source.if_index);
        drop(entries);
        if self.config.strict.is_some() && !is_here && !vector.dgid.is_multicast() {
            check_next_hop(from, to, scope_id, |index| self.table.interface_name(index))?;
        }
        Ok(route)
    }

    /// A progress context by number; the first one if there is none.
    #[inline]
    pub(crate) fn context(&self, index: u32) -> &Arc<Engine> {
        self.more.get(index).map_or(&self.engine, |context| &context.engine)
    }

    /// The progress context for a queue pair with these completion queues.
    pub(crate) fn context_for(&self, queues: &QpQueues) -> &Arc<Engine> {
        self.context(self.more.assign([&queues.recv_cq, &queues.send_cq], |index| self.open_context(index)))
    }

    /// The first progress context, for a queue pair with these completion queues.
    pub(crate) fn first_context_for(&self, queues: &QpQueues) -> &Arc<Engine> {
        [&queues.recv_cq, &queues.send_cq].iter().for_each(|cq| self.more.enter_first(cq));
        &self.engine
    }
}

impl Drop for NicInner {
    fn drop(&mut self) {
        let background = self.background.take();
        let more: Vec<Context> = std::mem::take(&mut self.more).into_all().collect();
        if self.alive().is_ok() {
            self.engine.close_connections();
            drop(background);
            let (backgrounds, engines): (Vec<_>, Vec<_>) =
                more.into_iter().map(|context| (context.background, context.engine)).unzip();
            drop(backgrounds);
            engines.iter().chain([&self.engine]).for_each(|engine| engine.settle_closed());
            exit_report::write(&self.engine);
        } else {
            more.into_iter().map(|context| context.background).chain(background).for_each(Background::forget);
        }
    }
}
