//! Opening the device: its links, its addresses, its connection manager and its background thread.

use crate::addresses::AddressTable;
use crate::cm::CmService;
use crate::config::{Config, LinkChoice};
use crate::device_attr::DeviceAttr;
use crate::device_memory::Budget;
use crate::engine::{Background, Chore, Engine};
use crate::error::Error;
use crate::follow::FollowAddresses;
use crate::gids::{self, GidEntry};
use crate::inspect::{Answerer, Subject};
use crate::link::{Capture, Faulty, Link, SharedPort, UdpConfig, UdpLink};
use crate::local::{LocalLink, LocalPeers};
use crate::nic::{Nic, NicInner};
use crate::poller_activity::PollerActivity;
use crate::queues::{EventHub, EventSource};
use crate::xrc::XrcDomains;
use crate::{exit, exit_report};
use ferroce_os::fork::Generation;
use ferroce_os::lock::{Mutex, RwLock};
use ferroce_os::log;
use ferroce_os::watch::AddressWatch;
use ferroce_proto::cc::Share;
use ferroce_proto::verbs::EventKind;
use ferroce_shm::registry;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Largest default send window, in bytes: a larger one hides no more of a peer's delays.
const MAX_DEFAULT_WINDOW: u32 = 1024 * 1024;
impl Nic {
    /// Opens the device.
    pub fn open(config: Config) -> Result<Nic, Error> {
        let born = Generation::current();
        // First of all: a process that has only one thread yet need not wait for it.
        ferroce_os::lock::announce();
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
        let activity =
            Arc::new(PollerActivity::new().map_err(Error::system("creating an event descriptor"))?);
        let engine =
            Arc::new(Engine::new(ways.link, ways.wire, ways.shared_port, ways.local_peers, activity));
        let table = Arc::new(AddressTable {
            wanted: config.addresses.clone(),
            mtu_wish: config.mtu,
            entries: RwLock::new(entries),
            // Without netlink (some sandboxes) the table is simply what it was at the start.
            watch: AddressWatch::open().ok(),
            events: events.clone(),
        });
        let ports =
            registry::own_directory().and_then(|d| registry::Ports::open(d, engine.shared_port.slot())).ok();
        let cm = CmService::start(engine.clone(), ports, table.clone(), config.cm_secret.clone(), born);
        exit::remember(&engine);
        exit_report::announce(&engine);
        let half_buffer = engine.link.counters().rcvbuf_bytes / 2;
        let window_bytes = config.window_bytes.unwrap_or_else(|| default_window(half_buffer));
        let share = Share::new(u32::try_from(half_buffer).unwrap_or(u32::MAX).max(window_bytes));
        let attributes = {
            let table = table.clone();
            move || DeviceAttr::of(&table, window_bytes)
        };
        let follow = FollowAddresses::new(table.clone(), cm.clone());
        let mut chores: Vec<Box<dyn Chore>> = vec![Box::new(follow)];
        chores
            .extend(answerer(&engine, attributes, born).map(|answerer| Box::new(answerer) as Box<dyn Chore>));
        let background = Some(start_background(&engine, chores, &cm, &events)?);
        Nic::over(Arc::new(NicInner {
            engine,
            window_bytes,
            share,
            xrc_domains: XrcDomains::default(),
            device_memory: Budget::default(),
            raw: Mutex::default(),
            table,
            events,
            cm,
            background,
            born,
            ids: AtomicU32::new(1),
        }))
    }
}

/// A send window that fits the receive buffer of the peer, as far as this end can know: machines of one network
/// tend to be set up alike. The kernel charges its own overhead to the buffer, so half of it is for data.
fn default_window(half_buffer: u64) -> u32 {
    half_buffer.clamp(64 * 1024, u64::from(MAX_DEFAULT_WINDOW)) as u32
}

/// From here on packets for anybody may land at our socket (steering is a hint): somebody must be there to pass them on, also
/// while the program does nothing.
fn start_background(
    engine: &Arc<Engine>,
    chores: Vec<Box<dyn Chore>>,
    cm: &Arc<CmService>,
    events: &Arc<EventHub>,
) -> Result<Background, Error> {
    let (cm, events) = (Arc::downgrade(cm), events.clone());
    let on_panic = move || {
        events.raise(EventKind::DeviceFatal, EventSource::Device);
        cm.upgrade().inspect(|cm| cm.remove_device());
    };
    Background::start(engine.clone(), chores, on_panic)
}

/// Answers `ferroce counters`. A NIC that cannot be asked still works, so there is no error.
fn answerer(
    engine: &Arc<Engine>,
    attributes: impl Fn() -> DeviceAttr + Send + 'static,
    born: Generation,
) -> Option<Answerer> {
    let (attributes, since) = (Box::new(attributes), std::time::Instant::now());
    let subject = Subject { engine: engine.clone(), attributes, since };
    Answerer::open(&registry::own_directory().ok()?, subject, born).ok()
}

/// The GID table that a device opened with these settings has. Opens nothing, so it works while the port is taken.
pub fn gid_table(config: &Config) -> Result<Vec<GidEntry>, Error> {
    gids::read(config.addresses.as_deref())
}

/// How packets leave and arrive, and the same-host fabric if that is part of it.
struct Ways {
    link: Arc<dyn Link>,
    /// The link without the fabric.
    wire: Arc<dyn Link>,
    shared_port: Arc<SharedPort>,
    local_peers: Option<Arc<LocalPeers>>,
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
    let shared_port = udp.port().clone();
    let over_wire = |wire: Arc<dyn Link>| Ways {
        link: wire.clone(),
        wire,
        shared_port: shared_port.clone(),
        local_peers: None,
    };
    if let Some(faults) = &config.faults {
        return Ok(over_wire(Arc::new(Faulty::new(udp, *faults))));
    }
    if config.link == LinkChoice::Udp || config.capture.is_some() {
        return Ok(over_wire(udp));
    }
    match LocalLink::open(udp.clone(), config.memfd) {
        Ok(local) => {
            let local_peers = Some(local.local_peers().clone());
            Ok(Ways { link: Arc::new(local), wire: udp, shared_port, local_peers })
        }
        Err(why) => {
            log::choice(format_args!(
                "UDP to processes of this host too: no shared memory with them ({why})"
            ));
            Ok(over_wire(udp))
        }
    }
}
