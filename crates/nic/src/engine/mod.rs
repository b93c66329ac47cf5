//! The engine: moves packets between links and queue pairs, on any thread that polls, posts or runs in the background.
//!
//! | file | question |
//! |---|---|
//! | `drive` | what happens in one poll |
//! | `progress` | what a thread needs to make progress, and its lock |
//! | `device` | what the progress contexts of one device share |
//! | `calls` | what verbs do to a queue pair on the caller's thread |
//! | `host` | how a queue pair reaches memory, links and completion queues |
//! | `local_peers` | which descriptor of a queue pair processes of this host read, and how it reaches them |
//! | `frames` | how raw packets reach memory |
//! | `management` | which agent handles packets to QP1 |
//! | `outgoing` | which payloads are copied into a packet and which are pointed to |
//! | `qp` | a queue pair as the engine sees it: its state machine and what belongs to it |
//! | `history` | which rare events a queue pair has had |
//! | `guarded` | which of its fields only the lock of the queue pair guards |
//! | `qps` | which queue pair has this number |
//! | `srqs` | which XRC shared receive queue has this number |
//! | `groups` | which queue pairs are attached to this multicast group |
//! | `streams` | queue pairs over TCP streams (iWARP) |
//! | `timers` | which queue pair must be polled when |
//! | `background` | which thread drives when no application thread polls |
//! | `report` | what the device counted |
//!
//! Locks, in the order in which they may be taken: the progress lock, a queue pair, then any of {region, CQ, SRQ, timers, ready list,
//! history, the counters of destroyed queue pairs}. The table of queue pairs is locked last.
//! No lock is shared by unrelated queue pairs on the data path, except the progress lock, which is only ever tried.

mod background;
mod calls;
mod device;
mod drive;
mod elsewhere;
mod frames;
mod groups;
mod guarded;
mod history;
mod host;
mod jumbo;
mod local_peers;
mod management;
mod outgoing;
mod progress;
mod qp;
mod qps;
mod report;
mod srqs;
mod streams;
mod strict;
mod timers;

pub(crate) use background::{Background, Chore};
pub use calls::Posting;
pub(crate) use calls::SlowPath;
pub(crate) use device::DeviceState;
pub(crate) use history::HISTORY_LEN;
pub(crate) use management::ManagementAgent;
pub(crate) use outgoing::Resends;
pub(crate) use qp::{QpCore, QpQueues};
pub(crate) use report::{MAX_REGIONS, QpPage};
pub(crate) use srqs::MAX_XRC_SRQ;
pub(crate) use streams::{NewStream, StreamEnd, StreamEvent, Streams};
pub(crate) use strict::{RecvQueueDepth, SendQueueDepth};

use crate::link::{Link, SharedPort};
use crate::local::LocalPeers;
use crate::poller_activity::PollerActivity;
use ferroce_proto::cc::Share;
use groups::Groups;
use progress::Polling;
use qps::QpTable;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// How long the exit of a process waits for a lock. The lock may belong to a thread that no longer runs.
const LOCK_PATIENCE: Duration = Duration::from_millis(100);

/// One progress context of a NIC: its own slot, link, queue pairs and background thread. What a queue pair needs on the data path belongs
/// to its context alone, or is only read.
#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct Engine {
    pub(crate) link: Arc<dyn Link>,
    /// The same link without the rings to processes of this host.
    pub(crate) wire: Arc<dyn Link>,
    /// How packets and wake-ups reach other processes that share the port.
    pub(crate) shared_port: Arc<SharedPort>,
    /// The same-host fabric, if the NIC uses it.
    pub(crate) local_peers: Option<Arc<LocalPeers>>,
    /// What all contexts of the NIC share.
    pub(crate) device: Arc<DeviceState>,
    pub(crate) qps: QpTable,
    /// Bytes that its queue pairs may have in flight together.
    pub(crate) share: Arc<Share>,
    pub(crate) activity: Arc<PollerActivity>,
    /// When the agent of QP1 must be called next.
    agent_ns: AtomicU64,
    /// The link accepts packets that point to their payload.
    may_point: bool,
    groups: Groups,
    polling: Polling,
    /// TCP streams, if the wire is iWARP.
    streams: Option<Streams>,
}

impl Engine {
    pub(crate) fn new(
        link: Arc<dyn Link>,
        wire: Arc<dyn Link>,
        shared_port: Arc<SharedPort>,
        local_peers: Option<Arc<LocalPeers>>,
        activity: Arc<PollerActivity>,
        device: Arc<DeviceState>,
        share: Arc<Share>,
    ) -> Self {
        Engine {
            device,
            share,
            local_peers,
            qps: QpTable::new(shared_port.slot()),
            may_point: link.capabilities().external_payloads,
            polling: Polling::new(link.clone()),
            link,
            wire,
            shared_port,
            activity,
            agent_ns: AtomicU64::new(u64::MAX),
            groups: Groups::default(),
            streams: None,
        }
    }

    /// The same context with iWARP as its wire.
    pub(crate) fn with_streams(self, streams: Streams) -> Self {
        Engine { streams: Some(streams), polling: self.polling.with_streams(), ..self }
    }
}
