//! The document in which a NIC describes itself.

use crate::counters::{Counters, ObjectReport, QpReport};
use crate::device_attr::{DEVICE_NAME, DeviceAttr};
use ferroce_os::clock::now;
use ferroce_shm::registry::{FIRST_SLOT, LAST_SLOT};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the document. A new field does not change it; readers must ignore unknown fields.
const FORMAT: u32 = 1;

/// The document as it is written.
#[derive(Serialize)]
pub(super) struct Document {
    format: u32,
    device: &'static str,
    command: String,
    uptime_ms: u64,
    attributes: DeviceAttr,
    #[serde(flatten)]
    counters: Counters,
    queue_pairs_left_out: usize,
    now_ns: u64,
    #[serde(flatten)]
    objects: ObjectReport,
}

impl Document {
    pub(super) fn new(
        uptime_ms: u64,
        attributes: DeviceAttr,
        counters: Counters,
        queue_pairs_left_out: usize,
        objects: ObjectReport,
    ) -> Document {
        let command = std::fs::read("/proc/self/comm").unwrap_or_default();
        let command = String::from_utf8_lossy(&command).trim_end_matches('\n').to_owned();
        Document {
            format: FORMAT,
            device: DEVICE_NAME,
            command,
            uptime_ms,
            attributes,
            counters,
            queue_pairs_left_out,
            now_ns: now().0,
            objects,
        }
    }
}

/// The document as it is read: one NIC of a running process. Counters are maps by name here, because the other process may have a version
/// with more or fewer counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Version of the document.
    format: u32,
    /// Name of the device.
    pub device: String,
    /// Process that has it open.
    pub pid: u32,
    /// Name of its program, as the kernel shortens it.
    pub command: String,
    /// Slot among the processes of this user: the high eight bits of the queue pair numbers of its first progress context.
    pub slot: u8,
    /// Time since the device was opened.
    pub uptime_ms: u64,
    /// Attributes of the device.
    pub attributes: DeviceAttr,
    /// Number of completions.
    pub completions: u64,
    /// Completions with an error other than a flush; older versions include flushed ones.
    pub failed_completions: u64,
    /// Completions of requests that were still queued when their queue pair stopped; zero from older versions.
    #[serde(default)]
    pub flushed_completions: u64,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Requests refused, by reason; empty from older versions.
    #[serde(default)]
    pub refusals: BTreeMap<String, u64>,
    /// Counters of the connection manager; empty from older versions.
    #[serde(default)]
    pub cm: BTreeMap<String, u64>,
    /// Counters of the link.
    pub link: BTreeMap<String, u64>,
    /// Queue pairs, as many as fit.
    pub queue_pairs: Vec<QpReport>,
    /// Queue pairs that did not fit.
    pub queue_pairs_left_out: u64,
    /// When it was written, on `CLOCK_MONOTONIC`; zero from older versions.
    #[serde(default)]
    pub now_ns: u64,
    /// Completion queues, memory and history; empty from older versions.
    #[serde(flatten)]
    pub objects: ObjectReport,
}

