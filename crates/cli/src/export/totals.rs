//! Counters of the host, summed over all processes. Prometheus takes a counter that falls for a restart, and would count the remaining sum
//! again. So the last report of an ended process stays in the sum.

use crate::counters::{ReportTime, drops, meaning};
use ferroce_nic::inspect::Snapshot;
use std::collections::{BTreeMap, HashMap};

/// A counter: the name of its metric, and a reason for those that have one.
pub(super) type Key = (&'static str, &'static str);

/// Stands for all reasons that this version does not define.
const OTHER: &str = "other";

/// Sums over running and ended processes.
#[derive(Default)]
pub(super) struct Totals {
    ended: BTreeMap<Key, u64>,
    running: HashMap<(u32, u8), LastReport>,
}

/// What a device reported last.
struct LastReport {
    time: ReportTime,
    counters: BTreeMap<Key, u64>,
}

impl Totals {
    /// Stores the reports of the running processes. A process that no longer answers is retired once it has ended.
    pub(super) fn update(&mut self, devices: &[Snapshot]) {
        let mut before = std::mem::take(&mut self.running);
        for device in devices {
            let (id, time) = ((device.pid, device.slot), ReportTime::of(device));
            match before.remove(&id) {
                // This answer is older than the stored one.
                Some(newer) if device.now_ns != 0 && newer.time.now_ns > device.now_ns => {
                    self.running.insert(id, newer);
                    continue;
                }
                // Another device with the same process ID and slot.
                Some(old) if time.is_reopened_since(old.time) => self.retire(&old),
                _ => {}
            }
            self.running.insert(id, LastReport { time, counters: counters_of(device) });
        }
        for (id, gone) in before {
            // A stopped process does not answer and may continue later. Its report is kept while the process exists.
            if std::fs::exists(format!("/proc/{}", id.0)).unwrap_or(false) {
                self.running.insert(id, gone);
            } else {
                self.retire(&gone);
            }
        }
    }

    fn retire(&mut self, gone: &LastReport) {
        for (key, count) in &gone.counters {
            let sum = self.ended.entry(*key).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// All sums of a metric, by reason.
    pub(super) fn of(&self, metric: &str) -> BTreeMap<&'static str, u64> {
        let all = self.running.values().map(|seen| &seen.counters).chain([&self.ended]);
        let mut sums = BTreeMap::new();
        for (key, count) in all.flatten().filter(|(key, _)| key.0 == metric) {
            let sum: &mut u64 = sums.entry(key.1).or_default();
            *sum = sum.saturating_add(*count);
        }
        sums
    }
}

/// The counters of a device that are summed.
fn counters_of(device: &Snapshot) -> BTreeMap<Key, u64> {
    let drops = drops(device);
    let sum = |names: &[&str]| {
        let count = |name: &&str| device.link.get(*name).copied().unwrap_or(0);
        names.iter().map(count).fold(0, u64::saturating_add)
    };
    let dropped = |names: &[&str]| {
        names.iter().map(|name| drops.get(name).copied().unwrap_or(0)).fold(0, u64::saturating_add)
    };
    let mut counters: BTreeMap<Key, u64> = [
        ("node_infiniband_port_data_transmitted_bytes", sum(&["tx_bytes", "local_tx_bytes"])),
        ("node_infiniband_port_data_received_bytes", sum(&["rx_bytes", "local_rx_bytes"])),
        ("node_infiniband_port_packets_transmitted", sum(&["tx_packets", "local_tx_packets"])),
        ("node_infiniband_port_packets_received", sum(&["rx_packets", "local_rx_packets"])),
        ("node_infiniband_port_errors_received", dropped(&["malformed", "bad_icrc"])),
        ("node_infiniband_port_discards_received", dropped(&["rx_overruns", "forward_errors"])),
        ("node_infiniband_port_discards_transmitted", dropped(&["send_errors", "local_lost"])),
        ("node_infiniband_port_constraint_errors_received", dropped(&["bad_pkey"])),
        ("node_infiniband_excessive_buffer_overrun_errors", dropped(&["rx_overruns"])),
        ("ferroce_direct_operations", sum(&["direct_mapped", "direct_copied"])),
        ("ferroce_completions", device.completions),
        ("ferroce_failed_completions", device.failed_completions),
        ("ferroce_flushed_completions", device.flushed_completions),
    ]
    .map(|(metric, count)| ((metric, ""), count))
    .into();
    // The names come from other processes. Only known ones become labels, so the number of series is bounded.
    for (name, count) in drops {
        add(&mut counters, ("ferroce_dropped_packets", meaning::known_drop(name).unwrap_or(OTHER)), count);
    }
    for (name, count) in &device.refusals {
        let reason = meaning::known_refusal(name).unwrap_or(OTHER);
        add(&mut counters, ("ferroce_refused_requests", reason), *count);
    }
    counters
}

fn add(counters: &mut BTreeMap<Key, u64>, key: Key, count: u64) {
    let sum = counters.entry(key).or_default();
    *sum = sum.saturating_add(count);
}
