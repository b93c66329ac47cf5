//! The documents of made-up processes.

use super::document::{MAX_ROWS, PageRequest, document};
use super::topology::{MAX_NODES, topology};
use super::watch::{Observed, Watch};
use crate::counters::Report;
use crate::top::sample::{Sample, Sampler};
use crate::top::tests::device;
use serde_json::Value;
use std::time::{Duration, Instant};

fn sample(devices: Vec<Value>) -> Sample {
    let devices =
        devices.into_iter().map(|value| serde_json::from_value(value).expect("a snapshot")).collect();
    Sampler::default().sample("now".into(), Report { devices, unanswered: Vec::new() })
}

fn request(query: &[(&str, &str)]) -> PageRequest {
    PageRequest::of(|name| query.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
}

fn seen(devices: Vec<Value>) -> Observed {
    Observed { sample: sample(devices), gone: Vec::new() }
}

#[test]
fn wrong_parameters_are_the_default() {
    for query in [[("tab", "99")], [("sort", "-1")], [("pid", "x")], [("qp", "1.2.3.4")], [("qp", "1.300.3")]]
    {
        assert_eq!(request(&query), PageRequest::default(), "{query:?}");
    }
    assert_eq!(request(&[("filter", &"x".repeat(1000))]), request(&[("filter", &"x".repeat(64))]));
}

#[test]
fn ten_thousand_queue_pairs_are_counted_and_some_shown() {
    let qps: Vec<u32> = (0x1_0001..0x1_0001 + 10_000).collect();
    let seen = seen(vec![device(7, 1, "many", &qps, 1)]);
    let whole = document(&seen, &PageRequest::default());
    assert_eq!((&whole["table"]["matching"], &whole["rates"]["qps"]), (&10_000.into(), &10_000.into()));
    assert_eq!(whole["table"]["rows"].as_array().map(Vec::len), Some(MAX_ROWS));
    assert!(whole.to_string().len() < 400_000, "{}", whole.to_string().len());
    let one = document(&seen, &request(&[("filter", "0x012710")]));
    assert_eq!(one["table"]["rows"][0]["cells"][0][0], "0x012710", "what is not shown can be found");
}

#[test]
fn a_queue_pair_is_opened_with_its_events() {
    let seen = seen(vec![device(7, 1, "evil\u{1b}[2J<b>", &[0x1_0001, 0x1_0005], 1)]);
    let id = format!("7.1.{}", 0x1_0005);
    let open = &document(&seen, &request(&[("qp", &id)]))["open"];
    assert_eq!((&open["qp"], &open["state"]), (&id.into(), &"failed".into()));
    assert_eq!(
        (&open["events"][0]["what"], &open["events"][0]["count"]),
        (&"packet retransmitted".into(), &37.into())
    );
    assert!(!open["title"].as_str().expect("a title").contains('\u{1b}'), "{open}");
    assert_eq!(document(&seen, &request(&[("qp", "7.1.9")]))["open"], Value::Null);
}

#[test]
fn a_process_that_vanishes_stays_for_a_while() {
    let (mut watch, start) = (Watch::default(), Instant::now());
    let (one, other) = (|| device(7, 1, "a", &[0x1_0001], 1), || device(8, 2, "b", &[0x2_0001], 1));
    watch.update(sample(vec![one(), other()]), start);
    assert!(watch.observed(start).gone.is_empty() && watch.has(8));
    watch.update(sample(vec![one()]), start + Duration::from_secs(1));
    watch.update(sample(vec![one()]), start + Duration::from_secs(11));
    let now = watch.observed(start + Duration::from_secs(11));
    assert_eq!(now.gone, [((8, 2), Duration::from_secs(10))]);
    assert!(!watch.has(8), "no file of a process ID that another may have by now");
    let rows = document(&now, &request(&[("pid", "8")]))["table"]["rows"].clone();
    assert_eq!((&rows[0]["gone_s"], &rows[0]["cells"][2][0]), (&10.into(), &"0".into()));
    watch.update(sample(vec![one(), other()]), start + Duration::from_secs(12));
    assert!(watch.observed(start + Duration::from_secs(12)).gone.is_empty(), "it answers again");
    watch.update(sample(vec![one()]), start + Duration::from_secs(13));
    watch.update(sample(vec![one()]), start + Duration::from_secs(60));
    assert_eq!(watch.observed(start + Duration::from_secs(60)).sample.devices.len(), 1, "forgotten");
}

#[test]
fn links_connect_processes_and_hosts() {
    let mut one = device(7, 1, "a", &[0x1_0001, 0x1_0002], 1);
    let mut other = device(8, 2, "b", &[0x2_0001, 0x2_0002], 1);
    one["queue_pairs"][0]["peer_qpn"] = 0x2_0001.into();
    other["queue_pairs"][0]["peer_qpn"] = 0x1_0001.into();
    other["queue_pairs"][1]["peer_qpn"] = 0.into();
    let found = topology(&seen(vec![one, other]));
    let names: Vec<&str> =
        found["nodes"].as_array().expect("nodes").iter().filter_map(|node| node["name"].as_str()).collect();
    assert_eq!(names, ["a 7", "b 8", "fd00::2"]);
    assert_eq!(found["nodes"][1]["unconnected"], 1);
    let links = found["links"].as_array().expect("links");
    let ends = |link: &Value| (link["a"].as_u64(), link["b"].as_u64(), link["link"]["count"].as_u64());
    assert_eq!(
        links.iter().map(ends).collect::<Vec<_>>(),
        [(Some(0), Some(1), Some(1)), (Some(0), Some(2), Some(1))]
    );
}

#[test]
fn many_processes_are_left_out_of_the_drawing() {
    let devices = (1..=100).map(|n| device(n, n as u8, "p", &[(n << 16) + 1], 1)).collect();
    let found = topology(&seen(devices));
    assert_eq!(found["nodes"].as_array().map(Vec::len), Some(MAX_NODES));
    assert_eq!(found["left_out"], 101 - MAX_NODES);
}
