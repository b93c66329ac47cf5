//! The metrics of made-up processes, against the grammar of OpenMetrics and the dashboard.

use super::metrics::{Format, render};
use super::totals::Totals;
use crate::counters::Report;
use crate::top::tests::device;
use ferroce_nic::inspect::Snapshot;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A process that does not exist: above the largest process ID of Linux.
const ENDED_PID: u32 = 1 << 30;

fn snapshot(pid: u32, command: &str, qps: &[u32], round: u64) -> Snapshot {
    serde_json::from_value(device(pid, 1, command, qps, round)).expect("a snapshot")
}

fn rendered(devices: Vec<Snapshot>, most_qps: usize, format: Format) -> String {
    let mut totals = Totals::default();
    totals.update(&devices);
    render(&Report { devices, unanswered: Vec::new() }, &totals, most_qps, format)
}

/// The value of the sample that begins like this.
fn value(text: &str, sample: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(sample)).and_then(|rest| rest.trim().parse().ok())
}

const SENT: &str = "node_infiniband_port_data_transmitted_bytes_total{device=\"ferroce0\",port=\"1\"}";

#[test]
fn counters_of_the_host_never_fall() {
    let mut totals = Totals::default();
    let mut sent = |devices: Vec<Snapshot>| {
        totals.update(&devices);
        let report = Report { devices, unanswered: Vec::new() };
        value(&render(&report, &totals, 0, Format::Text), SENT).expect("a value")
    };
    let own = std::process::id();
    assert_eq!(sent(vec![snapshot(ENDED_PID, "a", &[], 2), snapshot(own, "b", &[], 1)]), 15e6);
    assert_eq!(sent(vec![snapshot(own, "b", &[], 1)]), 15e6, "one has ended");
    assert_eq!(sent(Vec::new()), 15e6, "the other does not answer");
    assert_eq!(sent(vec![snapshot(own, "b", &[], 3)]), 25e6, "it goes on");
    assert_eq!(sent(vec![snapshot(own, "b", &[], 2)]), 25e6, "an answer from before the last one");
    let mut anew = snapshot(own, "b", &[], 1);
    anew.now_ns += 3_000_000_000;
    assert_eq!(sent(vec![anew]), 30e6, "it opened the device anew");
    // Without a report for minutes: the uptime of the new device exceeds the last one of the old device.
    let mut later = snapshot(own, "b", &[], 2);
    (later.now_ns, later.uptime_ms) = (later.now_ns + 600_000_000_000, later.uptime_ms + 120_000);
    assert_eq!(sent(vec![later]), 40e6, "it opened the device again");
}

#[test]
fn foreign_names_make_no_series() {
    let mut hostile = snapshot(7, "a\"b\\c\nd\u{1b}e", &[0x1_0001, 0x1_0002, 0x1_0003], 1);
    hostile.drops.extend((0..1000).map(|n| (format!("made_up_{n}"), 2)));
    let text = rendered(vec![hostile], 2, Format::OpenMetrics);
    check_grammar(&text);
    assert_eq!(value(&text, "ferroce_dropped_packets_total{reason=\"other\"}"), Some(2000.0));
    assert!(!text.contains("made_up"));
    assert!(text.contains("command=\"a\\\"b\\\\c?d?e\""), "{text}");
    let lines: Vec<&str> =
        text.lines().filter(|line| line.starts_with("ferroce_qp_timeouts_total{")).collect();
    assert_eq!(lines.len(), 2, "the two busiest of three");
    assert!(lines[0].contains("qp=\"0x010003\",peer=\"192.0.2.7\""), "{lines:?}");
}

#[test]
fn both_formats_list_the_same() {
    let devices = || vec![snapshot(7, "a", &[0x1_0001, 0x1_0005], 1)];
    let (open, text) = (rendered(devices(), 9, Format::OpenMetrics), rendered(devices(), 9, Format::Text));
    check_grammar(&open);
    let samples =
        |text: &str| text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(samples(&open), samples(&text));
    assert!(text.contains("# TYPE ferroce_completions_total counter") && !text.contains("EOF"));
    assert_eq!(value(&open, "ferroce_queue_pairs{pid=\"7\",slot=\"1\",state=\"ERR\"}"), Some(1.0));
    assert_eq!(value(&open, "ferroce_completion_queue_fill_ratio{pid=\"7\",slot=\"1\"}"), Some(60.0 / 64.0));
    check_grammar(&rendered(Vec::new(), 9, Format::OpenMetrics));
}

/// The rules of OpenMetrics 1.0 that these metrics can break: order and uniqueness of families, names, labels, values, the end.
fn check_grammar(text: &str) {
    let body = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut family, mut samples) = ("", BTreeSet::new());
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().expect("a name");
            assert!(is_name(family) && !family.ends_with("_total"), "{line}");
            assert!(!kinds.contains_key(family), "{family} appears twice");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            assert_eq!(name, family, "{line}");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            kinds.insert(family, kind);
        } else {
            let (name, rest) = line.split_at(line.find(['{', ' ']).expect("a value"));
            let suffix = if kinds[family] == "counter" { "_total" } else { "" };
            assert_eq!(name, format!("{family}{suffix}"), "{line}");
            let number = check_labels(rest).strip_prefix(' ').expect("a space");
            let number: f64 = number.parse().expect("a number");
            assert!(number.is_finite() && number >= 0.0 && !number.is_sign_negative(), "{line}");
            assert!(samples.insert(&line[..line.rfind(' ').expect("a space")]), "twice: {line}");
        }
    }
}

fn is_name(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    first && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Checks `{name="value",…}`, if it is there, and returns the rest.
fn check_labels(text: &str) -> &str {
    let Some(mut rest) = text.strip_prefix('{') else { return text };
    loop {
        let (name, content) = rest.split_once("=\"").expect("a label");
        assert!(is_name(name), "{name}");
        let mut escaped = false;
        let end = content.find(|c: char| {
            assert!(c != '\n' && (!escaped || ['\\', '"', 'n'].contains(&c)), "{content}");
            let is_end = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            is_end
        });
        rest = &content[end.expect("a closing quote") + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return rest.strip_prefix('}').expect("a closing brace"),
        }
    }
}

/// Every metric that the dashboard queries is exported.
#[test]
fn the_dashboard_queries_exported_metrics() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboards/ferroce.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).expect(path)).expect("JSON");
    let text = rendered(vec![snapshot(7, "a", &[0x1_0001], 1)], 9, Format::Text);
    let exported: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let mut queried = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(panel["title"].is_string() && panel["gridPos"]["w"].is_u64(), "{panel}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let words = target["expr"]
                .as_str()
                .expect("an expression")
                .split(|c: char| !c.is_alphanumeric() && c != '_');
            queried.extend(
                words
                    .filter(|word| word.starts_with("ferroce_") || word.starts_with("node_infiniband_"))
                    .map(str::to_owned),
            );
        }
    }
    let missing: Vec<&String> = queried.iter().filter(|name| !exported.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?} are not exported");
    assert!(queried.len() >= 12, "{queried:?}");
}
