//! Which processes and hosts the queue pairs connect.

use super::document::{class_of, name_of};
use super::watch::Observed;
use crate::counters::printable;
use crate::top::sample::{QpId, peer_of};
use crate::top::tables::tone_of;
use ferroce_nic::QpReport;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// Processes and hosts that are drawn.
pub(super) const MAX_NODES: usize = 24;
/// Queue pairs of a link that are drawn one by one.
const MAX_LINES: usize = 8;

/// A process or another host.
#[derive(Serialize)]
struct Node {
    name: String,
    /// None for a host.
    pid: Option<u32>,
    gone: bool,
    /// Queue pairs without a peer.
    unconnected: u64,
    #[serde(skip)]
    bytes: f64,
}

/// The queue pairs between two nodes.
#[derive(Default, Serialize)]
struct Link {
    /// All of them.
    count: u64,
    /// Bytes per second, both ways.
    bytes: f64,
    resent: f64,
    /// The first few: name of one end, class of its state.
    lines: Vec<(String, &'static str)>,
}

/// The nodes and links as the page draws them.
pub(super) fn topology(seen: &Observed) -> Value {
    let devices = &seen.sample.devices;
    let mut nodes: Vec<Node> = devices
        .iter()
        .map(|device| Node {
            name: format!("{} {}", printable(&device.snapshot.command), device.snapshot.pid),
            pid: Some(device.snapshot.pid),
            gone: seen.gone_for(device.id()).is_some(),
            unconnected: 0,
            bytes: 0.0,
        })
        .collect();
    let owners: HashMap<u32, (usize, &QpReport)> = devices
        .iter()
        .enumerate()
        .flat_map(|(at, device)| device.snapshot.queue_pairs.iter().map(move |qp| (qp.qpn, (at, qp))))
        .collect();
    let mut hosts: HashMap<String, usize> = HashMap::new();
    let mut links: BTreeMap<(usize, usize), Link> = BTreeMap::new();
    for (at, device) in devices.iter().enumerate() {
        for (qp, rates) in device.qps() {
            let address = peer_of(qp);
            if qp.peer_qpn == 0 || address.is_empty() {
                nodes[at].unconnected += 1;
                continue;
            }
            // Numbers are unique among the listed processes. A queue pair of another host may have the same, but then it has another peer.
            let local = owners.get(&qp.peer_qpn).filter(|(_, peer)| peer.peer_qpn == qp.qpn);
            let other = local.map_or_else(
                || {
                    *hosts.entry(address.clone()).or_insert_with(|| {
                        let name = printable(&address);
                        nodes.push(Node { name, pid: None, gone: false, unconnected: 0, bytes: 0.0 });
                        nodes.len() - 1
                    })
                },
                |(other, _)| *other,
            );
            let link = links.entry((at.min(other), at.max(other))).or_default();
            // A listed end counts what it sends. A remote end is not queried: what it sends is what this end receives.
            let bytes = rates.tx_bytes + if local.is_some() { 0.0 } else { rates.rx_bytes };
            link.bytes += bytes;
            link.resent += rates.retransmitted;
            nodes[at].bytes += bytes;
            nodes[other].bytes += bytes;
            if local.is_none_or(|(_, peer)| qp.qpn <= peer.qpn) {
                link.count += 1;
                if link.lines.len() < MAX_LINES {
                    let id = QpId { pid: device.snapshot.pid, slot: device.snapshot.slot, qpn: qp.qpn };
                    link.lines.push((name_of(id), class_of(tone_of(&qp.state))));
                }
            }
        }
    }
    drawn(nodes, links)
}

/// The busiest nodes, and the links between them.
fn drawn(nodes: Vec<Node>, links: BTreeMap<(usize, usize), Link>) -> Value {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by(|one, other| nodes[*other].bytes.total_cmp(&nodes[*one].bytes).then(one.cmp(other)));
    order.truncate(MAX_NODES);
    // Nodes keep their positions while their rates change.
    order.sort_unstable();
    let position: HashMap<usize, usize> = order.iter().enumerate().map(|(new, old)| (*old, new)).collect();
    let shown = links.iter().filter_map(|((a, b), link)| {
        let (a, b) = (position.get(a)?, position.get(b)?);
        Some(json!({ "a": a, "b": b, "link": link }))
    });
    json!({
        "nodes": order.iter().map(|at| &nodes[*at]).collect::<Vec<_>>(),
        "links": shown.collect::<Vec<_>>(),
        "left_out": nodes.len() - order.len(),
    })
}
