//! The page: statistics, then a ladder diagram per connection with the tables behind it. One file; its script draws from the
//! tables, so that they and the picture cannot disagree, and the page is readable without the script.

use super::analysis::{Analysis, BINS, Bin, Connection};
use super::histogram::Percentiles;
use super::message::Outcome;
use super::operations::{Operation, Operations};
use super::report::{ConnectionReport, DirectionReport, MessageReport, Report};
use super::requester::Notes;
use super::selection::Item;
use super::{message, words};
use crate::machine::utc;
use crate::page::{self, escape};
use crate::sizes::{format_amount, format_duration, format_size};
use crate::svg::{rectangle, text};
use std::fmt::Write;

const STYLE: &str = include_str!("timeline.css");
const SCRIPT: &str = include_str!("timeline.js");
/// Connections in the table.
const MAX_ROWS: usize = 1000;
const WIDTH: f64 = 980.0;
const OVERVIEW_HEIGHT: f64 = 74.0;
/// The least width of a bar.
const BAR: f64 = WIDTH / BINS as f64;

/// The whole page.
pub(super) fn html(analysis: &Analysis, report: &Report) -> String {
    let mut page = page::begin("ferroce timeline", STYLE);
    page.push_str("<h1>RoCEv2 timeline</h1>\n");
    heading(&mut page, analysis, report);
    cards(&mut page, report);
    page.push_str("<h2 id=\"connections\">Connections</h2>\n");
    connections(&mut page, analysis, report);
    for (number, connection) in analysis.connections.iter().enumerate() {
        if is_shown(connection, &report.connections[number]) {
            section(&mut page, analysis, report, number, connection);
        }
    }
    let _ = writeln!(page, "<script>\n{SCRIPT}</script>");
    page::end(page)
}

/// Whether a connection has a section of its own.
fn is_shown(connection: &Connection, report: &ConnectionReport) -> bool {
    let has_operations = report.operations.as_ref().is_some_and(|operations| !operations.listed.is_empty());
    has_operations || !connection.selection.items().is_empty()
}

fn heading(page: &mut String, analysis: &Analysis, report: &Report) {
    let mut words = format!(
        "{} packets of {} connections in {}, from {} on. Files: {}.",
        report.packets,
        report.connections.len(),
        format_duration(report.duration_ns),
        utc(report.start_unix_ns / 1_000_000_000),
        report.files.join(", ")
    );
    let shown: u64 = analysis.connections.iter().map(|c| c.selection.items().len() as u64).sum();
    let left_out: u64 = analysis.connections.iter().map(Connection::left_out).sum();
    if left_out > 0 {
        let _ = write!(
            words,
            " The page shows {shown} packets one by one: the first of each connection, and those around anomalies. The other {left_out} \
             are only counted; --packets N shows more."
        );
    }
    if report.messages_left_out > 0 {
        let _ = write!(words, " {} messages are only counted.", report.messages_left_out);
    }
    if report.packets_left_out > 0 {
        let _ = write!(words, " {} packets of further queue pairs are left out.", report.packets_left_out);
    }
    page::note(page, &words);
    for damage in &report.damaged {
        let _ = writeln!(page, "<p class=\"failed\">Read up to the damage: {}.</p>", escape(damage));
    }
    for (why, count) in &report.other_frames {
        page::note(page, &format!("{count} frames are not shown: {why}."));
    }
}

