//! What a live run measured: per host on the terminal, as JSON and on the page.

use super::forward::Forwarded;
use super::launch::Ended;
use crate::fabric::Outcome;
use crate::page::{self, escape};
use crate::table::{self, Align, Column};
use ferroce_fabric::report::report;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// A live run in numbers.
#[derive(Serialize)]
pub(super) struct LiveReport {
    name: String,
    control: String,
    seconds: f64,
    hosts: Vec<HostReport>,
    links: Vec<LinkReport>,
    /// Packets to no host of the fabric, and malformed ones.
    unroutable: u64,
    /// Packets that arrived, but that the TUN device of the receiver did not take.
    refused: u64,
    /// Seconds of the run for which queues and rates are recorded, if that is not all of it.
    recorded_seconds: Option<f64>,
    /// How late packets were delivered, in microseconds: half of them, 99 % of them, all of them.
    late_us: [f64; 3],
    /// Share of a processor that the thread of the fabric used.
    busy_percent: f64,
}

/// One host.
#[derive(Serialize)]
struct HostReport {
    host: u32,
    sent: u64,
    received: u64,
    dropped: u64,
    /// Packets that its own queue dropped before they reached the fabric.
    queue_drops: u64,
    marked: u64,
    paused_ms: f64,
    sent_mbps: f64,
    received_mbps: f64,
    longest_queue: u32,
}

/// Links of one tier.
#[derive(Serialize)]
struct LinkReport {
    links: String,
    longest_queue: u32,
    paused_percent: f64,
}

/// Deliveries later than this make the figures doubtful.
const TOO_LATE_US: f64 = 2000.0;
/// A fabric that uses more of a processor than this cannot keep up with the clock: packets wait until it reads them.
const TOO_BUSY_PERCENT: f64 = 85.0;

const COLUMNS: [Column<HostReport>; 10] = [
    ("host", Align::Left, |host| format!("h{}", host.host)),
    ("packets\nsent", Align::Right, |host| host.sent.to_string()),
    ("packets\nreceived", Align::Right, |host| host.received.to_string()),
    ("dropped\nin fabric", Align::Right, |host| host.dropped.to_string()),
    ("dropped\nat host", Align::Right, |host| host.queue_drops.to_string()),
    ("marked", Align::Right, |host| host.marked.to_string()),
    ("paused\nms", Align::Right, |host| format!("{:.1}", host.paused_ms)),
    ("goodput Mb/s\nsent", Align::Right, |host| format!("{:.1}", host.sent_mbps)),
    ("goodput Mb/s\nreceived", Align::Right, |host| format!("{:.1}", host.received_mbps)),
    ("longest\nqueue kB", Align::Right, |host| format!("{:.1}", f64::from(host.longest_queue) / 1e3)),
];

impl LiveReport {
    /// Condenses a run.
    pub(super) fn of(
        name: &str,
        control: &str,
        forwarded: &Forwarded,
        ended: &Ended,
        queue_drops: &[u64],
    ) -> LiveReport {
        let world = &forwarded.world;
        let seconds = ended.elapsed.as_secs_f64().max(1e-3);
        let mbps = |bytes: u64| bytes as f64 * 8.0 / 1e6 / seconds;
        let hosts = (0..).zip(queue_drops).map(|(host, queue_drops)| {
            let totals = world.host_totals(host);
            HostReport {
                host,
                sent: totals.sent,
                received: totals.received,
                dropped: totals.dropped,
                queue_drops: *queue_drops,
                marked: totals.marked,
                paused_ms: world.host_paused_ps(host) as f64 / 1e9,
                sent_mbps: mbps(totals.payload_sent),
                received_mbps: mbps(totals.payload_received),
                longest_queue: totals.longest_queue,
            }
        });
        let links = report(name, control, world).queues.into_iter().map(|queue| LinkReport {
            links: queue.links,
            longest_queue: queue.longest,
            paused_percent: 100.0 * queue.paused,
        });
        let late = &forwarded.lateness;
        let recorded = world.samples().times.last();
        LiveReport {
            name: name.to_owned(),
            control: control.to_owned(),
            seconds,
            hosts: hosts.collect(),
            links: links.collect(),
            unroutable: forwarded.unroutable,
            refused: forwarded.refused,
            recorded_seconds: recorded.filter(|_| world.samples().is_full()).map(|ps| *ps as f64 / 1e12),
            late_us: [late.quantile_ns(0.5), late.quantile_ns(0.99), late.longest_ns]
                .map(|ns| ns as f64 / 1e3),
            busy_percent: 100.0 * forwarded.busy,
        }
    }

