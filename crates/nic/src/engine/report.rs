//! The counters of the device, summed up over its parts, and the reports about its objects.

use super::{Engine, LOCK_PATIENCE, QpCore};
use crate::counters::{Counters, CqReport, HistoryReport, ObjectReport, QpReport, RegionReport, Tally};
use crate::link::LinkCounters;
use crate::memory::{COPIES, Region};
use ferroce_os::lock::lock_within;
use ferroce_proto::verbs::Access;
use ferroce_proto::{LKey, PdId, Qpn, RKey};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most regions that are listed, and most slots of the table that are read. Both bound the time of a report.
pub(crate) const MAX_REGIONS: usize = 48;
const MAX_SLOTS: usize = 16_384;

/// Which queue pairs a report lists, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpPage {
    /// Only those with a larger number.
    pub(crate) after: u32,
    /// At most this many.
    pub(crate) most: usize,
}

impl QpPage {
    /// All of them.
    pub(crate) const ALL: QpPage = QpPage { after: 0, most: usize::MAX };
}

/// Counters, and the queue pairs that they list.
pub(crate) struct Report {
    pub(crate) counters: Counters,
    /// Queue pairs after the listed ones.
    pub(crate) left_out: usize,
    listed: Vec<Arc<QpCore>>,
}

impl Engine {
    /// Completions that wait in the completion queues of live queue pairs.
    pub(crate) fn unpolled_completions(&self) -> usize {
        let qps: Vec<_> = self.device.contexts().iter().flat_map(|context| context.qps.all()).collect();
        let cqs = qps.iter().flat_map(|qp| [&qp.send_cq, &qp.recv_cq]);
        let by_id: BTreeMap<u32, usize> = cqs.map(|cq| (cq.id, cq.waiting())).collect();
        by_id.into_values().sum()
    }

    /// All counters, with a page of the queue pairs in the order of their numbers. At the exit of a process the lock of a queue pair may belong
    /// to a thread that no longer runs; that queue pair is not listed.
    pub(crate) fn report(&self, page: QpPage) -> Report {
        let contexts = self.device.contexts();
        let tally = Tally::default();
        // A queue pair that is destroyed meanwhile is counted once: `retire` holds the lock, too.
        let retired = lock_within(&self.device.counters.retired, LOCK_PATIENCE);
        let mut qps: Vec<_> = contexts.iter().flat_map(|context| context.qps.all()).collect();
        qps.iter().for_each(|qp| tally.add(&qp.tally));
        retired.iter().for_each(|retired| tally.add(retired));
        drop(retired);
        let streams = qps.iter().filter_map(|qp| qp.stream());
        streams
            .filter_map(|stream| lock_within(&stream.machine, LOCK_PATIENCE))
            .for_each(|machine| tally.add_stream(machine.counters()));
        qps.retain(|qp| qp.qpn.value() > page.after);
        qps.sort_unstable_by_key(|qp| qp.qpn.value());
        let left_out = qps.len().saturating_sub(page.most);
        qps.truncate(page.most);
        let mut link = contexts.iter().map(|context| context.link.counters()).sum::<LinkCounters>();
        (link.direct_mapped, link.direct_copied) = (tally.mapped.value(), tally.copied.value());
        (link.rendezvous_sends, link.messages_fetched) = (tally.rendezvous.value(), tally.fetched.value());
        [link.direct_gpu, link.staged_gpu] = COPIES.values();
        link.local_tx_packets += tally.ring_packets.value();
        link.local_tx_bytes += tally.ring_bytes.value();
        // A packet of iWARP is an FPDU.
        link.tx_packets += tally.tx_fpdus.value();
        link.tx_bytes += tally.tx_fpdu_bytes.value();
        link.rx_packets += tally.rx_fpdus.value();
        link.rx_bytes += tally.rx_fpdu_bytes.value();
        let counters = Counters {
            pid: std::process::id(),
            slot: self.shared_port.slot(),
            drops: self.device.counters.drops(),
            refusals: self.device.counters.refusals(),
            completions: tally.completions.value(),
            failed_completions: tally.failed_completions.value(),
            flushed_completions: tally.flushed_completions.value(),
            cm: self.agent().map(|agent| agent.named_counters()).unwrap_or_default(),
            link,
            queue_pairs: qps.iter().filter_map(|qp| report_of(qp)).collect(),
        };
        Report { counters, left_out, listed: qps }
    }

