//! What the device counts.

use crate::link::LinkCounters;
use ferroce_os::lock::Mutex;
use ferroce_proto::Qpn;
use ferroce_proto::iwarp::StreamQp;
use ferroce_proto::qp::{DropReason, QpCounters, RefusalReason};
use ferroce_proto::verbs::QpState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What a queue pair counted for its device. Written under its lock, read by anybody.
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
    /// Packets that went past the link, and their bytes.
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
    /// Only under the lock: a plain addition, for a locked one takes longer than some requests.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Tally {
    /// Takes over what a stream counted.
    pub(crate) fn add_stream(&self, counters: &QpCounters) {
        self.tx_fpdus.add(counters.tx_packets);
        self.tx_fpdu_bytes.add(counters.tx_bytes);
        self.rx_fpdus.add(counters.rx_packets);
        self.rx_fpdu_bytes.add(counters.rx_bytes);
    }

    /// Takes over what another counted.
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

/// Counters that any thread of the engine may bump.
#[derive(Default)]
pub(crate) struct DeviceCounters {
    drops: [AtomicU64; DropReason::ALL.len()],
    refusals: [AtomicU64; RefusalReason::ALL.len()],
    /// What queue pairs counted that are destroyed.
    pub(crate) retired: Mutex<Tally>,
    /// Packets that queue pairs sent again, of those that are destroyed.
    pub(crate) retransmitted: AtomicU64,
    /// Where all of this is to be reported at the end, if anywhere.
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
    /// What the connection manager did, and how much it has to do now.
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
    /// Packets sent again.
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
    /// Requests that came again.
    pub duplicates: u64,
    /// Requests that came too early.
    pub out_of_order: u64,
    /// One-sided operations done at once in the peer's memory, without a packet.
    #[serde(default)]
    pub performed: u64,
}

impl QpReport {
    pub(crate) fn of(qp: &ferroce_proto::qp::Qp) -> Self {
        let attr = qp.query();
        QpReport {
            transport: format!("{:?}", qp.transport()).to_uppercase(),
            peer_qpn: attr.dest_qpn.value(),
            peer: qp.route().dgid.to_ip().to_string(),
            sends_outstanding: qp.sends_outstanding(),
            recvs_waiting: qp.recvs_waiting(),
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
        }
    }
}
