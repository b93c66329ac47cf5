//! Packets to QP1, and deadlines of whoever answers them: the agent is above the engine, which calls it through here.

use super::Engine;
use super::outgoing::Batch;
use crate::link::{RxPacket, TxBatch};
use ferroce_proto::Time;
use ferroce_proto::wire::Packet;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Who serves QP1 of the device.
pub(crate) trait ManagementAgent: Send + Sync {
    /// A packet to QP1.
    fn receive(&self, rx: &RxPacket<'_>, packet: &Packet<'_>, now: Time);
    /// The deadline that it [set](Engine::set_agent_deadline) has passed.
    fn handle_timeout(&self, now: Time);
    /// Tells its peers that everything ends; the process or the device is about to go.
    fn close(&self);
    /// Everything it counted.
    fn named_counters(&self) -> BTreeMap<&'static str, u64>;
}

impl Engine {
    /// Gives QP1 to an agent; only the first call counts.
    pub(crate) fn set_agent(&self, agent: Weak<dyn ManagementAgent>) {
        let _ = self.agent.set(agent);
    }

    /// When the agent wants to be called; `u64::MAX` if never.
    pub(crate) fn set_agent_deadline(&self, deadline_ns: u64) {
        self.agent_ns.store(deadline_ns, Ordering::SeqCst);
    }

    /// The thread's own batch, for what leaves by itself.
    pub(crate) fn with_own_batch(&self, work: impl FnOnce(&mut TxBatch)) {
        work(&mut Batch::own());
    }

    pub(super) fn agent(&self) -> Option<Arc<dyn ManagementAgent>> {
        self.agent.get().and_then(Weak::upgrade)
    }

    #[cold]
    pub(super) fn receive_management(&self, rx: &RxPacket<'_>, packet: &Packet<'_>, now: Time) {
        if let Some(agent) = self.agent() {
            agent.receive(rx, packet, now);
        }
    }

    /// Repeats and time-outs that are due.
    pub(super) fn run_management(&self, now: Time) {
        if self.agent_ns.load(Ordering::SeqCst) <= now.0
            && let Some(agent) = self.agent()
        {
            agent.handle_timeout(now);
        }
    }

    /// Tells the peers of all connections that they end.
    pub(crate) fn close_connections(&self) {
        if let Some(agent) = self.agent() {
            agent.close();
        }
    }
}
