//! What each tab shows of a sample: rows of cells under titles. All text from other processes is made printable here.

use super::sample::{Device, DeviceId, QpId, QpRates, Sample, peer_of};
use crate::counters::{drops, meaning, printable, uptime};
use crate::sizes::short;
use ferroce_nic::QpReport;
use std::cmp::Ordering;
use std::collections::HashMap;

/// The tabs, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tab {
    Qps,
    Processes,
    Drops,
    Cqs,
    Memory,
    Connections,
}

impl Tab {
    pub(crate) const ALL: [Tab; 6] =
        [Tab::Qps, Tab::Processes, Tab::Drops, Tab::Cqs, Tab::Memory, Tab::Connections];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Tab::Qps => "Queue pairs",
            Tab::Processes => "Processes",
            Tab::Drops => "Drops",
            Tab::Cqs => "CQs",
            Tab::Memory => "Memory",
            Tab::Connections => "Connections",
        }
    }

    /// The columns, the most important first: a narrow screen shows as many as fit.
    pub(crate) fn columns(self) -> &'static [Column] {
        match self {
            Tab::Qps => &QP_COLUMNS,
            Tab::Processes => &PROCESS_COLUMNS,
            Tab::Drops => &DROP_COLUMNS,
            Tab::Cqs => &CQ_COLUMNS,
            Tab::Memory => &MEMORY_COLUMNS,
            Tab::Connections => &CONNECTION_COLUMNS,
        }
    }

    /// The column that a tab is sorted by at first.
    pub(crate) fn first_sort(self) -> usize {
        let wanted = match self {
            Tab::Qps => "tx/s",
            Tab::Processes => "pid",
            Tab::Drops => "count",
            Tab::Cqs => "fill",
            Tab::Memory => "bytes",
            Tab::Connections => "pid",
        };
        self.columns().iter().position(|column| column.title == wanted).unwrap_or(0)
    }

    pub(crate) fn rows(self, sample: &Sample) -> Vec<Row> {
        sample.devices.iter().flat_map(|device| self.rows_of(device)).collect()
    }

    fn rows_of(self, device: &Device) -> Vec<Row> {
        match self {
            Tab::Qps => device.qps().map(|(qp, rates)| qp_row(device, qp, rates)).collect(),
            Tab::Processes => vec![process_row(device)],
            Tab::Drops => drop_rows(device),
            Tab::Cqs => cq_rows(device),
            Tab::Memory => memory_rows(device),
            Tab::Connections => connection_rows(device),
        }
    }
}

/// A column.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Numbers are aligned to the right and sorted downwards at first.
    pub(crate) is_number: bool,
    /// Columns that it takes at least, so that the table does not move when a rate changes.
    pub(crate) width: u16,
}

const fn text(title: &'static str, width: u16) -> Column {
    Column { title, is_number: false, width }
}

const fn number(title: &'static str, width: u16) -> Column {
    Column { title, is_number: true, width }
}

static QP_COLUMNS: [Column; 20] = [
    text("QP", 8),
    text("state", 5),
    number("tx/s", 8),
    number("rx/s", 8),
    text("peer", 9),
    number("resent", 6),
    text("process", 7),
    number("pid", 7),
    text("type", 4),
    text("peer QP", 8),
    number("direct/s", 8),
    number("packets/s", 9),
    number("resent/s", 8),
    number("RNR", 3),
    number("NAK", 3),
    number("timeouts", 8),
    number("sends", 5),
    number("receives", 8),
    number("window", 7),
    number("in flight", 9),
];

static PROCESS_COLUMNS: [Column; 15] = [
    number("pid", 7),
    text("process", 7),
    number("QPs", 5),
    number("tx/s", 8),
    number("rx/s", 8),
    number("drops", 5),
    number("drops/s", 7),
    number("completions/s", 13),
    number("failed", 6),
    number("unpolled", 8),
    number("regions", 7),
    number("memory", 8),
    number("connections", 11),
    text("open for", 11),
    text("device", 8),
];

static DROP_COLUMNS: [Column; 7] = [
    text("reason", 14),
    number("count", 7),
    number("/s", 7),
    number("pid", 7),
    text("process", 7),
    text("what", 7),
    text("meaning", 20),
];

static CQ_COLUMNS: [Column; 7] = [
    number("CQ", 5),
    number("fill", 5),
    number("waiting", 7),
    number("depth", 7),
    number("QPs", 4),
    number("pid", 7),
    text("process", 7),
];