impl Snapshot {
    /// Parses a document and checks that the NIC in `slot` can have written it.
    pub(super) fn parse(bytes: &[u8], slot: u8) -> Result<Snapshot, String> {
        let snapshot: Snapshot = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        // A progress context has a slot of its own.
        let is_wrong =
            |qp: &&QpReport| !(u32::from(FIRST_SLOT)..=u32::from(LAST_SLOT)).contains(&(qp.qpn >> 16));
        if snapshot.format != FORMAT {
            return Err(format!("format {}, where this program knows {FORMAT}", snapshot.format));
        }
        if snapshot.slot != slot {
            return Err(format!("it says it is in slot {}", snapshot.slot));
        }
        if let Some(qp) = snapshot.queue_pairs.iter().find(is_wrong) {
            return Err(format!("{:#x} is not the number of a queue pair", qp.qpn));
        }
        Ok(snapshot)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::counters::{CqReport, HistoryReport, RegionReport};
    use crate::link::LinkCounters;
    use ferroce_proto::qp::{HistoryEvent, Reason};
    use ferroce_proto::verbs::{Access, WcStatus};

    pub(in crate::inspect) fn attributes() -> DeviceAttr {
        DeviceAttr {
            max_qp: 1,
            max_qp_wr: 2,
            max_sge: 3,
            max_inline_data: 4,
            max_cqe: 5,
            max_mr: 6,
            max_rd_atomic: 7,
            max_msg_sz: 8,
            gid_tbl_len: 9,
            active_mtu: 1024,
            largest_mtu: 4096,
            window_bytes: 10,
        }
    }

    /// A queue pair whose text is as long as it can be.
    pub(in crate::inspect) fn longest_qp() -> QpReport {
        let most = u64::MAX;
        QpReport {
            qpn: 0x7f_ffff,
            transport: "RC".into(),
            state: "RESET".into(),
            peer_qpn: 0xff_ffff,
            peer: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".into(),
            sends_outstanding: usize::MAX,
            recvs_waiting: usize::MAX,
            tx_packets: most,
            tx_bytes: most,
            rx_packets: most,
            rx_bytes: most,
            retransmitted: most,
            timeouts: most,
            probes: most,
            naks_received: most,
            naks_sent: most,
            rnr_received: most,
            rnr_sent: most,
            duplicates: most,
            out_of_order: most,
            performed: most,
            window_bytes: u32::MAX,
            rate: Some(most),
            ecn_marked: most,
            cnps_sent: most,
            cnps_received: most,
            in_flight: u32::MAX,
            cqs: [u32::MAX; 2],
        }
    }

    pub(in crate::inspect) fn longest_cq() -> CqReport {
        CqReport { id: u32::MAX, depth: usize::MAX, waiting: usize::MAX }
    }

    pub(in crate::inspect) fn longest_region() -> RegionReport {
        let (addr, len, most) = (u64::MAX, u64::MAX, u32::MAX);
        let access = Access::all().to_string();
        RegionReport { addr, len, pd: most, lkey: most, rkey: most, access, is_window: false }
    }

    pub(in crate::inspect) fn longest_event() -> HistoryReport {
        let reasons = Reason::ALL.iter().map(|reason| *reason as u32);
        let failed = |vendor_err| HistoryEvent::Failed {
            status: WcStatus::RnrRetryExcErr,
            wr_id: u64::MAX,
            vendor_err,
        };
        let what = reasons.map(|reason| failed(reason).to_string()).max_by_key(String::len).unwrap();
        HistoryReport { at_ns: u64::MAX, count: u64::MAX, what }
    }

    fn document() -> Vec<u8> {
        let counters = Counters {
            pid: 42,
            slot: 0x7f,
            drops: [("bad_psn", 3)].into(),
            refusals: [("denied", 2)].into(),
            completions: 5,
            failed_completions: 1,
            flushed_completions: 2,
            cm: [("sent_req", 4)].into(),
            link: LinkCounters { tx_packets: 9, ..LinkCounters::default() },
            queue_pairs: vec![longest_qp()],
        };
        let objects = ObjectReport {
            completion_queues: vec![longest_cq()],
            regions: vec![longest_region()],
            history: Some(vec![longest_event()]),
            ..ObjectReport::default()
        };
        serde_json::to_vec(&Document::new(77, attributes(), counters, 6, objects)).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let read = Snapshot::parse(&document(), 0x7f).unwrap();
        assert_eq!((read.pid, read.uptime_ms, read.queue_pairs_left_out), (42, 77, 6));
        assert_eq!((read.drops["bad_psn"], read.refusals["denied"], read.link["tx_packets"]), (3, 2, 9));
        assert_eq!(read.cm["sent_req"], 4);
        assert_eq!((read.completions, read.failed_completions, read.flushed_completions), (5, 1, 2));
        assert_eq!((read.queue_pairs, read.attributes), (vec![longest_qp()], attributes()));
        assert_eq!(
            (&read.objects.completion_queues[0], &read.objects.regions[0]),
            (&longest_cq(), &longest_region())
        );
        assert_eq!(read.objects.history, Some(vec![longest_event()]));
        assert!(!read.command.is_empty() && !read.command.contains('\n'), "{:?}", read.command);
    }

    #[test]
    fn additions_are_passed_over_and_lies_are_refused() {
        let text = String::from_utf8(document()).unwrap();
        let parse = |from: &str, to: &str| Snapshot::parse(text.replacen(from, to, 1).as_bytes(), 0x7f);
        assert!(parse("{", "{\"new\":[1,{}],").is_ok());
        assert!(parse("\"format\":1", "\"format\":2").unwrap_err().contains("format 2"));
        assert!(parse("\"slot\":127", "\"slot\":126").unwrap_err().contains("slot 126"));
        assert!(parse("\"qpn\":8388607", "\"qpn\":65535").unwrap_err().contains("0xffff"));
        assert!(parse("\"pid\"", "\"pit\"").unwrap_err().contains("pid"));
        assert!(Snapshot::parse(&text.as_bytes()[..text.len() - 1], 0x7f).is_err());
    }
}
