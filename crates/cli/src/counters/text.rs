//! Counters as text: one block per NIC, without zeros unless requested.

use super::{Report, meaning};
use crate::sizes::format_size;
use crate::table::{self, Align, Column, Table};
use ferroce_nic::QpReport;
use ferroce_nic::inspect::Snapshot;
use std::collections::BTreeMap;

/// The whole text, without a final newline.
pub(super) fn render(report: &Report, show_zeros: bool) -> String {
    let mut blocks: Vec<String> = report.devices.iter().map(|device| block(device, show_zeros)).collect();
    blocks.extend(report.unanswered.iter().map(|unanswered| format!("{}.", printable(&unanswered.why))));
    if blocks.is_empty() {
        return "No process of this user has a device open: nothing to count.".into();
    }
    blocks.join("\n\n\n")
}

fn block(device: &Snapshot, show_zeros: bool) -> String {
    let table = |title, unit, counters: BTreeMap<&str, u64>, meaning| {
        let shown = counters.into_iter().filter(|(_, count)| show_zeros || *count > 0);
        counter_table(title, unit, &shown.collect::<Vec<_>>(), meaning)
    };
    let dropped = table("dropped because", "packets", drops(device), meaning::of_drop);
    let mut parts = vec![heading(device), dropped.unwrap_or_else(|| "No packet was dropped.".to_owned())];
    parts.extend(table("refused because", "requests", by_name(&device.refusals), meaning::of_refusal));
    parts.extend(table("connection manager", "count", by_name(&device.cm), meaning::of_cm));
    let mut link = by_name(&device.link);
    link.retain(|name, _| !meaning::is_drop(name));
    parts.extend(table("link", "count", link, meaning::of_link));
    if !device.queue_pairs.is_empty() {
        parts.push(table::of(&QP_COLUMNS, &device.queue_pairs));
    }
    if device.queue_pairs_left_out > 0 {
        parts.push(format!("… and {} more queue pairs.", device.queue_pairs_left_out));
    }
    parts.join("\n\n")
}

fn by_name(counters: &BTreeMap<String, u64>) -> BTreeMap<&str, u64> {
    counters.iter().map(|(name, count)| (name.as_str(), *count)).collect()
}

fn heading(device: &Snapshot) -> String {
    let qps = device.queue_pairs.len() as u64 + device.queue_pairs_left_out;
    format!(
        "{} of process {} ({}), slot {}, open for {}\n{qps} queue pair{}, {} completions of which {} failed and {} were flushed, \
         MTU {} B, window {}",
        printable(&device.device),
        device.pid,
        printable(&device.command),
        device.slot,
        uptime(device.uptime_ms),
        if qps == 1 { "" } else { "s" },
        device.completions,
        device.failed_completions,
        device.flushed_completions,
        device.attributes.active_mtu,
        format_size(device.attributes.window_bytes.into()),
    )
}

/// Dropped packets by reason, including those of the link.
pub(crate) fn drops(device: &Snapshot) -> BTreeMap<&str, u64> {
    let link = device.link.iter().filter(|(name, _)| meaning::is_drop(name));
    let mut drops = BTreeMap::new();
    for (name, count) in device.drops.iter().chain(link) {
        let total: &mut u64 = drops.entry(name.as_str()).or_default();
        *total = total.saturating_add(*count);
    }
    drops
}

/// `None` without counters.
fn counter_table(
    title: &str,
    unit: &str,
    counters: &[(&str, u64)],
    meaning: fn(&str) -> &'static str,
) -> Option<String> {
    let mut table = Table::new(&[(title, Align::Left), (unit, Align::Right), ("meaning", Align::Left)]);
    for (name, count) in counters {
        table.line([printable(name), count.to_string(), meaning(name).to_owned()]);
    }
    (!counters.is_empty()).then(|| table.render())
}

const QP_COLUMNS: [Column<QpReport>; 15] = [
    ("QP", Align::Left, |qp| format!("{:#08x}", qp.qpn)),
    ("type", Align::Left, |qp| printable(&qp.transport)),
    ("state", Align::Left, |qp| printable(&qp.state)),
    ("peer", Align::Left, |qp| if has_peer(qp) { printable(&qp.peer) } else { "-".into() }),
    ("peer QP", Align::Left, |qp| if has_peer(qp) { format!("{:#08x}", qp.peer_qpn) } else { "-".into() }),
    ("sends\nopen", Align::Right, |qp| qp.sends_outstanding.to_string()),
    ("receives\nposted", Align::Right, |qp| qp.recvs_waiting.to_string()),
    ("done\ndirectly", Align::Right, |qp| qp.performed.to_string()),
    ("packets\nsent", Align::Right, |qp| qp.tx_packets.to_string()),
    ("bytes\nsent", Align::Right, |qp| qp.tx_bytes.to_string()),
    ("packets\nreceived", Align::Right, |qp| qp.rx_packets.to_string()),
    ("bytes\nreceived", Align::Right, |qp| qp.rx_bytes.to_string()),
    ("packets\nsent again", Align::Right, |qp| qp.retransmitted.to_string()),
    ("time-\nouts", Align::Right, |qp| qp.timeouts.to_string()),
    ("RNR\nreceived", Align::Right, |qp| qp.rnr_received.to_string()),
];

