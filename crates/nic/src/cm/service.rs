//! Connection management of one NIC: the state machine, its ids, its ports.

use super::following::LiveIds;
use super::liveness::Watched;
use super::stream::StreamCm;
use super::{CmEvent, CmId};
use crate::addresses::AddressTable;
use crate::engine::{Engine, QpCore};
use crate::error::{CmRefusal, Error};
use crate::link::{RxPacket, now};
use ferroce_os::fork::Generation;
use ferroce_os::lock::Mutex;
use ferroce_proto::Gid;
use ferroce_proto::cm::{
    Accept, Cm, CmCounters, CommId, Config, Connect, ListenerId, MadAddressing, Transmit,
};
use ferroce_proto::wire::cm::{CmMad, MadTarget, offered_service};
use ferroce_shm::registry::Ports;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long to wait for the manager's lock at exit. Its holders release it once a few messages are sent.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// The state machine and the ids that own its connections.
pub(super) struct Managed {
    pub(super) cm: Cm,
    pub(super) ids: HashMap<CommId, Weak<CmId>>,
    pub(super) listeners: HashMap<ListenerId, Weak<CmId>>,
    /// Queue pairs that drop all packets until their peer has proven that it has the key.
    shut: HashMap<CommId, Weak<QpCore>>,
    /// Values to drop once the lock is released: the last handle of an id may be among them.
    garbage: Vec<Garbage>,
}

/// Values whose drop may need the lock again.
#[expect(dead_code, reason = "held to be dropped later, and for nothing else")]
pub(super) enum Garbage {
    Event(Box<CmEvent>),
    Id(Arc<CmId>),
}

impl Managed {
    /// Releases all connections: the device is about to close.
    pub(super) fn release_all(&mut self, now: ferroce_proto::Time) {
        self.cm.stop_pacing();
        for (comm, _) in self.ids.drain() {
            self.cm.release(comm, now);
        }
    }

    /// Requests a connection.
    pub(super) fn connect(
        &mut self,
        request: &Connect<'_>,
        qp: Option<&Arc<QpCore>>,
    ) -> Result<CommId, CmRefusal> {
        self.check_not_shut(None, qp)?;
        Ok(self.cm.connect(request, now())?)
    }

    /// Accepts a connection request. With a key, the queue pair drops all packets until the peer has proven it. The caller holds the lock
    /// until the reply has left, so the peer learns the queue pair number only when the queue pair is shut. An attempt that fails, such as
    /// a second one, changes nothing.
    pub(super) fn accept(
        &mut self,
        comm: CommId,
        accept: &Accept<'_>,
        qp: Option<Arc<QpCore>>,
    ) -> Result<(), CmRefusal> {
        self.check_not_shut(Some(comm), qp.as_ref())?;
        self.cm.accept(comm, accept, now())?;
        self.set_shut(comm, qp, self.cm.is_secured(comm));
        Ok(())
    }

    /// An error if another connection has shut the queue pair: opening it would let the peer of that one in, which has not proven its key. The
    /// connection may have ended, but the queue pair accepts the packets of its peer until a reset.
    fn check_not_shut(&self, comm: Option<CommId>, qp: Option<&Arc<QpCore>>) -> Result<(), CmRefusal> {
        let Some(qp) = qp.filter(|qp| qp.is_shut.load(Ordering::Relaxed)) else { return Ok(()) };
        let own = comm.and_then(|comm| self.shut.get(&comm));
        if own.is_some_and(|own| std::ptr::eq(own.as_ptr(), Arc::as_ptr(qp))) {
            return Ok(());
        }
        Err(CmRefusal::WrongState {
            why: "the queue pair was accepted for a connection whose peer has not proven its key; reset the queue pair",
        })
    }

