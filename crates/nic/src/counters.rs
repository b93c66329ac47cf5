//! What the device counts.

use crate::link::LinkCounters;
use ferroce_os::lock::Mutex;
use ferroce_proto::Qpn;
use ferroce_proto::cc::CongestionControl;
use ferroce_proto::iwarp::StreamQp;
use ferroce_proto::qp::{DropReason, QpCounters, RefusalReason};
use ferroce_proto::verbs::QpState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The counters of a queue pair for its device. Written under its lock, read by any thread.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) completions: Count,
    /// Those with an error of their own; flushed ones are not among them.
    pub(crate) failed_completions: Count,
    /// Requests that were still queued when their queue pair stopped.
    pub(crate) flushed_completions: Count,
    /// One-sided operations in the memory of a local peer: mapped, and by the kernel.
    pub(crate) mapped: Count,
    pub(crate) copied: Count,
    /// Packets that were written into a ring without the link, and their bytes.
    pub(crate) ring_packets: Count,
    pub(crate) ring_bytes: Count,
    /// Rendezvous sends among them.
    pub(crate) rendezvous: Count,
    /// Messages of the peer that were copied from its memory, mapped here.
    pub(crate) fetched: Count,
    /// iWARP: FPDUs and their payload, counted when the queue pair is destroyed or reported.
    pub(crate) tx_fpdus: Count,
    pub(crate) tx_fpdu_bytes: Count,
    pub(crate) rx_fpdus: Count,
    pub(crate) rx_fpdu_bytes: Count,
}

/// A number with one writer at a time.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Only under the lock: a plain addition, since a locked one takes longer than some requests.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Tally {
    /// Adds the counters of a stream.
    pub(crate) fn add_stream(&self, counters: &QpCounters) {
        self.tx_fpdus.add(counters.tx_packets);
        self.tx_fpdu_bytes.add(counters.tx_bytes);
        self.rx_fpdus.add(counters.rx_packets);
        self.rx_fpdu_bytes.add(counters.rx_bytes);
    }

    /// Adds the counters of another tally.
    pub(crate) fn add(&self, other: &Tally) {
        self.completions.add(other.completions.value());
        self.failed_completions.add(other.failed_completions.value());
        self.flushed_completions.add(other.flushed_completions.value());
        self.mapped.add(other.mapped.value());
        self.copied.add(other.copied.value());
        self.ring_packets.add(other.ring_packets.value());
        self.ring_bytes.add(other.ring_bytes.value());
        self.rendezvous.add(other.rendezvous.value());
        self.fetched.add(other.fetched.value());
        self.tx_fpdus.add(other.tx_fpdus.value());
        self.tx_fpdu_bytes.add(other.tx_fpdu_bytes.value());
        self.rx_fpdus.add(other.rx_fpdus.value());
        self.rx_fpdu_bytes.add(other.rx_fpdu_bytes.value());
    }
}

/// Counters that any thread of the engine may increment.
#[derive(Default)]
pub(crate) struct DeviceCounters {
    drops: [AtomicU64; DropReason::ALL.len()],
    refusals: [AtomicU64; RefusalReason::ALL.len()],
    /// The counters of destroyed queue pairs.
    pub(crate) retired: Mutex<Tally>,
    /// Packets that destroyed queue pairs retransmitted.
    pub(crate) retransmitted: AtomicU64,
    /// Where the counters are reported at the end, if a report was requested.
    pub(crate) report: OnceLock<ReportPlan>,
}

/// Where a report goes, and the counts of live objects in it.
pub(crate) struct ReportPlan {
    pub(crate) file: PathBuf,
    pub(crate) objects: Vec<(&'static str, Arc<AtomicU32>)>,
}

impl DeviceCounters {
    pub(crate) fn dropped(&self, reason: DropReason) {
        self.drops[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self, reason: RefusalReason) {
        self.refusals[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refusals(&self) -> BTreeMap<&'static str, u64> {
        let count = |reason: &RefusalReason| self.refusals[*reason as usize].load(Ordering::Relaxed);
        RefusalReason::ALL.iter().map(|reason| (reason.name(), count(reason))).collect()
    }

    pub(crate) fn drops(&self) -> BTreeMap<&'static str, u64> {
        DropReason::ALL.iter().map(|r| (r.name(), self.drops[*r as usize].load(Ordering::Relaxed))).collect()
    }
}

/// Everything a device counted, and each of its queue pairs.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// Process that owns the device.
    pub pid: u32,
    /// Slot among the processes of this user: the high eight bits of its queue pair numbers.
    pub slot: u8,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Requests refused, by reason.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Completions made.
    pub completions: u64,
    /// Those with an error of their own; flushed ones are not among them.
    pub failed_completions: u64,
    /// Completions of requests that were still queued when their queue pair stopped.
    pub flushed_completions: u64,
    /// Counters of the connection manager, and its pending work.
    pub cm: BTreeMap<&'static str, u64>,
    /// What the link did.
    pub link: LinkCounters,
    /// Queue pairs.
    pub queue_pairs: Vec<QpReport>,
}

/// One queue pair in [`Counters`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QpReport {
    /// Its number.
    pub qpn: u32,
    /// RC, UC or UD.
    pub transport: String,
    /// Its state.
    pub state: String,
    /// The peer's number (connected transports).
    pub peer_qpn: u32,
    /// The peer's address.
    pub peer: String,
    /// Sends not completed.
    pub sends_outstanding: usize,
    /// Receives waiting.
    pub recvs_waiting: usize,
    /// Packets sent.
    pub tx_packets: u64,
    /// Payload bytes sent.
    pub tx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
    /// Packets retransmitted.
    pub retransmitted: u64,
    /// Transport timer expiries.
    pub timeouts: u64,
    /// Early probes.
    pub probes: u64,
    /// Sequence NAKs received.
    pub naks_received: u64,
    /// NAKs sent.
    pub naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_received: u64,
    /// RNR NAKs sent.
    pub rnr_sent: u64,
    /// Duplicate requests received.
    pub duplicates: u64,
    /// Requests received out of order.
    pub out_of_order: u64,
    /// One-sided operations executed directly in the peer's memory, without a packet.
    #[serde(default)]
    pub performed: u64,
    /// Congestion window in bytes; 0 for datagrams.
    #[serde(default)]
    pub window_bytes: u32,
    /// Current rate in bytes per second, if its congestion control has one.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Packets received that a switch had marked (ECN).
    #[serde(default)]
    pub ecn_marked: u64,
    /// Congestion notifications (CNPs) sent.
    #[serde(default)]
    pub cnps_sent: u64,
    /// Congestion notifications received.
    #[serde(default)]
    pub cnps_received: u64,
    /// Packets (or READ responses) in flight.
    #[serde(default)]
    pub in_flight: u32,
    /// Its completion queues, for sends and for receives.
    #[serde(default)]
    pub cqs: [u32; 2],
}

