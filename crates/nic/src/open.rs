//! Opening the device: its links, its addresses, its connection manager and its background thread.

use crate::addresses::AddressTable;
use crate::cm::CmService;
use crate::config::{Config, LinkChoice, Wire};
use crate::congestion;
use crate::contexts::{Context, MoreContexts};
use crate::device_attr::DeviceAttr;
use crate::device_memory::Budget;
use crate::engine::{Background, Chore, DeviceState, Engine, Streams};
use crate::error::Error;
use crate::follow::FollowAddresses;
use crate::gids::{self, GidEntry};
use crate::inspect::{Answerer, Subject};
use crate::limits::Strict;
use crate::link::{Capture, Faulty, Link, SharedPort, StreamExtras, StreamLink, UdpConfig, UdpLink};
use crate::local::{LocalLink, LocalPeers};
use crate::memory::WatchedNic;
use crate::nic::{Nic, NicInner};
use crate::poller_activity::PollerActivity;
use crate::queues::{EventHub, EventSource};
use crate::quota::Quotas;
use crate::watchdog::Watchdog;
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

/// Once this many slots of the host are taken, the others are left to processes that have none yet.
const SLOTS_FOR_CONTEXTS: usize = 128;

impl Nic {
    /// Opens the device.
    pub fn open(mut config: Config) -> Result<Nic, Error> {
        if config.watch {
            config.strict.get_or_insert(Strict::AnyNic);
        }
        let born = Generation::current();
        // Called first: as long as the process has only one thread, this call need not wait.
        ferroce_os::lock::announce();
        let entries = gids::read(config.addresses.as_deref())?;
        check_wire(&config)?;
        if config.congestion.as_ref().is_some_and(|choice| !congestion::can_run(choice)) {
            return Err(Error::Invalid { attribute: "congestion", why: congestion::NO_TELEMETRY });
        }
        let links = open_links(&config, None)?;
        Self::with_links(config, links, entries, born)
    }