fn cards(page: &mut String, report: &Report) {
    let directions = || report.connections.iter().flat_map(|connection| &connection.requests);
    let bytes: u64 = directions().map(|direction| direction.goodput_bytes).sum();
    let retransmitted: u64 = directions().map(|direction| direction.retransmitted).sum();
    let rate = if report.duration_ns == 0 { 0.0 } else { bytes as f64 * 8e3 / report.duration_ns as f64 };
    let slowest = directions().filter_map(|direction| direction.rtt).max_by_key(|rtt| rtt.p99_ns);
    let anomalies: u64 = report.connections.iter().map(ConnectionReport::anomalies).sum();
    let messages: u64 = directions().map(|direction| direction.messages).sum();
    let share = 100.0 * retransmitted as f64 / report.packets.max(1) as f64;
    let cards = [
        (messages.to_string(), "messages".to_owned()),
        (
            format!("{rate:.1} Mbit/s"),
            format!("goodput: {} of payload, each byte counted once", format_amount(bytes)),
        ),
        (format!("{share:.2} %"), format!("of the packets are retransmissions ({retransmitted})")),
        (
            slowest.map_or("–".into(), |rtt| format_duration(rtt.p99_ns)),
            "RTT, 99th percentile of the slowest direction; lower is better".to_owned(),
        ),
        (anomalies.to_string(), "anomalies: retransmissions, gaps, NAKs, losses, marks, CNPs".to_owned()),
    ];
    page::headlines(page, cards.map(|(figure, what)| (figure, escape(&what))));
}

fn percentiles(of: Option<Percentiles>) -> String {
    let show = |p: Percentiles| [p.p50_ns, p.p90_ns, p.p99_ns, p.max_ns].map(format_duration).join(" / ");
    of.map_or(String::new(), show)
}

/// A row for each end of each connection.
fn connections(page: &mut String, analysis: &Analysis, report: &Report) {
    const HEADINGS: [&str; 16] = [
        "connection",
        "requests of",
        "packets sent",
        "messages",
        "goodput Mbit/s",
        "retransmitted",
        "share",
        "gaps (packets)",
        "out of order",
        "ACK",
        "NAK",
        "RNR NAK",
        "lost",
        "RTT p50 / p90 / p99 / max",
        "message latency p50 / p90 / p99 / max",
        "one-way delay p50 / p90 / p99 / max",
    ];
    page::begin_table(page, "statistics", "Connections", HEADINGS);
    for (number, connection) in report.connections.iter().enumerate().take(MAX_ROWS) {
        page.push_str("<tbody>\n");
        let name = connection_name(connection);
        let is_shown = is_shown(&analysis.connections[number], connection);
        let name = if is_shown { format!("<a href=\"#c{number}\">{name}</a>") } else { name };
        for (end, direction) in connection.requests.iter().enumerate() {
            page.push_str("<tr>");
            if end == 0 {
                let _ = write!(page, "<th scope=\"rowgroup\" rowspan=\"2\">{name}</th>");
            }
            direction_row(page, connection, end, direction);
        }
        page.push_str("</tbody>\n");
    }
    page::end_table(page);
    let left_out = report.connections.len().saturating_sub(MAX_ROWS);
    if left_out > 0 {
        page::note(page, &format!("{left_out} more connections are in the output of --json."));
    }
    page::note(
        page,
        "RTT: from a request packet to its answer, where the capture was taken; at the requester that is the whole round trip. Message latency: \
         from the first packet of a message to the answer that completes it.",
    );
}

fn direction_row(page: &mut String, connection: &ConnectionReport, end: usize, direction: &DirectionReport) {
    let naks: Vec<String> =
        direction.naks.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let cells = [
        direction.packets.to_string(),
        direction.messages.to_string(),
        format!("{:.1}", direction.goodput_bit_per_s / 1e6),
        direction.retransmitted.to_string(),
        format!("{:.2} %", 100.0 * direction.retransmission_share),
        format!("{} ({})", direction.gaps, direction.missing),
        direction.out_of_order.to_string(),
        direction.acks.to_string(),
        if naks.is_empty() { "0".into() } else { naks.join(", ") },
        direction.rnr_naks.to_string(),
        direction.lost.map_or("–".into(), |lost| lost.to_string()),
        percentiles(direction.rtt),
        percentiles(direction.latency),
        percentiles(direction.one_way_delay),
    ];
    let _ = write!(page, "<th scope=\"row\">{}</th>", escape(&connection.ends[end].name()));
    page::cells(page, cells);
}

