//! The counters of the device, summed up over its parts.

use super::{Engine, QpCore};
use crate::counters::{Counters, QpReport, Tally};
use crate::link::LinkCounters;
use std::collections::BTreeMap;

impl Engine {
    /// Completions that wait in the completion queues of live queue pairs.
    pub(crate) fn unpolled_completions(&self) -> usize {
        let qps: Vec<_> = self.device.contexts().iter().flat_map(|context| context.qps.all()).collect();
        let cqs = qps.iter().flat_map(|qp| [&qp.send_cq, &qp.recv_cq]);
        let by_id: BTreeMap<u32, usize> = cqs.map(|cq| (cq.id, cq.waiting())).collect();
        by_id.into_values().sum()
    }

    /// All counters, with at most `most_qps` queue pairs, and how many queue pairs were left out.
    pub(crate) fn report(&self, most_qps: usize) -> (Counters, usize) {
        let contexts = self.device.contexts();
        let qps: Vec<_> = contexts.iter().flat_map(|context| context.qps.all()).collect();
        let left_out = qps.len().saturating_sub(most_qps);
        let tally = Tally::default();
        for qp in &qps {
            tally.add(&qp.tally);
            qp.stream().into_iter().for_each(|stream| tally.add_stream(stream.machine.lock().counters()));
        }
        tally.add(&self.device.counters.retired.lock());
        let mut link = contexts.iter().map(|context| context.link.counters()).sum::<LinkCounters>();
        (link.direct_mapped, link.direct_copied) = (tally.mapped.value(), tally.copied.value());
        (link.rendezvous_sends, link.messages_fetched) = (tally.rendezvous.value(), tally.fetched.value());
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
            queue_pairs: qps.iter().take(most_qps).map(|qp| report_of(qp)).collect(),
        };
        (counters, left_out)
    }
}

fn report_of(qp: &QpCore) -> QpReport {
    match qp.stream() {
        Some(stream) => QpReport::of_stream(&stream.machine.lock(), stream.peer()),
        None => QpReport::of(&qp.machine.lock()),
    }
}