    fn with_links(
        config: Config,
        links: Links,
        entries: Vec<GidEntry>,
        born: Generation,
    ) -> Result<Nic, Error> {
        let events = Arc::new(EventHub::default());
        let device = Arc::new(DeviceState::new(links.local_peers.as_deref(), config.strict.is_some()));
        let engine = new_engine(&config, links, device, 0)?;
        let table = Arc::new(AddressTable {
            wanted: config.addresses.clone(),
            mtu_wish: config.mtu,
            is_strict: config.strict.is_some(),
            entries: RwLock::new(entries),
            // Without netlink (some sandboxes) the table does not follow changes.
            watch: AddressWatch::open().ok(),
            events: events.clone(),
        });
        let host = engine.shared_port.registry();
        // iWARP uses the TCP ports of the system.
        let ports = (config.wire == Wire::Roce)
            .then(|| registry::Ports::open(host.directory().to_path_buf(), host.slot()).ok())
            .flatten();
        let cm = CmService::start(engine.clone(), ports, table.clone(), &config, born);
        exit::remember(&engine);
        let limits = Strict::limits(config.strict);
        let quotas = Quotas::new(&limits);
        exit_report::announce(&engine, &quotas);
        let window_bytes = window_of(&config, half_buffer_of(&*engine.link));
        let attributes = {
            let (table, wire) = (table.clone(), config.wire);
            move || DeviceAttr::of(&table, &limits, window_bytes, wire)
        };
        let follow = FollowAddresses::new(table.clone(), cm.clone());
        let mut chores: Vec<Box<dyn Chore>> = vec![Box::new(follow)];
        chores
            .extend(answerer(&engine, attributes, born).map(|answerer| Box::new(answerer) as Box<dyn Chore>));
        chores.extend(Watchdog::of(&engine).map(|watchdog| Box::new(watchdog) as Box<dyn Chore>));
        let background = Some(start_background(&engine, chores, &cm, &events)?);
        Nic::over(Arc::new(NicInner {
            engine,
            more: MoreContexts::new(&config),
            watch: config.watch.then(WatchedNic::new),
            config,
            limits,
            window_bytes,
            xrc_domains: XrcDomains::default(),
            device_memory: Budget::default(),
            quotas,
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

impl NicInner {
    /// Opens the progress context of this number.
    pub(crate) fn open_context(&self, index: usize) -> Result<Context, Error> {
        let first = &self.engine;
        if first.shared_port.registry().slots_held() >= SLOTS_FOR_CONTEXTS {
            return Err(Error::Exhausted {
                what: "slots for progress contexts",
                limit: SLOTS_FOR_CONTEXTS as u64,
            });
        }
        let links = open_links(&self.config, Some(first))?;
        let engine = new_engine(&self.config, links, first.device.clone(), index)?;
        let background = start_background(&engine, Vec::new(), &self.cm, &self.events)?;
        Ok(Context { background, engine })
    }
}

/// Refuses settings that the wire does not have. None of them may be ignored: a program with a key relies on it.
fn check_wire(config: &Config) -> Result<(), Error> {
    let faults = config.faults.unwrap_or_default();
    if config.wire == Wire::Roce && faults.hits_streams() {
        return Err(Error::StreamFaults);
    }
    let refused = [
        (config.congestion.is_some(), "congestion control of ferroce (FERROCE_CC): TCP has its own"),
        (
            faults.hits_packets(),
            "lost, late or doubled packets, since TCP repairs them: FERROCE_FAULTS takes short, stall, reset and corrupt there",
        ),
    ];
    match refused.into_iter().find(|(is_set, _)| *is_set && config.wire == Wire::Iwarp) {
        Some((_, what)) => Err(Error::NotOnThisWire { what }),
        None => Ok(()),
    }
}

/// A progress context of this device.
fn new_engine(
    config: &Config,
    links: Links,
    device: Arc<DeviceState>,
    context: usize,
) -> Result<Arc<Engine>, Error> {
    let activity = PollerActivity::new(device.armed.clone(), context);
    let activity = Arc::new(activity.map_err(Error::system("creating an event descriptor"))?);
    let half_buffer = half_buffer_of(&*links.link);
    let share = u32::try_from(half_buffer).unwrap_or(u32::MAX).max(window_of(config, half_buffer));
    let Links { link, wire, shared_port, local_peers, streams } = links;
    let share = Share::new(share);
    let engine = Engine::new(link, wire, shared_port, local_peers, activity, device.clone(), share);
    let engine = Arc::new(match streams {
        Some(streams) => engine.with_streams(streams),
        None => engine,
    });
    device.add_context(&engine);
    Ok(engine)
}

/// Half of the receive buffer: the kernel charges its own overhead to it.
fn half_buffer_of(link: &dyn Link) -> u64 {
    link.counters().rcvbuf_bytes / 2
}

fn window_of(config: &Config, half_buffer: u64) -> u32 {
    config.window_bytes.unwrap_or_else(|| default_window(half_buffer))
}

/// A send window that fits the receive buffer of the peer. This end can read only its own buffer, but machines of one network
/// are usually configured alike.
fn default_window(half_buffer: u64) -> u32 {
    half_buffer.clamp(64 * 1024, u64::from(MAX_DEFAULT_WINDOW)) as u32
}

/// Starts the background thread. From now on packets for other processes may arrive at this socket, since steering is only a hint. The
/// thread forwards them even while the program does nothing.
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

/// Answers `ferroce counters`. A NIC that cannot answer still works, so a failure is not an error.
fn answerer(
    engine: &Arc<Engine>,
    attributes: impl Fn() -> DeviceAttr + Send + 'static,
    born: Generation,
) -> Option<Answerer> {
    let (attributes, since) = (Box::new(attributes), std::time::Instant::now());
    let subject = Subject { engine: engine.clone(), attributes, since };
    Answerer::open(engine.shared_port.registry().directory(), subject, born).ok()
}

/// The GID table that a device opened with these settings has. Opens nothing, so it works while the port is taken.
pub fn gid_table(config: &Config) -> Result<Vec<GidEntry>, Error> {
    gids::read(config.addresses.as_deref())
}

/// The links of one progress context, and the processes of this host that it shares memory with.
struct Links {
    link: Arc<dyn Link>,
    /// The link without shared memory.
    wire: Arc<dyn Link>,
    shared_port: Arc<SharedPort>,
    local_peers: Option<Arc<LocalPeers>>,
    /// TCP streams, if the wire is iWARP.
    streams: Option<Streams>,
}

/// Opens the links of a progress context: UDP, with faults and capture as configured, and shared memory with processes of this host. A further
/// context has shared memory only if the first one has.
fn open_links(config: &Config, first: Option<&Arc<Engine>>) -> Result<Links, Error> {
    if config.wire == Wire::Iwarp {
        let capture = config.capture.as_deref().map(Capture::create).transpose();
        let capture = capture.map_err(Error::system("creating the capture file"))?.map(Arc::new);
        let link = Arc::new(StreamLink::open(StreamExtras::new(capture, config.faults))?);
        let (shared_port, streams) =
            (link.port().clone(), Some(Streams::new(link.sockets().clone(), link.extras().clone())));
        return Ok(Links { link: link.clone(), wire: link, shared_port, local_peers: None, streams });
    }
    let capture = config.capture.as_deref().map(Capture::create).transpose();
    let udp = Arc::new(UdpLink::open(&UdpConfig {
        bind: config.addresses.clone(),
        gso: config.offload,
        gro: config.offload,
        ecn: config.uses_ecn(),
        timestamps: config.congestion.as_ref().is_some_and(congestion::uses_rtt),
        capture: capture.map_err(Error::system("creating the capture file"))?.map(Arc::new),
        ..UdpConfig::default()
    })?);
    let shared_port = udp.port().clone();
    let over_wire = |wire: Arc<dyn Link>| Links {
        link: wire.clone(),
        wire,
        shared_port: shared_port.clone(),
        local_peers: None,
        streams: None,
    };
    if let Some(faults) = &config.faults {
        return Ok(over_wire(Arc::new(Faulty::new(udp, *faults))));
    }
    let has_no_fabric = first.is_some_and(|first| first.local_peers.is_none());
    if config.link == LinkChoice::Udp || config.capture.is_some() || has_no_fabric {
        return Ok(over_wire(udp));
    }
    let first_peers = first.and_then(|first| first.local_peers.as_deref());
    match LocalLink::open(udp.clone(), config.memfd, first_peers) {
        Ok(local) => {
            let local_peers = Some(local.local_peers().clone());
            Ok(Links { link: Arc::new(local), wire: udp, shared_port, local_peers, streams: None })
        }
        Err(why) if first.is_some() => Err(Error::system("sharing memory with processes of this host")(why)),
        Err(why) => {
            log::choice(format_args!(
                "UDP to processes of this host too: no shared memory with them ({why})"
            ));
            Ok(over_wire(udp))
        }
    }
}