fn connection_name(connection: &ConnectionReport) -> String {
    let [a, b] = &connection.ends;
    escape(&format!("{} {} ↔ {}", connection.service, a.name(), b.name()))
}

fn section(page: &mut String, analysis: &Analysis, report: &Report, number: usize, connection: &Connection) {
    let about = &report.connections[number];
    let _ = writeln!(page, "<section class=\"connection\" data-duration=\"{}\">", report.duration_ns);
    let _ = writeln!(page, "<h2 id=\"c{number}\">{}</h2>", connection_name(about));
    let mut facts = vec![format!("Paired by: {}.", about.paired_by)];
    facts.extend(about.path_mtu.map(|mtu| format!("Path MTU {}.", format_size(mtu.into()))));
    for (count, what) in [
        (about.cnps, "CNPs"),
        (about.ecn_marked, "packets marked by a switch"),
        (about.wrong_icrc, "packets with a wrong ICRC"),
        (about.cut, "packets cut by the snap length"),
    ] {
        if count > 0 {
            facts.push(format!("{count} {what}."));
        }
    }
    if let Some(operations) = &about.operations {
        facts.push(format!(
            "The program posted {} requests and polled {} completions, {} of them failed; {} of these are only counted.",
            operations.posts, operations.completions, operations.failed, operations.left_out
        ));
        if operations.latency.is_some() {
            let latency = percentiles(operations.latency);
            facts.push(format!("From post to completion, p50 / p90 / p99 / max: {latency}."));
        }
    }
    if connection.left_out() > 0 {
        facts.push(format!("{} packets are only counted.", connection.left_out()));
    }
    page::note(page, &facts.join(" "));
    overview(page, connection, report.duration_ns);
    let [a, b] = &about.ends;
    let _ = writeln!(
        page,
        "<div class=\"ladder\" data-a=\"{}\" data-b=\"{}\" hidden></div>",
        escape(&a.name()),
        escape(&b.name())
    );
    match about.operations.as_ref().filter(|_| connection.seed.packets == 0) {
        Some(operations) => operation_bars(page, operations, about),
        None => messages(page, report, number),
    }
    packets(page, analysis, connection, about);
    page.push_str("</section>\n");
}

/// Payload over the whole time of the capture: upwards from the first end, downwards from the second; anomalies on the line.
fn overview(page: &mut String, connection: &Connection, duration_ns: u64) {
    if connection.bins.is_empty() {
        return;
    }
    let most = connection.bins.iter().flat_map(|bin| bin.payload).max().unwrap_or(0).max(1) as f64;
    let middle = (OVERVIEW_HEIGHT - 16.0) / 2.0;
    let description = "payload and anomalies over the time of the capture";
    page::begin_figure(page, "overview", (WIDTH, OVERVIEW_HEIGHT), description);
    let per_bin = duration_ns / BINS as u64;
    for (at, bin) in connection.bins.iter().enumerate().filter(|(_, bin)| bin.packets > 0) {
        let Bin { payload, packets, anomalies } = *bin;
        let x = at as f64 * BAR;
        let title = format!(
            "from {} on: {packets} packets, {} and {} of payload, {anomalies} anomalies",
            format_duration(at as u64 * per_bin),
            format_amount(payload[0]),
            format_amount(payload[1])
        );
        let height = |bytes: u64| if bytes == 0 { 0.0 } else { (middle * bytes as f64 / most).max(1.0) };
        let (up, down) = (height(payload[0]), height(payload[1]));
        rectangle(page, "var(--send)", (x, middle - up), (BAR, up.max(0.5)), &title);
        rectangle(page, "var(--write)", (x, middle), (BAR, down.max(0.5)), &title);
        if anomalies > 0 {
            rectangle(page, "var(--bad)", (x, middle - 3.0), (BAR, 6.0), &title);
        }
    }
    text(page, "", (0.0, OVERVIEW_HEIGHT - 2.0), "0");
    text(page, "end", (WIDTH, OVERVIEW_HEIGHT - 2.0), &format_duration(duration_ns));
    let caption =
        "Payload over the whole capture: up from the first end, down from the second; red: anomalies.";
    page::end_figure(page, caption);
    let bins = connection.bins.iter().enumerate().filter(|(_, bin)| bin.packets > 0);
    let rows = bins.map(|(at, Bin { payload: [up, down], packets, anomalies })| {
        let (from, up, down) =
            (format_duration(at as u64 * per_bin), format_amount(*up), format_amount(*down));
        [from, packets.to_string(), up, down, anomalies.to_string()]
    });
    page::details(page, "The same as a table", |page| {
        page::table(page, caption, ["from", "packets", "payload up", "payload down", "anomalies"], rows);
    });
}

