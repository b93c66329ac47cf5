//! The request of a page, and the JSON document that it gets. Tables, their order and their texts are those of `ferroce top`, which makes all
//! text of other processes printable. A document is bounded: the page shows a limited number of rows, and reports that.

use super::topology::topology;
use super::watch::Observed;
use crate::counters::printable;
use crate::top::sample::{Device, QpId};
use crate::top::tables::{Order, Row, RowId, Tab, Tone, facts, tone_of};
use serde_json::{Value, json};

/// Rows that a page shows at a time.
pub(super) const MAX_ROWS: usize = 200;
/// Lines of the plot of processes.
const MAX_LINES: usize = 8;
/// Longest filter.
const FILTER_LEN: usize = 64;

/// The request of a page. Invalid parameters have their defaults.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PageRequest {
    tab: usize,
    order: Option<Order>,
    filter: String,
    pid: Option<u32>,
    pub(super) qp: Option<QpId>,
}

impl PageRequest {
    /// Reads the parameters of a request.
    pub(super) fn of(parameter: impl Fn(&str) -> Option<String>) -> PageRequest {
        let number = |name: &str| parameter(name).and_then(|text| text.parse::<usize>().ok());
        let tab = number("tab").filter(|tab| *tab < Tab::ALL.len()).unwrap_or(0);
        let column = number("sort").filter(|column| *column < Tab::ALL[tab].columns().len());
        PageRequest {
            tab,
            order: column.map(|column| Order { column, descends: number("down") == Some(1) }),
            filter: parameter("filter").unwrap_or_default().chars().take(FILTER_LEN).collect(),
            pid: number("pid").and_then(|pid| pid.try_into().ok()),
            qp: parameter("qp").and_then(|text| qp_id(&text)),
        }
    }
}

/// Reads `PID.SLOT.QPN`.
fn qp_id(text: &str) -> Option<QpId> {
    let mut parts = text.split('.');
    let id = QpId {
        pid: parts.next()?.parse().ok()?,
        slot: parts.next()?.parse().ok()?,
        qpn: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(id)
}

/// How the page names a queue pair.
pub(super) fn name_of(QpId { pid, slot, qpn }: QpId) -> String {
    format!("{pid}.{slot}.{qpn}")
}

/// The style class of a tone.
pub(super) fn class_of(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Good => "reached",
        Tone::Warning => "warning",
        Tone::Bad => "failed",
    }
}

/// The whole document.
pub(super) fn document(seen: &Observed, request: &PageRequest) -> Value {
    let sample = &seen.sample;
    let is_alive = |pid: &u32| {
        sample
            .devices
            .iter()
            .any(|device| device.snapshot.pid == *pid && seen.gone_for(device.id()).is_none())
    };
    let watched = request.qp.map(|qp| qp.pid).or(request.pid).filter(is_alive);
    let captures = watched.map(super::captures_of).unwrap_or_default();
    json!({
        "at": sample.at,
        "unanswered": sample.unanswered.iter().map(|why| printable(why)).collect::<Vec<_>>(),
        "gone": seen.gone.len(),
        "tabs": Tab::ALL.map(Tab::title),
        "table": table(seen, request),
        "rates": rates(&sample.devices),
        "topology": topology(seen),
        "open": request.qp.and_then(|id| open(seen, id)),
        "captures": captures.iter().map(|path| printable(&path.display().to_string())).collect::<Vec<_>>(),
    })
}

fn table(seen: &Observed, request: &PageRequest) -> Value {
    let tab = Tab::ALL[request.tab];
    let order = request.order.unwrap_or_else(|| tab.first_order());
    let (rows, all) = tab.arranged(&seen.sample, &request.filter, request.pid, order);
    let matching = rows.len();
    let row = |row: &Row| {
        let cells = row.cells.iter().map(|cell| json!([cell.text, class_of(cell.tone)]));
        let qp = if let RowId::Qp(id) = row.id { Some(name_of(id)) } else { None };
        let gone = seen.gone_for(row.id.device()).map(|since| since.as_secs());
        json!({ "pid": row.id.pid(), "qp": qp, "gone_s": gone, "cells": cells.collect::<Vec<_>>() })
    };
    let columns = tab.columns().iter().map(|column| json!([column.title, column.is_number]));
    json!({
        "tab": request.tab, "columns": columns.collect::<Vec<_>>(), "sort": order.column, "down": order.descends,
        "rows": rows.iter().take(MAX_ROWS).map(row).collect::<Vec<_>>(), "matching": matching, "all": all,
        "nothing": if all > 0 { "No row matches." } else { tab.nothing(&seen.sample) },
    })
}

/// What the plots need: bytes, retransmissions and drops per second, of all and of the busiest processes.
fn rates(devices: &[Device]) -> Value {
    let resent = |device: &Device| device.qp_rates.iter().map(|qp| qp.retransmitted).sum::<f64>();
    let sum = |of: &dyn Fn(&Device) -> f64| devices.iter().map(of).sum::<f64>();
    let mut busiest: Vec<&Device> = devices.iter().collect();
    let bytes = |device: &Device| device.rates.tx_bytes + device.rates.rx_bytes;
    busiest.sort_by(|one, other| bytes(other).total_cmp(&bytes(one)).then(one.id().cmp(&other.id())));
    let line = |device: &&Device| {
        let name = format!("{} {}", printable(&device.snapshot.command), device.snapshot.pid);
        json!({ "name": name, "tx": device.rates.tx_bytes })
    };
    json!({
        "tx": sum(&|device| device.rates.tx_bytes), "rx": sum(&|device| device.rates.rx_bytes),
        "resent": sum(&resent), "drops": sum(&|device| device.rates.drops),
        "qps": devices.iter().map(Device::qp_count).sum::<u64>(), "processes": devices.len(),
        "busiest": busiest.iter().take(MAX_LINES).map(line).collect::<Vec<_>>(),
    })
}

/// A queue pair with its counters, rates and events, the newest first.
fn open(seen: &Observed, id: QpId) -> Option<Value> {
    let (device, qp, rates) = seen.sample.find(id)?;
    let snapshot = &device.snapshot;
    let events = snapshot.objects.history.iter().flatten().rev().map(|event| {
        let ago_s = snapshot.now_ns.saturating_sub(event.at_ns) as f64 / 1e9;
        json!({ "ago_s": ago_s, "count": event.count, "what": printable(&event.what) })
    });
    Some(json!({
        "qp": name_of(id), "gone": seen.gone_for((id.pid, id.slot)).is_some(), "state": class_of(tone_of(&qp.state)),
        "title": format!("QP {:#08x} of process {} ({})", qp.qpn, id.pid, printable(&snapshot.command)),
        "facts": facts(device, qp, rates), "rates": rates, "events": events.collect::<Vec<_>>(),
        "keeps_events": snapshot.objects.history.is_some() || snapshot.now_ns > 0,
    }))
}
