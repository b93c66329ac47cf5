//! What one NIC has of connection management: the machine, its ids, its ports.

use super::following::Roll;
use super::roll_call::Watched;
use super::{CmChannel, CmEvent, CmId};
use crate::engine::QpCore;
use crate::error::CmRefusal;
use crate::gids::GidEntry;
use crate::link::{RxPacket, now};
use crate::lock::{Mutex, lock_within};
use crate::registry::Ports;
use ferroce_proto::Gid;
use ferroce_proto::cm::{Accept, Cm, CmError, CommId, Config, Inbound, ListenerId, Secret, Transmit};
use ferroce_proto::verbs::Mtu;
use ferroce_proto::wire::cm::{CmMad, MadTarget, offered_service};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Its holders have it for as long as a few messages take to leave.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// The addresses of the device.
pub(crate) trait Addresses: Send + Sync {
    /// All of them.
    fn entries(&self) -> Vec<GidEntry>;
    /// Where `gid` stands, and the largest path MTU from there.
    fn find(&self, gid: Gid) -> Option<(u8, Mtu)>;
}

/// The machine and who its connections belong to.
pub(crate) struct Managed {
    pub(crate) cm: Cm,
    pub(super) ids: HashMap<CommId, Weak<CmId>>,
    pub(super) listeners: HashMap<ListenerId, Weak<CmId>>,
    /// Queue pairs that get no packets before their peer has proven that it has the key.
    shut: HashMap<CommId, Weak<QpCore>>,
    /// What must be dropped once the lock is given up: it may end in the last handle of an id.
    garbage: Vec<Garbage>,
}

/// Things whose end may need the lock again.
#[expect(dead_code, reason = "held to be dropped later, and for nothing else")]
pub(super) enum Garbage {
    Event(Box<CmEvent>),
    Id(Arc<CmId>),
}

impl Managed {
    /// Nobody holds anything any more.
    pub(crate) fn release_all(&mut self, now: ferroce_proto::Time) {
        self.cm.stop_pacing();
        for (comm, _) in self.ids.drain() {
            self.cm.release(comm, now);
        }
    }

    /// Takes an offer. Under a key, the queue pair gets no packets before the peer has confirmed with it.
    pub(super) fn accept(
        &mut self,
        comm: CommId,
        accept: &Accept<'_>,
        qp: Option<Arc<QpCore>>,
    ) -> Result<(), CmError> {
        if let Some(qp) = &qp {
            let shut = self.cm.is_secured(comm);
            qp.is_shut.store(shut, Ordering::Relaxed);
            if shut {
                self.shut.insert(comm, Arc::downgrade(qp));
            }
        }
        self.cm.accept(comm, accept, now()).inspect_err(|_| self.proven(comm))
    }

    /// The peer has confirmed, or was not asked to.
    pub(super) fn proven(&mut self, comm: CommId) {
        if let Some(qp) = self.forget_shut(comm) {
            qp.is_shut.store(false, Ordering::Relaxed);
        }
    }

    /// There will be no confirmation; the queue pair stays shut until it is reset or connected anew.
    pub(super) fn forget_shut(&mut self, comm: CommId) -> Option<Arc<QpCore>> {
        self.shut.remove(&comm)?.upgrade()
    }

    pub(super) fn drop_later(&mut self, garbage: Garbage) {
        self.garbage.push(garbage);
    }
    pub(crate) fn take_garbage(&mut self) -> impl Sized + use<> {
        std::mem::take(&mut self.garbage)
    }
}

/// Connection management of one NIC.
pub(crate) struct CmService {
    pub(crate) managed: Mutex<Managed>,
    /// When the machine wants to be woken; `u64::MAX` if never.
    next_ns: AtomicU64,
    pub(super) slot: u8,
    pub(super) ports: Option<Ports>,
    pub(crate) addresses: Arc<dyn Addresses>,
    pub(super) roll: Roll,
    pub(super) watched: Watched,
}

/// What to do with a message that arrived.
pub(crate) enum Destination {
    /// It is for this process.
    Here,
    /// It is for another.
    Slot(u8),
}