static MEMORY_COLUMNS: [Column; 9] = [
    text("address", 14),
    number("bytes", 10),
    text("rkey", 10),
    text("access", 12),
    number("pid", 7),
    text("process", 7),
    text("lkey", 10),
    number("PD", 4),
    text("kind", 6),
];

static CONNECTION_COLUMNS: [Column; 5] =
    [text("counter", 16), number("count", 7), number("pid", 7), text("process", 7), text("meaning", 20)];

/// The order of a tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) column: usize,
    pub(crate) descends: bool,
}

impl Tab {
    /// The order at first.
    pub(crate) fn first_order(self) -> Order {
        let column = self.first_sort();
        let Column { title, is_number, .. } = self.columns()[column];
        Order { column, descends: is_number && title != "pid" }
    }

    /// The sorted rows of a sample that contain `filter`, in any case, and belong to `only_pid`. Also the number of rows without these
    /// two conditions.
    pub(crate) fn arranged(
        self,
        sample: &Sample,
        filter: &str,
        only_pid: Option<u32>,
        order: Order,
    ) -> (Vec<Row>, usize) {
        let mut rows = self.rows(sample);
        let all = rows.len();
        let filter = filter.to_lowercase();
        rows.retain(|row| only_pid.is_none_or(|pid| row.id.pid() == pid) && row.contains(&filter));
        rows.sort_by(|one, other| {
            let by_column = compare(one, other, order.column);
            // Equal rows are ordered by process and queue pair, so that their order is stable.
            (if order.descends { by_column.reverse() } else { by_column })
                .then_with(|| key_of(one.id).cmp(&key_of(other.id)))
        });
        (rows, all)
    }

    /// The text of an empty table.
    pub(crate) fn nothing(self, sample: &Sample) -> &'static str {
        match self {
            _ if sample.devices.is_empty() => "No process of yours has a device open.",
            Tab::Drops => "No packet was dropped, no request refused.",
            Tab::Memory => "No memory is registered.",
            _ => "Nothing to show.",
        }
    }
}

/// By the numbers of a column, else by its texts.
fn compare(one: &Row, other: &Row, column: usize) -> Ordering {
    let cells = (one.cells.get(column), other.cells.get(column));
    match cells {
        (Some(a), Some(b)) => match (a.number, b.number) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ => a.text.cmp(&b.text),
        },
        _ => Ordering::Equal,
    }
}

fn key_of(id: RowId) -> (u32, u8, usize) {
    match id {
        RowId::Qp(qp) => (qp.pid, qp.slot, qp.qpn as usize),
        RowId::Of(pid, slot, at) => (pid, slot, at),
    }
}

/// How a cell is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Warning,
    Bad,
}

/// A cell: what it shows, and the number that it sorts by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) number: Option<f64>,
    pub(crate) tone: Tone,
}

impl Cell {
    fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), number: None, tone: Tone::Plain }
    }

    fn count(count: u64) -> Cell {
        Cell { text: count.to_string(), number: Some(count as f64), tone: Tone::Plain }
    }

    fn rate(per_second: f64) -> Cell {
        Cell { text: short(per_second), number: Some(per_second), tone: Tone::Plain }
    }

    /// In this tone unless it is zero.
    fn toned(mut self, tone: Tone) -> Cell {
        if self.number != Some(0.0) {
            self.tone = tone;
        }
        self
    }
}

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RowId {
    Qp(QpId),
    /// The n-th row of a process.
    Of(u32, u8, usize),
}

impl RowId {
    /// The device that the row belongs to.
    pub(crate) fn device(self) -> DeviceId {
        match self {
            RowId::Qp(qp) => (qp.pid, qp.slot),
            RowId::Of(pid, slot, _) => (pid, slot),
        }
    }

    pub(crate) fn pid(self) -> u32 {
        match self {
            RowId::Qp(qp) => qp.pid,
            RowId::Of(pid, ..) => pid,
        }
    }
}

/// A row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: RowId,
    pub(crate) cells: Vec<Cell>,
}

impl Row {
    /// Whether any cell contains `filter`, which is in lower case.
    pub(crate) fn contains(&self, filter: &str) -> bool {
        filter.is_empty() || self.cells.iter().any(|cell| cell.text.to_lowercase().contains(filter))
    }
}

fn command_of(device: &Device) -> Cell {
    Cell::text(printable(&device.snapshot.command))
}

fn pid_of(device: &Device) -> Cell {
    Cell::count(device.snapshot.pid.into())
}

fn row(device: &Device, at: usize, cells: Vec<Cell>) -> Row {
    Row { id: RowId::Of(device.snapshot.pid, device.snapshot.slot, at), cells }
}