    /// Shuts a queue pair until the peer of a connection has proven its key, or opens it. From now on only this connection decides.
    fn set_shut(&mut self, comm: CommId, qp: Option<Arc<QpCore>>, shut: bool) {
        let Some(qp) = qp else { return };
        qp.is_shut.store(shut, Ordering::Relaxed);
        if shut {
            // The program may have reset it while an earlier connection waited.
            self.shut.retain(|_, other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(&qp)));
            self.shut.insert(comm, Arc::downgrade(&qp));
        }
    }

    /// The peer has proven its key, or needs none: opens the queue pair.
    pub(super) fn proven(&mut self, comm: CommId) {
        if let Some(qp) = self.forget_shut(comm) {
            qp.is_shut.store(false, Ordering::Relaxed);
        }
    }

    /// The peer will not prove its key: the queue pair stays shut until it is reset.
    pub(super) fn forget_shut(&mut self, comm: CommId) -> Option<Arc<QpCore>> {
        self.shut.remove(&comm)?.upgrade()
    }

    pub(super) fn drop_later(&mut self, garbage: Garbage) {
        self.garbage.push(garbage);
    }
    pub(super) fn take_garbage(&mut self) -> impl Sized + use<> {
        std::mem::take(&mut self.garbage)
    }
}

/// Connection management of one NIC.
pub(crate) struct CmService {
    pub(super) engine: Arc<Engine>,
    pub(super) managed: Mutex<Managed>,
    pub(super) slot: u8,
    pub(super) ports: Option<Ports>,
    pub(super) addresses: Arc<AddressTable>,
    born: Generation,
    pub(super) live_ids: LiveIds,
    pub(super) watched: Watched,
    /// Connections of iWARP, if that is the wire.
    pub(super) streams: Option<StreamCm>,
}

/// The process that must handle a received message.
pub(super) enum Destination {
    /// This process.
    Here,
    /// The process in this slot.
    Slot(u8),
}

impl CmService {
    /// Starts the service and makes it the agent of QP1.
    pub(crate) fn start(
        engine: Arc<Engine>,
        ports: Option<Ports>,
        addresses: Arc<AddressTable>,
        config: &crate::config::Config,
        born: Generation,
    ) -> Arc<CmService> {
        let streams = engine.sockets().map(|_| StreamCm::new(config.mpa_crc, config.cm_secret.clone()));
        let secret = config.cm_secret.clone();
        let slot = engine.shared_port.slot();
        let config = Config { slot, ca_guid: ferroce_os::random::number::<u64>() | 1, ..Config::default() };
        let mut cm = Cm::new(config, Box::new(ferroce_os::random::number::<u64>));
        cm.set_secret(secret);
        let (ids, listeners, shut) = (HashMap::new(), HashMap::new(), HashMap::new());
        let managed = Mutex::new(Managed { cm, ids, listeners, shut, garbage: Vec::new() });
        let (live_ids, watched) = (LiveIds::default(), Watched::default());
        let service =
            Arc::new(CmService { engine, managed, slot, ports, addresses, born, live_ids, watched, streams });
        let agent: Weak<CmService> = Arc::downgrade(&service);
        service.engine.set_agent(agent);
        service
    }

    /// The counters of the state machine.
    pub(crate) fn counters(&self) -> CmCounters {
        *self.managed.lock().cm.counters()
    }

    /// Whether this is the process that opened the device.
    pub(super) fn alive(&self) -> Result<(), Error> {
        Error::check_process(self.born)
    }

    pub(super) fn ports(&self) -> Result<&Ports, CmRefusal> {
        self.ports.as_ref().ok_or(CmRefusal::NoRegistry)
    }

    /// The local address that a packet arrived at; `None` if its destination is not, or no longer, an address of this device.
    pub(super) fn inbound(&self, packet: &RxPacket<'_>) -> Option<MadAddressing> {
        let (sgid_index, mtu) = self.addresses.find(packet.arrival.dgid)?;
        Some(MadAddressing { sgid: packet.arrival.sgid, dgid: packet.arrival.dgid, sgid_index, mtu })
    }

    /// The slot of the process of this host that listens to the service of a request; 0 if none is known, or if `message` is no
    /// request: other messages have the slot in their communication id. `is_here`: the message stays on this host.
    pub(super) fn slot_hint(&self, message: &Transmit, is_here: bool) -> u8 {
        let Some(service) = offered_service(&message.mad) else { return 0 };
        let (Some(ports), Some(space)) = (self.ports.as_ref(), service.space()) else { return 0 };
        let to = message.route.dgid;
        if is_here { ports.listener(space, service.port(), to).unwrap_or(0) } else { 0 }
    }

    /// The process that must handle this message. Packets to QP1 may reach any process of the host. A message that no living process
    /// can claim is answered here, so that the peer does not wait for a timeout.
    pub(super) fn destination(&self, mad: &CmMad, at: Gid) -> Destination {
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