impl CmService {
    pub(crate) fn new(
        slot: u8,
        ports: Option<Ports>,
        addresses: Arc<dyn Addresses>,
        secret: Option<Secret>,
    ) -> CmService {
        let config = Config { slot, ca_guid: crate::random::number::<u64>() | 1, ..Config::default() };
        let mut cm = Cm::new(config, Box::new(crate::random::number::<u64>));
        cm.set_secret(secret);
        let (ids, listeners, shut) = (HashMap::new(), HashMap::new(), HashMap::new());
        let managed = Managed { cm, ids, listeners, shut, garbage: Vec::new() };
        let (managed, next_ns) = (Mutex::new(managed), AtomicU64::new(u64::MAX));
        let (roll, watched) = (Roll::default(), Watched::default());
        CmService { managed, next_ns, slot, ports, addresses, roll, watched }
    }

    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns.load(Ordering::SeqCst)
    }

    pub(crate) fn set_next_ns(&self, next_ns: u64) {
        self.next_ns.store(next_ns, Ordering::SeqCst);
    }

    /// Everything counted, and what there is now.
    pub(crate) fn named_counters(&self) -> BTreeMap<&'static str, u64> {
        // At the exit of the process the holder of the lock may be a thread that is gone.
        let Some(managed) = lock_within(&self.managed, LOCK_PATIENCE) else { return BTreeMap::new() };
        let now = [
            ("connections_now", managed.cm.connections() as u64),
            ("half_open_now", managed.cm.half_open() as u64),
            ("undecided_now", managed.cm.pending() as u64),
        ];
        managed.cm.counters().named().into_iter().chain(now).collect()
    }

    pub(super) fn ports(&self) -> Result<&Ports, CmRefusal> {
        self.ports.as_ref().ok_or(CmRefusal::NoRegistry)
    }

    /// Where a packet arrived; `None` if its destination is not (any more) an address of ours.
    pub(crate) fn inbound(&self, packet: &RxPacket<'_>) -> Option<Inbound> {
        let (sgid_index, mtu) = self.addresses.find(packet.dgid)?;
        Some(Inbound { sgid: packet.sgid, dgid: packet.dgid, sgid_index, mtu })
    }

    /// The process of this host that listens to the service which `message` asks for; 0 if none is known, or if the message
    /// is no offer: all others name their receiver themselves. The caller knows whether it stays on this host.
    pub(crate) fn slot_hint(&self, message: &Transmit, is_here: bool) -> u8 {
        let Some(service) = offered_service(&message.mad) else { return 0 };
        let (Some(ports), Some(space)) = (self.ports.as_ref(), service.space()) else { return 0 };
        let to = message.route.dgid;
        if is_here { ports.listener(space, service.port(), to).unwrap_or(0) } else { 0 }
    }

    /// Who should have this message. Packets to QP1 reach any process of the host. What nobody living can claim is
    /// answered here: somebody must tell the peer.
    pub(crate) fn destination(&self, mad: &CmMad, at: Gid) -> Destination {
        let slot = match mad.message.target() {
            MadTarget::Service(service) => {
                if self.managed.lock().cm.is_listening(service, at) {
                    return Destination::Here;
                }
                let ports = self.ports.as_ref();
                ports.zip(service.space()).and_then(|(p, space)| p.listener(space, service.port(), at))
            }
            MadTarget::Connection(id) => Some(id.slot()),
        };
        let alive = |slot: &u8| *slot != 0 && self.ports.as_ref().is_some_and(|p| p.is_alive(*slot));
        match slot.filter(|slot| *slot != self.slot).filter(alive) {
            Some(slot) => Destination::Slot(slot),
            None => Destination::Here,
        }
    }
}

impl crate::nic::Nic {
    /// Makes an event channel.
    pub fn create_cm_channel(&self) -> Result<CmChannel, crate::Error> {
        self.check_process()?;
        CmChannel::new()
    }

    /// What the connection manager counted.
    pub fn cm_counters(&self) -> ferroce_proto::cm::CmCounters {
        *self.engine().cm().managed.lock().cm.counters()
    }
}