fn has_peer(qp: &QpReport) -> bool {
    qp.peer != "::"
}

/// A time in the two largest units.
pub(crate) fn uptime(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds}.{} s", ms % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Replaces characters with which the name of another process could control the terminal, or change the direction or width of other text.
pub(crate) fn printable(text: &str) -> String {
    let is_format = |c| matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    text.chars().map(|c| if c.is_control() || is_format(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Unanswered;
    use serde_json::json;

    fn snapshot() -> Snapshot {
        let qp = |qpn: u32, peer: &str| {
            json!({
                "qpn": qpn, "transport": "RC", "state": "RTS", "peer_qpn": 0x20002, "peer": peer,
                "sends_outstanding": 1, "recvs_waiting": 16, "tx_packets": 100, "tx_bytes": 409600,
                "rx_packets": 50, "rx_bytes": 0, "retransmitted": 3, "timeouts": 1, "probes": 0,
                "naks_received": 0, "naks_sent": 0, "rnr_received": 0, "rnr_sent": 0, "duplicates": 0,
                "out_of_order": 0, "performed": 1234,
            })
        };
        let value = json!({
            "format": 1, "device": "ferroce0", "pid": 42, "command": "a\u{1b}[2Jb", "slot": 1,
            "uptime_ms": 61_500,
            "attributes": {
                "max_qp": 1, "max_qp_wr": 1, "max_sge": 1, "max_inline_data": 1, "max_cqe": 1, "max_mr": 1,
                "max_rd_atomic": 1, "max_msg_sz": 1, "gid_tbl_len": 1, "active_mtu": 4096,
                "window_bytes": 524_288,
            },
            "completions": 7, "failed_completions": 2,
            "drops": {"bad_icrc": 0, "bad_psn": 4},
            "cm": {"sent_req": 3, "stale": 0},
            "link": {"bad_icrc": 9, "tx_packets": 100, "repairs": 0, "brand_new": 1, "rx_overruns": 0},
            "queue_pairs": [qp(0x10001, "127.0.0.1"), qp(0x10002, "::")],
            "queue_pairs_left_out": 3,
        });
        serde_json::from_value(value).expect("a snapshot")
    }

    fn words(text: &str, name: &str) -> Vec<String> {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn no_running_device_is_reported() {
        let report = Report { devices: Vec::new(), unanswered: Vec::new() };
        assert!(render(&report, false).contains("nothing to count"));
    }

    #[test]
    fn a_block_shows_what_is_not_zero() {
        let report = Report { devices: vec![snapshot()], unanswered: Vec::new() };
        let text = render(&report, false);
        assert!(
            text.starts_with("ferroce0 of process 42 (a?[2Jb), slot 1, open for 1 min 1 s\n5 queue pairs, 7")
        );
        assert_eq!(words(&text, "bad_icrc")[1], "9", "the link's are added\n{text}");
        assert_eq!(words(&text, "bad_psn")[1], "4");
        assert_eq!(words(&text, "brand_new")[1], "1");
        assert_eq!(words(&text, "sent_req")[1], "3");
        assert!(words(&text, "stale").is_empty());
        assert!(words(&text, "repairs").is_empty() && words(&text, "rx_overruns").is_empty());
        assert_eq!(words(&text, "0x010001")[3..9], ["127.0.0.1", "0x020002", "1", "16", "1234", "100"]);
        assert_eq!(words(&text, "0x010002")[3..5], ["-", "-"]);
        assert!(text.ends_with("… and 3 more queue pairs."));
    }

    #[test]
    fn zeros_are_shown_on_request() {
        let why = "process 9 is stopped".to_owned();
        let report = Report { devices: vec![snapshot()], unanswered: vec![Unanswered { pid: None, why }] };
        let text = render(&report, true);
        assert_eq!(words(&text, "rx_overruns")[1], "0");
        assert_eq!(words(&text, "repairs")[1], "0");
        assert!(text.ends_with("\n\nprocess 9 is stopped."));
    }

    #[test]
    fn a_device_without_drops_is_reported() {
        let mut device = snapshot();
        device.drops.clear();
        device.link.clear();
        assert!(block(&device, false).contains("No packet was dropped."));
    }

    #[test]
    fn names_cannot_hide_or_turn_text() {
        assert_eq!(printable("a\u{1b}[2J\u{202e}b\u{200b}\nµ字"), "a?[2J?b??µ字");
    }

    #[test]
    fn uptimes() {
        assert_eq!(
            [900, 59_999, 60_000, 7_260_000].map(uptime),
            ["0.9 s", "59.9 s", "1 min 0 s", "2 h 1 min"]
        );
    }
}