/// One completion queue in a [snapshot](crate::inspect::Snapshot).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CqReport {
    /// Its number.
    pub id: u32,
    /// Entries.
    pub depth: usize,
    /// Completions that wait.
    pub waiting: usize,
}

/// One memory region or bound memory window in a [snapshot](crate::inspect::Snapshot).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RegionReport {
    /// First byte in the process.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The protection domain.
    pub pd: u32,
    /// The key of local work requests.
    pub lkey: u32,
    /// The key of peers.
    pub rkey: u32,
    /// What is allowed.
    pub access: String,
    /// Whether it is a memory window.
    pub is_window: bool,
}

/// The objects of a device except its queue pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ObjectReport {
    /// The completion queues of the listed queue pairs.
    #[serde(default)]
    pub completion_queues: Vec<CqReport>,
    /// The largest memory regions and windows.
    #[serde(default)]
    pub regions: Vec<RegionReport>,
    /// Regions and windows that are not listed.
    #[serde(default)]
    pub regions_left_out: u64,
    /// Bytes of all regions.
    #[serde(default)]
    pub region_bytes: u64,
    /// The events of the requested queue pair, the oldest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<HistoryReport>>,
}

/// One event in the history of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HistoryReport {
    /// The last time it happened, on `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// How often in a row, or for retransmissions how many packets.
    pub count: u64,
    /// What happened.
    pub what: String,
}

impl QpReport {
    pub(crate) fn of(qp: &ferroce_proto::qp::Qp) -> Self {
        let (attr, (window_bytes, in_flight)) = (qp.query(), qp.window());
        QpReport {
            transport: format!("{:?}", qp.transport()).to_uppercase(),
            peer_qpn: attr.dest_qpn.value(),
            peer: qp.route().dgid.to_ip().to_string(),
            sends_outstanding: qp.sends_outstanding(),
            recvs_waiting: qp.recvs_waiting(),
            rate: qp.congestion().and_then(|congestion| congestion.rate()),
            window_bytes,
            in_flight,
            ..QpReport::counted(qp.qpn(), qp.state(), qp.counters())
        }
    }

    /// Of a queue pair over a stream. The peer's number is not known here.
    pub(crate) fn of_stream(qp: &StreamQp, peer: Option<IpAddr>) -> Self {
        QpReport {
            transport: "RC".to_owned(),
            peer: peer.map_or_else(String::new, |peer| peer.to_string()),
            sends_outstanding: qp.sends_outstanding(),
            recvs_waiting: qp.recvs_waiting(),
            ..QpReport::counted(qp.qpn(), qp.state(), qp.counters())
        }
    }

    fn counted(qpn: Qpn, state: QpState, counters: &QpCounters) -> Self {
        let QpCounters {
            tx_packets,
            tx_bytes,
            rx_packets,
            rx_bytes,
            retransmitted,
            timeouts,
            probes,
            naks_received,
            naks_sent,
            rnr_received,
            rnr_sent,
            duplicates,
            out_of_order,
            performed,
            ecn_marked,
            cnps_sent,
            cnps_received,
            ..
        } = *counters;
        QpReport {
            qpn: qpn.value(),
            transport: String::new(),
            state: ferroce_proto::qp::state::state_name(state).to_owned(),
            peer_qpn: 0,
            peer: String::new(),
            sends_outstanding: 0,
            recvs_waiting: 0,
            tx_packets,
            tx_bytes,
            rx_packets,
            rx_bytes,
            retransmitted,
            timeouts,
            probes,
            naks_received,
            naks_sent,
            rnr_received,
            rnr_sent,
            duplicates,
            out_of_order,
            performed,
            window_bytes: 0,
            rate: None,
            ecn_marked,
            cnps_sent,
            cnps_received,
            in_flight: 0,
            cqs: [0; 2],
        }
    }
}
