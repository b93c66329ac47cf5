//! The metrics, in the OpenMetrics format or the older text format of Prometheus. Both list the same; they differ in the names of counter families
//! and in the end mark.

use super::totals::Totals;
use crate::counters::{Report, printable};
use crate::top::sample::peer_of;
use ferroce_nic::QpReport;
use ferroce_nic::inspect::Snapshot;
use std::fmt::Write;

/// A format of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    /// Version 0.0.4, for readers that do not accept OpenMetrics.
    Text,
}

impl Format {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Counters of the host: the family and its meaning. Those of node_exporter's infiniband collector keep its names and labels.
const HOST_COUNTERS: [(&str, &str); 15] = [
    ("node_infiniband_port_data_transmitted_bytes", "Bytes transmitted, through shared memory too"),
    ("node_infiniband_port_data_received_bytes", "Bytes received, through shared memory too"),
    ("node_infiniband_port_packets_transmitted", "Packets transmitted, through shared memory too"),
    ("node_infiniband_port_packets_received", "Packets received, through shared memory too"),
    ("node_infiniband_port_errors_received", "Packets received that are malformed or have a wrong ICRC"),
    (
        "node_infiniband_port_discards_received",
        "Packets discarded on arrival because a buffer was full or their process had ended",
    ),
    ("node_infiniband_port_discards_transmitted", "Packets that could not be transmitted"),
    ("node_infiniband_port_constraint_errors_received", "Packets received with a wrong partition key"),
    (
        "node_infiniband_excessive_buffer_overrun_errors",
        "Packets lost because the kernel's receive buffer was full",
    ),
    ("ferroce_direct_operations", "One-sided operations in the memory of a local peer, which have no packet"),
    ("ferroce_completions", "Completions, failed and flushed ones included"),
    ("ferroce_failed_completions", "Completions with an error of their own"),
    ("ferroce_flushed_completions", "Requests that were still queued when their queue pair stopped"),
    ("ferroce_dropped_packets", "Packets dropped, by reason"),
    ("ferroce_refused_requests", "Requests refused, by reason"),
];

type QpMetric = (&'static str, &'static str, fn(&QpReport) -> u64);

/// Counters of the busiest queue pairs.
const QP_COUNTERS: [QpMetric; 8] = [
    ("ferroce_qp_transmitted_bytes", "Payload bytes sent", |qp| qp.tx_bytes),
    ("ferroce_qp_received_bytes", "Payload bytes received", |qp| qp.rx_bytes),
    ("ferroce_qp_transmitted_packets", "Packets sent", |qp| qp.tx_packets),
    ("ferroce_qp_received_packets", "Packets received", |qp| qp.rx_packets),
    ("ferroce_qp_retransmitted_packets", "Packets sent again", |qp| qp.retransmitted),
    ("ferroce_qp_timeouts", "Expirations of the transport timer", |qp| qp.timeouts),
    ("ferroce_qp_rnr_naks_received", "RNR NAKs received", |qp| qp.rnr_received),
    ("ferroce_qp_direct_operations", "One-sided operations in the memory of a local peer", |qp| qp.performed),
];

type ProcessMetric = (&'static str, &'static str, fn(&Snapshot) -> f64);

/// Gauges of each process.
const PROCESS_GAUGES: [ProcessMetric; 5] = [
    ("ferroce_uptime_seconds", "Time since the process opened the device", |s| s.uptime_ms as f64 / 1e3),
    ("ferroce_registered_memory_bytes", "Bytes of all memory regions", |s| s.objects.region_bytes as f64),
    ("ferroce_connections", "Connections, including those in TIMEWAIT", |s| {
        s.cm.get("connections_now").copied().unwrap_or(0) as f64
    }),
    ("ferroce_unpolled_completions", "Completions that nobody has polled yet", |s| {
        s.objects.completion_queues.iter().map(|cq| cq.waiting as f64).sum::<f64>() + 0.0
    }),
    ("ferroce_completion_queue_fill_ratio", "Fill of the fullest completion queue, from 0 to 1", |s| {
        s.objects
            .completion_queues
            .iter()
            .map(|cq| cq.waiting as f64 / cq.depth.max(1) as f64)
            .fold(0.0, f64::max)
    }),
];

/// The states that have a gauge each.
const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

struct Writer {
    text: String,
    format: Format,
}

impl Writer {
    /// Begins a counter; returns the name of its samples.
    fn counter(&mut self, family: &str, help: &str) -> String {
        let samples = format!("{family}_total");
        self.family(if self.format == Format::Text { &samples } else { family }, "counter", help);
        samples
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {}.\n# TYPE {name} {kind}", escaped(help));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        for (at, (label, content)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"{}\"", if at == 0 { '{' } else { ',' }, escaped(content));
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

/// Escapes a label or a help text for both formats. Control characters and the like become question marks.
fn escaped(text: &str) -> String {
    printable(text).replace('\\', "\\\\").replace('"', "\\\"")
}

/// All metrics. At most `most_qps` queue pairs have metrics of their own.
pub(super) fn render(report: &Report, totals: &Totals, most_qps: usize, format: Format) -> String {
    let mut out = Writer { text: String::new(), format };
    let port = [("device", ferroce_nic::DEVICE_NAME), ("port", "1")];
    for (family, help) in HOST_COUNTERS {
        let name = out.counter(family, help);
        let sums = totals.of(family);
        let is_plain = sums.keys().all(|reason| reason.is_empty());
        if is_plain && !matches!(family, "ferroce_dropped_packets" | "ferroce_refused_requests") {
            out.sample(&name, &port, sums.get("").copied().unwrap_or(0) as f64);
        }
        for (reason, count) in sums.into_iter().filter(|(reason, _)| !reason.is_empty()) {
            out.sample(&name, &[("reason", reason)], count as f64);
        }
    }
    let is_open = !report.devices.is_empty();
    out.family(
        "node_infiniband_state_id",
        "gauge",
        "State of the port (1: no process has it open, 4: active)",
    );
    out.sample("node_infiniband_state_id", &port, if is_open { 4.0 } else { 1.0 });
    out.family(
        "ferroce_unanswered_processes",
        "gauge",
        "Processes that did not answer, for example because they are stopped",
    );
    out.sample("ferroce_unanswered_processes", &[], report.unanswered.len() as f64);
    processes(&mut out, &report.devices);
    queue_pairs(&mut out, &report.devices, most_qps);
    if format == Format::OpenMetrics {
        out.text.push_str("# EOF\n");
    }
    out.text
}

fn processes(out: &mut Writer, devices: &[Snapshot]) {
    let labels: Vec<(String, String)> =
        devices.iter().map(|device| (device.pid.to_string(), device.slot.to_string())).collect();
    out.family("ferroce_process_info", "gauge", "The command of each process; always 1");
    for (device, (pid, slot)) in devices.iter().zip(&labels) {
        let labels = [("pid", pid.as_str()), ("slot", slot), ("command", &device.command)];
        out.sample("ferroce_process_info", &labels, 1.0);
    }
    for (name, help, value) in PROCESS_GAUGES {
        out.family(name, "gauge", help);
        for (device, (pid, slot)) in devices.iter().zip(&labels) {
            out.sample(name, &[("pid", pid), ("slot", slot)], value(device));
        }
    }
    out.family(
        "ferroce_queue_pairs",
        "gauge",
        "Queue pairs, by state; those that did not answer in time have the state unknown",
    );
    for (device, (pid, slot)) in devices.iter().zip(&labels) {
        let known =
            STATES.map(|state| device.queue_pairs.iter().filter(|qp| qp.state == state).count() as u64);
        let all = (device.queue_pairs.len() as u64).saturating_add(device.queue_pairs_left_out);
        let unknown = ("unknown", all.saturating_sub(known.iter().sum()));
        for (state, count) in STATES.into_iter().zip(known).chain([unknown]).filter(|(_, count)| *count > 0) {
            out.sample(
                "ferroce_queue_pairs",
                &[("pid", pid), ("slot", slot), ("state", state)],
                count as f64,
            );
        }
    }
}

/// The queue pairs that moved the most bytes.
fn queue_pairs(out: &mut Writer, devices: &[Snapshot], most: usize) {
    let mut qps: Vec<(&Snapshot, &QpReport)> =
        devices.iter().flat_map(|device| device.queue_pairs.iter().map(move |qp| (device, qp))).collect();
    let moved = |qp: &QpReport| (qp.tx_bytes.saturating_add(qp.rx_bytes), qp.performed, qp.tx_packets);
    qps.sort_by(|(_, one), (_, other)| moved(other).cmp(&moved(one)).then(one.qpn.cmp(&other.qpn)));
    qps.truncate(most);
    for (family, help, value) in QP_COUNTERS {
        let name = out.counter(family, help);
        for (device, qp) in &qps {
            let (pid, number, peer) = (device.pid.to_string(), format!("{:#08x}", qp.qpn), peer_of(qp));
            let labels = [("pid", pid.as_str()), ("qp", &number), ("peer", &peer), ("type", &qp.transport)];
            out.sample(&name, &labels, value(qp) as f64);
        }
    }
}