    /// What belongs to the queue pairs of `report`, the memory, and the history of a queue pair if one is named.
    pub(crate) fn objects(&self, report: &Report, history_of: Option<Qpn>) -> ObjectReport {
        let (mut regions, mut seen, mut region_bytes) = (Vec::new(), 0, 0_u64);
        self.device.regions.each(MAX_SLOTS, |region| {
            seen += 1;
            if !region.is_window() {
                region_bytes = region_bytes.saturating_add(region.len);
            }
            regions.push(RegionFacts::of(region));
            if regions.len() > 4 * MAX_REGIONS {
                keep_largest(&mut regions);
            }
        });
        keep_largest(&mut regions);
        let known = self.device.regions.count().unwrap_or(seen).max(seen);
        let qp = history_of.and_then(|qpn| self.device.find_qp(qpn));
        ObjectReport {
            completion_queues: cqs_of(&report.listed).into_values().collect(),
            regions_left_out: (known - regions.len()) as u64,
            regions: regions.into_iter().map(RegionFacts::report).collect(),
            region_bytes,
            history: qp.map(|(_, qp)| history_report(&qp)),
        }
    }
}

/// What is copied of a region under its lock. Only listed regions are converted to text.
struct RegionFacts {
    base: usize,
    len: u64,
    pd: PdId,
    keys: (LKey, RKey),
    access: Access,
    is_window: bool,
}

impl RegionFacts {
    fn of(region: &Region) -> RegionFacts {
        let &Region { base, len, pd, lkey, rkey, access, .. } = region;
        RegionFacts { base, len, pd, keys: (lkey, rkey), access, is_window: region.is_window() }
    }

    fn report(self) -> RegionReport {
        let RegionFacts { base, len, pd, keys: (lkey, rkey), access, is_window } = self;
        let (addr, access) = (base as u64, access.to_string());
        RegionReport { addr, len, pd: pd.0, lkey: lkey.0, rkey: rkey.0, access, is_window }
    }
}

fn keep_largest(regions: &mut Vec<RegionFacts>) {
    regions.sort_by_key(|region| std::cmp::Reverse(region.len));
    regions.truncate(MAX_REGIONS);
}

fn cqs_of(qps: &[Arc<QpCore>]) -> BTreeMap<u32, CqReport> {
    let cqs = qps.iter().flat_map(|qp| [&qp.send_cq, &qp.recv_cq]);
    let report = |id, cq: &crate::queues::CqCore| CqReport { id, depth: cq.depth(), waiting: cq.waiting() };
    cqs.map(|cq| (cq.id, report(cq.id, cq))).collect()
}

fn history_report(qp: &QpCore) -> Vec<HistoryReport> {
    let entries = qp.history.entries().into_iter();
    let report = |entry: super::history::Entry| HistoryReport {
        at_ns: entry.at_ns,
        count: entry.count.into(),
        what: entry.event.to_string(),
    };
    entries.map(report).collect()
}

fn report_of(qp: &QpCore) -> Option<QpReport> {
    let report = match qp.stream() {
        Some(stream) => QpReport::of_stream(&*lock_within(&stream.machine, LOCK_PATIENCE)?, stream.peer()),
        None => QpReport::of(&*lock_within(&qp.machine, LOCK_PATIENCE)?),
    };
    Some(QpReport { cqs: [qp.send_cq.id, qp.recv_cq.id], ..report })
}
