//! What the progress contexts of one device share: memory regions, XRC shared receive queues, counters, the agent of QP1, and each other.

use super::{Engine, ManagementAgent, QpCore};
use crate::counters::DeviceCounters;
use crate::engine::srqs::XrcSrqs;
use crate::local::LocalPeers;
use crate::memory::RegionTable;
use crate::poller_activity::ArmedCqs;
use ferroce_os::lock::RwLock;
use ferroce_proto::Qpn;
use ferroce_proto::qp::ReorderBudget;
use std::sync::{Arc, OnceLock, Weak};

/// The shared part of a device.
pub(crate) struct DeviceState {
    pub(crate) regions: RegionTable,
    pub(crate) srqs: XrcSrqs,
    pub(crate) counters: DeviceCounters,
    /// Memory for out-of-order packets of all queue pairs.
    pub(crate) reorder: Arc<ReorderBudget>,
    pub(crate) armed: Arc<ArmedCqs>,
    /// Strict mode: packets to local peers are the same as on the wire, and no process accesses a peer's memory directly.
    pub(super) is_strict: bool,
    /// The agent that serves QP1.
    pub(super) agent: OnceLock<Weak<dyn ManagementAgent>>,
    contexts: RwLock<Vec<Weak<Engine>>>,
}

impl DeviceState {
    /// The state of a device whose regions and shared receive queues `local_peers` publishes.
    pub(crate) fn new(local_peers: Option<&LocalPeers>, is_strict: bool) -> Self {
        DeviceState {
            regions: RegionTable::new(local_peers.map(LocalPeers::region_descriptors)),
            srqs: XrcSrqs::new(local_peers.map(LocalPeers::srq_descriptors)),
            counters: DeviceCounters::default(),
            reorder: ReorderBudget::new(ReorderBudget::DEFAULT),
            armed: Arc::default(),
            is_strict,
            agent: OnceLock::new(),
            contexts: RwLock::default(),
        }
    }

    /// Adds a progress context.
    pub(crate) fn add_context(&self, engine: &Arc<Engine>) {
        self.contexts.write().push(Arc::downgrade(engine));
    }

    /// All progress contexts, the first one first.
    pub(crate) fn contexts(&self) -> Vec<Arc<Engine>> {
        self.contexts.read().iter().filter_map(Weak::upgrade).collect()
    }

    /// The queue pair with this number, and its context.
    pub(crate) fn find_qp(&self, qpn: Qpn) -> Option<(Arc<Engine>, Arc<QpCore>)> {
        self.contexts().into_iter().find_map(|engine| engine.qps.get(qpn).map(|qp| (engine, qp)))
    }
}