/// The tone of a state.
pub(crate) fn tone_of(state: &str) -> Tone {
    match state {
        "RTS" => Tone::Good,
        "ERR" | "SQE" => Tone::Bad,
        _ => Tone::Warning,
    }
}

fn qp_row(device: &Device, qp: &QpReport, rates: &QpRates) -> Row {
    let peer = printable(&peer_of(qp));
    let peer_qpn = if qp.peer_qpn == 0 { String::new() } else { format!("{:#08x}", qp.peer_qpn) };
    let state = Cell { tone: tone_of(&qp.state), ..Cell::text(printable(&qp.state)) };
    let cells = vec![
        Cell::text(format!("{:#08x}", qp.qpn)),
        state,
        Cell::rate(rates.tx_bytes),
        Cell::rate(rates.rx_bytes),
        Cell::text(peer),
        Cell::count(qp.retransmitted).toned(Tone::Warning),
        command_of(device),
        pid_of(device),
        Cell::text(printable(&qp.transport)),
        Cell::text(peer_qpn),
        Cell::rate(rates.direct),
        Cell::rate(rates.tx_packets + rates.rx_packets),
        Cell::rate(rates.retransmitted).toned(Tone::Warning),
        Cell::count(qp.rnr_received.saturating_add(qp.rnr_sent)).toned(Tone::Warning),
        Cell::count(qp.naks_received.saturating_add(qp.naks_sent)).toned(Tone::Warning),
        Cell::count(qp.timeouts).toned(Tone::Bad),
        Cell::count(qp.sends_outstanding as u64),
        Cell::count(qp.recvs_waiting as u64),
        Cell::rate(qp.window_bytes.into()),
        Cell::count(qp.in_flight.into()),
    ];
    Row { id: RowId::Qp(device.qp_id(qp)), cells }
}

fn process_row(device: &Device) -> Row {
    let snapshot = &device.snapshot;
    let objects = &snapshot.objects;
    let unpolled =
        objects.completion_queues.iter().fold(0_u64, |sum, cq| sum.saturating_add(cq.waiting as u64));
    let regions = (objects.regions.len() as u64).saturating_add(objects.regions_left_out);
    let dropped = super::sample::total(&drops(snapshot));
    let connections = snapshot.cm.get("connections_now").copied().unwrap_or(0);
    let cells = vec![
        pid_of(device),
        command_of(device),
        Cell::count(device.qp_count()),
        Cell::rate(device.rates.tx_bytes),
        Cell::rate(device.rates.rx_bytes),
        Cell::count(dropped).toned(Tone::Warning),
        Cell::rate(device.rates.drops).toned(Tone::Bad),
        Cell::rate(device.rates.completions),
        Cell::count(snapshot.failed_completions).toned(Tone::Bad),
        Cell::count(unpolled),
        Cell::count(regions),
        Cell::rate(objects.region_bytes as f64),
        Cell::count(connections),
        Cell { number: Some(snapshot.uptime_ms as f64), ..Cell::text(uptime(snapshot.uptime_ms)) },
        Cell::text(printable(&snapshot.device)),
    ];
    row(device, 0, cells)
}

