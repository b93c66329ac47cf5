//! Devices.

use crate::cq::Cq;
use crate::error::Error;
use crate::in_flight::InFlight;
use crate::macros::debug;
use crate::pd::Pd;
use crate::reactor::{self, Reactor};
use crate::sleep;
use ferroce_nic::{AsyncEvent, Config, Counters, DeviceAttr, GidEntry, Nic, Wire};
use ferroce_proto::verbs::Mtu;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An open device: the software NIC of this process. Cheap to clone; it lives until the last clone and the last object
/// made from it are dropped.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    nic: Nic,
    in_flight: InFlight,
}

/// A device of this machine, as [`Device::list`] returns it. It is not open yet.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    name: &'static str,
    gids: Vec<GidEntry>,
    config: Config,
}

impl DeviceInfo {
    /// Its name, such as `ferroce0`.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Its GID table: the local addresses.
    pub fn gids(&self) -> &[GidEntry] {
        &self.gids
    }

    /// Opens the device.
    pub fn open(&self) -> Result<Device, Error> {
        Device::open_with(self.config.clone())
    }
}

impl Device {
    /// The devices that can be opened, best first. Lists without opening any of them. The settings are those of the `FERROCE_*`
    /// environment variables.
    pub fn list() -> Result<Vec<DeviceInfo>, Error> {
        let config = Config::from_env()?;
        let gids = ferroce_nic::gid_table(&config).map_err(Error::in_call("list"))?;
        Ok(vec![DeviceInfo { name: ferroce_nic::DEVICE_NAME, gids, config }])
    }

    /// Opens the device with the settings of the `FERROCE_*` environment variables.
    pub fn open() -> Result<Device, Error> {
        Self::open_with(Config::from_env()?)
    }

    /// Opens the device with these settings.
    pub fn open_with(config: Config) -> Result<Device, Error> {
        let nic = Nic::open(config).map_err(Error::in_call("open"))?;
        let inner = Inner { nic, in_flight: InFlight::default() };
        Ok(Device { inner: Arc::new(inner) })
    }

    /// Capabilities and limits of the device.
    pub fn attributes(&self) -> DeviceAttr {
        self.inner.nic.attributes()
    }

    /// The wire protocol of the device: [`Config::wire`].
    pub fn wire(&self) -> Wire {
        self.inner.nic.wire()
    }

    /// The GID table: every local address that packets can be sent from.
    pub fn gids(&self) -> Vec<GidEntry> {
        self.inner.nic.gids()
    }

    /// Index of an address in the GID table. The IPv6-mapped form of an IPv4 address is found too.
    pub fn gid_index(&self, address: IpAddr) -> Result<u8, Error> {
        let found = self.gids().iter().position(|e| e.gid == address.into());
        let missing = || Error::invalid("gid_index", "address", "is not in the GID table");
        found.and_then(|i| u8::try_from(i).ok()).ok_or_else(missing)
    }

    /// All counters of the device and of its queue pairs.
    pub fn counters(&self) -> Counters {
        self.inner.nic.counters()
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        let nic = self.inner.nic.alloc_pd().map_err(Error::in_call("alloc_pd"))?;
        Ok(Pd { nic, device: self.clone() })
    }

    /// Creates a completion queue of `depth` entries with its own completion channel.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, Error> {
        Cq::create(self, depth)
    }

    /// The next asynchronous event, if there is one. Never blocks.
    pub fn try_event(&self) -> Option<AsyncEvent> {
        self.inner.nic.try_event()
    }

    /// Waits for an asynchronous event.
    pub fn wait_event(&self) -> Result<AsyncEvent, Error> {
        sleep::next(self.as_fd(), None, || Ok(self.try_event()))
    }

    /// Waits for an asynchronous event. Returns [`Error::TimedOut`] after `timeout`.
    pub fn wait_event_timeout(&self, timeout: Duration) -> Result<AsyncEvent, Error> {
        sleep::next(self.as_fd(), Some(Instant::now() + timeout), || Ok(self.try_event()))
    }

    /// Waits for an asynchronous event in a task. If the future is dropped, no event is lost.
    pub async fn event_async(&self, reactor: &impl Reactor) -> Result<AsyncEvent, Error> {
        reactor::next(reactor, self.as_fd(), || Ok(self.try_event())).await
    }

    pub(crate) fn nic(&self) -> &Nic {
        &self.inner.nic
    }

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.inner.in_flight
    }

    pub(crate) fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether this is the process that opened the device. A child of `fork()` must not take locks of this crate: a thread
    /// that exists only in the parent may have held them.
    pub(crate) fn is_ours(&self) -> bool {
        self.inner.nic.check_process().is_ok()
    }

    pub(crate) fn check_ours(&self, verb: &'static str) -> Result<(), Error> {
        if self.is_ours() { Ok(()) } else { Err(Error::in_call(verb)(ferroce_nic::Error::Forked)) }
    }

    /// Largest path MTU from this entry of the GID table.
    pub(crate) fn path_mtu(&self, gid_index: u8) -> Mtu {
        let largest = Mtu::from_bytes(self.attributes().largest_mtu).unwrap_or_default();
        self.gids().get(usize::from(gid_index)).map_or(largest, |entry| entry.path_mtu().min(largest))
    }
}

debug!(Device, |this| "Device(slot {})", this.inner.nic.slot());

/// Readable while an asynchronous event is available.
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.nic.event_fd()
    }
}