fn messages(page: &mut String, report: &Report, number: usize) {
    let of_connection = || report.messages.iter().filter(|message| message.connection == number);
    let count = of_connection().count();
    if count == 0 {
        return;
    }
    page::details(page, &format!("{count} messages"), |page| {
        let headings = ["start", "from", "message", "size", "packets", "PSN", "latency", "outcome"];
        page::begin_table(page, "messages", "Messages", headings);
        of_connection().for_each(|message| message_row(page, message, &report.connections[number]));
        page::end_table(page);
    });
}

fn message_row(page: &mut String, message: &MessageReport, connection: &ConnectionReport) {
    let end = message.latency_ns.unwrap_or(message.sending_ns);
    let mut outcome = match message.outcome {
        Outcome::Unanswered => "no answer captured".to_owned(),
        Outcome::Acknowledged => "acknowledged".to_owned(),
        Outcome::Refused(code) => format!("refused: {}", message::nak_reason(code)),
        Outcome::Unreliable => "unreliable: no answer exists".to_owned(),
    };
    for (count, what) in [(message.retransmitted, "packets sent again"), (message.rnr_naks, "RNR NAKs")] {
        if count > 0 {
            let _ = write!(outcome, ", {count} {what}");
        }
    }
    let mut name = message.kind.name().to_owned();
    if let Some(imm) = message.imm {
        let _ = write!(name, ", immediate data {imm:#x}");
    }
    if !message.has_start {
        name.push_str(" (its start was not captured)");
    }
    let is_bad =
        matches!(message.outcome, Outcome::Refused(_)) || message.retransmitted + message.rnr_naks > 0;
    let cells = [
        format_duration(message.start_ns),
        connection.ends[usize::from(message.from)].name(),
        name,
        format_size(message.bytes),
        message.packets.to_string(),
        format!("{}–{}", message.first_psn, message.last_psn),
        message.latency_ns.map_or("–".into(), format_duration),
        outcome,
    ];
    let _ = write!(
        page,
        "<tr data-m=\"{},{},{},{},{}\">",
        message.start_ns,
        message.start_ns + end,
        message.from,
        message.kind.class(),
        u8::from(is_bad)
    );
    page::cells(page, cells);
}

/// The operations of a connection without packets: each from its post to its completion.
fn operation_bars(page: &mut String, operations: &Operations, connection: &ConnectionReport) {
    let done = || operations.listed.iter().filter_map(|operation| Some((operation, operation.latency_ns?)));
    let row = |page: &mut String, (operation, latency_ns): (&Operation, u64)| {
        let start = operation.time_ns.saturating_sub(latency_ns);
        let class = match operation.name.as_str() {
            "SEND" => "send",
            "RDMA WRITE" => "write",
            "RDMA READ" => "read",
            "RECV" => "ack",
            _ => "atomic",
        };
        let is_bad = u8::from(operation.status != 0);
        let _ =
            write!(page, "<tr data-m=\"{start},{},{},{class},{is_bad}\">", operation.time_ns, operation.end);
        page::cells(
            page,
            [
                format_duration(start),
                connection.ends[usize::from(operation.end)].name(),
                operation.name.clone(),
                format_size(operation.bytes),
                "no".to_owned(),
                operation.wr_id.to_string(),
                format_duration(latency_ns),
                outcome_of(operation),
            ],
        );
    };
    page::details(page, &format!("{} operations", done().count()), |page| {
        let headings = ["posted", "by", "operation", "size", "packets", "wr_id", "latency", "outcome"];
        page::begin_table(page, "messages", "Operations", headings);
        done().for_each(|operation| row(page, operation));
        page::end_table(page);
    });
}

