//! One sample of all processes, and what changed since the one before.

use crate::counters::{Report, ReportTime, drops};
use ferroce_nic::QpReport;
use ferroce_nic::inspect::{self, Snapshot};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::net::Ipv6Addr;

/// Process and slot of a device. The slot alone does not identify it: it is used again when its process has ended.
pub(crate) type DeviceId = (u32, u8);

/// Identifies a queue pair, for example in a request for its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QpId {
    /// The process.
    pub(crate) pid: u32,
    /// The slot of its device.
    pub(crate) slot: u8,
    /// The number.
    pub(crate) qpn: u32,
}

/// What a queue pair did per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct QpRates {
    pub(crate) tx_bytes: f64,
    pub(crate) rx_bytes: f64,
    pub(crate) tx_packets: f64,
    pub(crate) rx_packets: f64,
    /// One-sided operations in the memory of a local peer, which have no packet.
    pub(crate) direct: f64,
    pub(crate) retransmitted: f64,
}

/// What a device did per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct DeviceRates {
    pub(crate) tx_bytes: f64,
    pub(crate) rx_bytes: f64,
    pub(crate) completions: f64,
    pub(crate) drops: f64,
}

/// A device in a sample.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) snapshot: Snapshot,
    /// Zero in the first sample of a device.
    pub(crate) rates: DeviceRates,
    /// One for each queue pair of the snapshot.
    pub(crate) qp_rates: Vec<QpRates>,
    /// Drops and refusals per second, by reason; link counters that count drops are among them.
    pub(crate) reason_rates: BTreeMap<String, f64>,
}

/// What all processes answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) at: String,
    pub(crate) devices: Vec<Device>,
    /// Why others did not answer.
    pub(crate) unanswered: Vec<String>,
}

/// Takes samples, each with the rates since the one before.
#[derive(Default)]
pub(crate) struct Sampler {
    before: HashMap<DeviceId, Snapshot>,
}

impl Sampler {
    /// Queries all processes, and the history of one queue pair.
    pub(crate) fn take(&mut self, history_of: Option<QpId>) -> Sample {
        let report = Report::of(inspect::whole(history_of.map(|qp| (qp.slot, qp.qpn))));
        self.sample(crate::machine::utc_now(), report)
    }

    /// Compares a report with the one before.
    pub(crate) fn sample(&mut self, at: String, report: Report) -> Sample {
        let before = std::mem::take(&mut self.before);
        let devices: Vec<Device> = report
            .devices
            .into_iter()
            .map(|snapshot| Device::since(before.get(&(snapshot.pid, snapshot.slot)), snapshot))
            .collect();
        self.before = devices.iter().map(|device| (device.id(), device.snapshot.clone())).collect();
        Sample { at, devices, unanswered: report.unanswered.into_iter().map(|one| one.why).collect() }
    }
}

impl Device {
    fn since(before: Option<&Snapshot>, snapshot: Snapshot) -> Device {
        // The counters of a device that was opened again begin at zero.
        let time = ReportTime::of(&snapshot);
        let before = before.filter(|before| !time.is_reopened_since(ReportTime::of(before)));
        let seconds = before.map_or(0.0, |before| seconds_between(before, &snapshot));
        let per_second = |then: u64, now: u64| match seconds > 0.0 {
            true => now.saturating_sub(then) as f64 / seconds,
            false => 0.0,
        };
        let sums = |snapshot: &Snapshot| (bytes(snapshot), snapshot.completions, total(&drops(snapshot)));
        let ((tx, rx), completions, dropped) = sums(&snapshot);
        let ((tx_then, rx_then), completions_then, dropped_then) = before.map(sums).unwrap_or_default();
        let rates = DeviceRates {
            tx_bytes: per_second(tx_then, tx),
            rx_bytes: per_second(rx_then, rx),
            completions: per_second(completions_then, completions),
            drops: per_second(dropped_then, dropped),
        };
        let qps: HashMap<u32, &QpReport> =
            before.into_iter().flat_map(|before| &before.queue_pairs).map(|qp| (qp.qpn, qp)).collect();
        let qp_rates = snapshot.queue_pairs.iter().map(|qp| match qps.get(&qp.qpn) {
            Some(then) => QpRates {
                tx_bytes: per_second(then.tx_bytes, qp.tx_bytes),
                rx_bytes: per_second(then.rx_bytes, qp.rx_bytes),
                tx_packets: per_second(then.tx_packets, qp.tx_packets),
                rx_packets: per_second(then.rx_packets, qp.rx_packets),
                direct: per_second(then.performed, qp.performed),
                retransmitted: per_second(then.retransmitted, qp.retransmitted),
            },
            None => QpRates::default(),
        });
        let then = before.map(reasons).unwrap_or_default();
        let reason_rates = reasons(&snapshot)
            .into_iter()
            .map(|(name, count)| {
                let rate = per_second(then.get(&name).copied().unwrap_or(0), count);
                (name, rate)
            })
            .collect();
        Device { rates, qp_rates: qp_rates.collect(), reason_rates, snapshot }
    }