    fn lateness(&self) -> String {
        let [median, p99, longest] = self.late_us;
        let packets: u64 = self.hosts.iter().map(|host| host.sent).sum();
        let busy = self.busy_percent;
        let verdict = if busy > TOO_BUSY_PERCENT {
            format!(
                " The fabric cannot keep up with the clock: this machine moves about {:.0} packets/s. Lower topology.rate, or raise host.mtu.",
                packets as f64 / self.seconds * 100.0 / busy
            )
        } else if p99 > TOO_LATE_US {
            " This machine is too slow for the fabric: lower topology.rate, or run fewer programs.".into()
        } else {
            String::new()
        };
        format!(
            "The fabric moved {packets} packets with {busy:.0} % of a processor, and delivered them late by {median:.0} µs (median), \
             {p99:.0} µs (99 %), {longest:.0} µs (longest).{verdict}"
        )
    }

    /// Sentences below the table.
    fn notes(&self) -> String {
        let mut notes = self.lateness();
        let mut note = |count: u64, what: &str| {
            if count > 0 {
                let _ = write!(notes, "\n{count} packets {what}.");
            }
        };
        note(
            self.unroutable,
            "were malformed or went to no host of the fabric (multicast of the kernel, for example)",
        );
        note(self.refused, "arrived, but the TUN device of the receiver did not take them");
        if let Some(seconds) = self.recorded_seconds {
            let _ = write!(notes, "\nQueues and rates are recorded for the first {seconds:.0} s only.");
        }
        notes
    }

    /// For the terminal.
    pub(super) fn table(&self) -> String {
        format!(
            "{}, {:.2} s\n{}\n{}\n",
            self.name,
            self.seconds,
            table::of(&COLUMNS, &self.hosts),
            self.notes()
        )
    }

    /// For the page.
    pub(super) fn draw(&self, page: &mut String) {
        let _ = writeln!(page, "<h2>Live: {}</h2>", escape(&self.name));
        let rows = self.hosts.iter().map(|host| COLUMNS.map(|(_, _, cell)| cell(host)));
        page::table(page, "Hosts of the live run", COLUMNS.map(|(heading, ..)| heading), rows);
        page::note(page, &self.notes());
    }
}

/// The run as the page of a simulation shows it.
pub(super) fn outcome(name: &str, control: &str, forwarded: Forwarded, wall: Duration) -> Outcome {
    let mut samples = forwarded.world.samples().clone();
    let mut condensed = report(name, control, &forwarded.world);
    condensed.hash = String::from("live");
    super::compare::align(&mut samples);
    Outcome { report: condensed, samples, wall }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(busy_percent: f64, p99: f64) -> String {
        let host = HostReport {
            host: 0,
            sent: 90_000,
            received: 0,
            dropped: 0,
            queue_drops: 0,
            marked: 0,
            paused_ms: 0.0,
            sent_mbps: 0.0,
            received_mbps: 0.0,
            longest_queue: 0,
        };
        let report = LiveReport {
            name: String::new(),
            control: String::new(),
            seconds: 2.0,
            hosts: vec![host],
            links: Vec::new(),
            unroutable: 0,
            refused: 0,
            recorded_seconds: None,
            late_us: [8.0, p99, 9000.0],
            busy_percent,
        };
        report.notes()
    }

    #[test]
    fn a_slow_machine_is_reported_with_its_packet_rate() {
        assert!(!report(40.0, 500.0).contains("slow") && !report(40.0, 500.0).contains("keep up"));
        assert!(report(40.0, 2500.0).contains("too slow"));
        assert!(report(90.0, 500.0).contains("about 50000 packets/s"), "{}", report(90.0, 500.0));
    }
}
