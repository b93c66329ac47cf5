//! Packets to QP1 and the timer of the management agent that answers them. The agent is above the engine, which calls it through a trait.

use super::outgoing::Batch;
use super::{Engine, StreamEvent};
use crate::link::{RxPacket, TxBatch};
use ferroce_proto::Time;
use ferroce_proto::wire::Packet;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The agent that serves QP1 of the device.
pub(crate) trait ManagementAgent: Send + Sync {
    /// Handles a packet to QP1.
    fn receive(&self, rx: &RxPacket<'_>, packet: &Packet<'_>, now: Time);
    /// Handles a socket of its own that is ready (iWARP).
    fn socket_ready(&self, number: u64, now: Time);
    /// Handles events of connections, which are identified by their numbers (iWARP).
    fn stream_events(&self, events: &[(u64, StreamEvent)], now: Time);
    /// Called when the deadline that it [set](Engine::set_agent_deadline) has passed.
    fn handle_timeout(&self, now: Time);
    /// Ends all connections and notifies their peers; the process or the device is about to end.
    fn close(&self);
    /// Its counters, by name.
    fn named_counters(&self) -> BTreeMap<&'static str, u64>;
}

impl Engine {
    /// Sets the agent of QP1; later calls are ignored.
    pub(crate) fn set_agent(&self, agent: Weak<dyn ManagementAgent>) {
        let _ = self.device.agent.set(agent);
    }

    /// Sets when the agent is called next; `u64::MAX` for never.
    pub(crate) fn set_agent_deadline(&self, deadline_ns: u64) {
        self.agent_ns.store(deadline_ns, Ordering::SeqCst);
    }

    /// Runs `work` with the thread's own batch, for packets that no queue pair sends.
    pub(crate) fn with_own_batch(&self, work: impl FnOnce(&mut TxBatch)) {
        work(&mut Batch::own());
    }

    pub(super) fn agent(&self) -> Option<Arc<dyn ManagementAgent>> {
        self.device.agent.get().and_then(Weak::upgrade)
    }

    #[cold]
    pub(super) fn receive_management(&self, rx: &RxPacket<'_>, packet: &Packet<'_>, now: Time) {
        if let Some(agent) = self.agent() {
            agent.receive(rx, packet, now);
        }
    }

    /// Calls the agent if its deadline has passed.
    pub(super) fn run_management(&self, now: Time) {
        if self.agent_ns.load(Ordering::SeqCst) <= now.0
            && let Some(agent) = self.agent()
        {
            agent.handle_timeout(now);
        }
    }

    /// Ends all connections and notifies their peers.
    pub(crate) fn close_connections(&self) {
        if let Some(agent) = self.agent() {
            agent.close();
        }
    }
}