fn outcome_of(operation: &Operation) -> String {
    if operation.status == 0 {
        "success".to_owned()
    } else {
        format!("failed with status {}", operation.status)
    }
}

/// Packets, and what the program did in between.
fn packets(page: &mut String, analysis: &Analysis, connection: &Connection, about: &ConnectionReport) {
    let items = connection.selection.items();
    let operations = about.operations.as_ref().map_or(&[][..], |operations| &operations.listed);
    let what = match (items.len(), operations.len()) {
        (packets, 0) => format!("{packets} packets in words"),
        (0, operations) => format!("{operations} posts and completions"),
        (packets, operations) => format!("{packets} packets in words, {operations} posts and completions"),
    };
    page::details(page, &what, |page| {
        page::begin_table(page, "packets", "Packets", ["time", "from", "packet", "PSN", "in words"]);
        let start = analysis.plan.first_ns;
        let (mut next, mut operations) = (0, operations.iter().peekable());
        for item in items {
            while let Some(operation) =
                operations.next_if(|o| o.time_ns <= item.time_ns.saturating_sub(start))
            {
                operation_row(page, operation);
            }
            packet_row(page, item, item.serial - next, start);
            next = item.serial + 1;
        }
        operations.for_each(|operation| operation_row(page, operation));
        page::end_table(page);
    });
}

fn operation_row(page: &mut String, operation: &Operation) {
    let Operation { time_ns, end, name, wr_id, bytes, status, latency_ns, .. } = operation;
    let size = format_size(*bytes);
    let article = if ["RDMA", "atomic"].iter().any(|word| name.starts_with(word)) { "an" } else { "a" };
    let (class, label, words) = match operation.is_post {
        true => (
            "post",
            format!("post {name}"),
            format!("The program posts {article} {name} of {size}, wr_id {wr_id}."),
        ),
        false => {
            let what = if name.is_empty() { "request" } else { name };
            let after =
                latency_ns.map_or(String::new(), |ns| format!(" {} after its post.", format_duration(ns)));
            let words = format!(
                "The program polls the completion of {article} {what}, wr_id {wr_id}: {}.{after}",
                outcome_of(operation)
            );
            ("completion", format!("completion {what}"), words)
        }
    };
    let from = if *end == 0 { "first end" } else { "second end" };
    let _ = write!(page, "<tr data-p=\"{time_ns},,{end},{class},{},0,0\">", u8::from(*status != 0));
    page::cells(page, [format_duration(*time_ns), from.to_owned(), label, String::new(), words]);
}

/// `data-p` of a row is what the script draws: time, arrival, sending end, class, anomaly, lost, packets left out before it.
fn packet_row(page: &mut String, item: &Item, left_out: u64, start: u64) {
    let notes = item.finding.notes;
    let time = item.time_ns.saturating_sub(start);
    let arrival = item.arrival_ns.map_or(String::new(), |at| at.saturating_sub(start).to_string());
    let _ = write!(
        page,
        "<tr data-p=\"{time},{arrival},{},{},{},{},{left_out}\">",
        item.from,
        words::class(item),
        u8::from(notes.is_anomaly()),
        u8::from(notes.has(Notes::LOST))
    );
    let from = if item.from == 0 { "first end" } else { "second end" };
    let psn = item.headers.bth.psn.value().to_string();
    page::cells(
        page,
        [format_duration(time), from.to_owned(), words::label(item), psn, words::of_packet(item)],
    );
}