    pub(crate) fn id(&self) -> DeviceId {
        (self.snapshot.pid, self.snapshot.slot)
    }

    /// Queue pairs with their rates.
    pub(crate) fn qps(&self) -> impl Iterator<Item = (&QpReport, &QpRates)> {
        self.snapshot.queue_pairs.iter().zip(&self.qp_rates)
    }

    pub(crate) fn qp_id(&self, qp: &QpReport) -> QpId {
        QpId { pid: self.snapshot.pid, slot: self.snapshot.slot, qpn: qp.qpn }
    }

    /// Queue pairs, listed or not.
    pub(crate) fn qp_count(&self) -> u64 {
        (self.snapshot.queue_pairs.len() as u64).saturating_add(self.snapshot.queue_pairs_left_out)
    }
}

impl Sample {
    /// The queue pair, its rates and its device.
    pub(crate) fn find(&self, id: QpId) -> Option<(&Device, &QpReport, &QpRates)> {
        let device = self.devices.iter().find(|device| device.id() == (id.pid, id.slot))?;
        device.qps().find(|(qp, _)| qp.qpn == id.qpn).map(|(qp, rates)| (device, qp, rates))
    }

    /// The sample as programs read it.
    pub(crate) fn to_json(&self) -> Value {
        let devices = self.devices.iter().map(|device| {
            let mut value = serde_json::to_value(&device.snapshot).unwrap_or_default();
            value["rates"] = json!(device.rates);
            for (qp, rates) in value["queue_pairs"].as_array_mut().into_iter().flatten().zip(&device.qp_rates)
            {
                qp["rates"] = json!(rates);
            }
            value
        });
        json!({ "at": self.at, "devices": devices.collect::<Vec<_>>(), "unanswered": self.unanswered })
    }
}

/// The devices' own clocks, where both wrote them; else their uptimes.
fn seconds_between(before: &Snapshot, after: &Snapshot) -> f64 {
    match before.now_ns {
        0 => after.uptime_ms.saturating_sub(before.uptime_ms) as f64 / 1e3,
        then => after.now_ns.saturating_sub(then) as f64 / 1e9,
    }
}

/// Bytes of the link, sent and received, over the wire and through shared memory.
pub(crate) fn bytes(snapshot: &Snapshot) -> (u64, u64) {
    let sum = |names: [&str; 2]| {
        names.iter().map(|name| snapshot.link.get(*name).copied().unwrap_or(0)).fold(0, u64::saturating_add)
    };
    (sum(["tx_bytes", "local_tx_bytes"]), sum(["rx_bytes", "local_rx_bytes"]))
}

/// Drops and refusals. A reason of both has one entry.
fn reasons(device: &Snapshot) -> BTreeMap<String, u64> {
    let dropped = drops(device).into_iter().map(|(name, count)| (format!("drop {name}"), count));
    let refused = device.refusals.iter().map(|(name, count)| (format!("refusal {name}"), *count));
    dropped.chain(refused).collect()
}

pub(crate) fn total(counters: &BTreeMap<&str, u64>) -> u64 {
    counters.values().fold(0, |sum, count| sum.saturating_add(*count))
}

/// The peer's address, IPv4 as IPv4; empty if there is none.
pub(crate) fn peer_of(qp: &QpReport) -> String {
    match qp.peer.parse::<Ipv6Addr>() {
        Ok(address) if address.is_unspecified() => String::new(),
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => qp.peer.clone(),
    }
}