fn drop_rows(device: &Device) -> Vec<Row> {
    let dropped = drops(&device.snapshot).into_iter().map(|(name, count)| (name, count, "drop"));
    let refused = device.snapshot.refusals.iter().map(|(name, count)| (name.as_str(), *count, "refusal"));
    let meaning =
        |name: &str, what| if what == "drop" { meaning::of_drop(name) } else { meaning::of_refusal(name) };
    let line = |(at, (name, count, what)): (usize, (&str, u64, &'static str))| {
        let rate = device.reason_rates.get(&format!("{what} {name}")).copied().unwrap_or(0.0);
        let cells = vec![
            Cell::text(printable(name)),
            Cell::count(count),
            Cell::rate(rate).toned(Tone::Bad),
            pid_of(device),
            command_of(device),
            Cell::text(what),
            Cell::text(meaning(name, what)),
        ];
        row(device, at, cells)
    };
    dropped.chain(refused).enumerate().filter(|(_, (_, count, _))| *count > 0).map(line).collect()
}

fn cq_rows(device: &Device) -> Vec<Row> {
    let mut qps: HashMap<u32, u64> = HashMap::new();
    for qp in &device.snapshot.queue_pairs {
        let [send, recv] = qp.cqs;
        *qps.entry(send).or_default() += 1;
        if recv != send {
            *qps.entry(recv).or_default() += 1;
        }
    }
    let line = |(at, cq): (usize, &ferroce_nic::CqReport)| {
        let fill = cq.waiting as f64 / cq.depth.max(1) as f64;
        let tone = if fill >= 0.9 {
            Tone::Bad
        } else if fill >= 0.5 {
            Tone::Warning
        } else {
            Tone::Plain
        };
        let cells = vec![
            Cell::count(cq.id.into()),
            Cell { text: format!("{:.0} %", fill * 100.0), number: Some(fill), tone },
            Cell::count(cq.waiting as u64),
            Cell::count(cq.depth as u64),
            Cell::count(qps.get(&cq.id).copied().unwrap_or(0)),
            pid_of(device),
            command_of(device),
        ];
        row(device, at, cells)
    };
    device.snapshot.objects.completion_queues.iter().enumerate().map(line).collect()
}

fn memory_rows(device: &Device) -> Vec<Row> {
    let line = |(at, region): (usize, &ferroce_nic::RegionReport)| {
        let cells = vec![
            Cell::text(format!("{:#014x}", region.addr)),
            Cell { text: short(region.len as f64), ..Cell::count(region.len) },
            Cell::text(format!("{:#010x}", region.rkey)),
            Cell::text(printable(&region.access.replace(" and ", ", "))),
            pid_of(device),
            command_of(device),
            Cell::text(format!("{:#010x}", region.lkey)),
            Cell::count(region.pd.into()),
            Cell::text(if region.is_window { "window" } else { "region" }),
        ];
        row(device, at, cells)
    };
    device.snapshot.objects.regions.iter().enumerate().map(line).collect()
}

fn connection_rows(device: &Device) -> Vec<Row> {
    let counters = device.snapshot.cm.iter().filter(|(name, count)| **count > 0 || name.ends_with("_now"));
    let line = |(at, (name, count)): (usize, (&String, &u64))| {
        let cells = vec![
            Cell::text(printable(name)),
            Cell::count(*count),
            pid_of(device),
            command_of(device),
            Cell::text(meaning::of_cm(name)),
        ];
        row(device, at, cells)
    };
    counters.enumerate().map(line).collect()
}

/// The facts of a queue pair, each with its name.
pub(crate) fn facts(device: &Device, qp: &QpReport, rates: &QpRates) -> Vec<(&'static str, String)> {
    let fill = |id: u32| {
        let cq = device.snapshot.objects.completion_queues.iter().find(|cq| cq.id == id);
        cq.map_or_else(|| format!("{id}"), |cq| format!("{id} ({} of {})", cq.waiting, cq.depth))
    };
    let peer = peer_of(qp);
    let peer = if peer.is_empty() {
        "none".to_owned()
    } else {
        format!("{} QP {:#08x}", printable(&peer), qp.peer_qpn)
    };
    let per_second = |count: u64, rate: f64| format!("{count} ({}/s)", short(rate));
    vec![
        ("type", printable(&qp.transport)),
        ("state", printable(&qp.state)),
        ("peer", peer),
        ("bytes sent", per_second(qp.tx_bytes, rates.tx_bytes)),
        ("bytes received", per_second(qp.rx_bytes, rates.rx_bytes)),
        ("packets sent", per_second(qp.tx_packets, rates.tx_packets)),
        ("packets received", per_second(qp.rx_packets, rates.rx_packets)),
        ("direct", per_second(qp.performed, rates.direct)),
        ("retransmitted", per_second(qp.retransmitted, rates.retransmitted)),
        ("timeouts", qp.timeouts.to_string()),
        ("probes", qp.probes.to_string()),
        ("NAKs received", qp.naks_received.to_string()),
        ("NAKs sent", qp.naks_sent.to_string()),
        ("RNR received", qp.rnr_received.to_string()),
        ("RNR sent", qp.rnr_sent.to_string()),
        ("duplicates", qp.duplicates.to_string()),
        ("out of order", qp.out_of_order.to_string()),
        ("sends open", qp.sends_outstanding.to_string()),
        ("receives posted", qp.recvs_waiting.to_string()),
        ("window bytes", qp.window_bytes.to_string()),
        ("in flight", qp.in_flight.to_string()),
        ("send CQ", fill(qp.cqs[0])),
        ("receive CQ", fill(qp.cqs[1])),
    ]
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn every_tab_sorts_by_a_column_it_has() {
        for tab in Tab::ALL {
            assert!(tab.first_sort() > 0 || tab.columns()[0].title == "pid", "{tab:?}");
        }
    }
}
