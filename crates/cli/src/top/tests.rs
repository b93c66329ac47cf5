//! Frames of every view on screens of several sizes, compared with files in golden/. `FERROCE_BLESS=1` rewrites them.

use super::app::{Action, App};
use super::draw;
use super::sample::{Sample, Sampler};
use super::tables::Tab;
use crate::counters::{Report, Unanswered};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};
use std::path::Path;

fn qp(qpn: u32, round: u64) -> Value {
    let busy = u64::from(qpn & 0xff);
    json!({
        "qpn": qpn, "transport": "RC", "state": if qpn & 0xf == 5 { "ERR" } else { "RTS" }, "peer_qpn": 0x20000 + busy,
        "peer": if busy == 2 { "fd00::2" } else { "::ffff:192.0.2.7" },
        "sends_outstanding": 1, "recvs_waiting": 16, "tx_packets": 100 * round, "tx_bytes": busy * 1_000_000 * round,
        "rx_packets": 50, "rx_bytes": 0, "retransmitted": 3 * round, "timeouts": 1, "probes": 0, "naks_received": 2,
        "naks_sent": 0, "rnr_received": 4, "rnr_sent": 0, "duplicates": 0, "out_of_order": 0, "performed": 1234 * round,
        "window_bytes": 524_288, "in_flight": 12, "cqs": [1, 2],
    })
}

/// A device, as it answers.
pub(crate) fn device(pid: u32, slot: u8, command: &str, qps: &[u32], round: u64) -> Value {
    json!({
        "format": 1, "device": "ferroce0", "pid": pid, "command": command, "slot": slot, "uptime_ms": 60_000 + 1000 * round,
        "now_ns": 1_000_000_000_000_u64 + 1_000_000_000 * round,
        "attributes": {
            "max_qp": 1, "max_qp_wr": 1, "max_sge": 1, "max_inline_data": 1, "max_cqe": 1, "max_mr": 1,
            "max_rd_atomic": 1, "max_msg_sz": 1, "gid_tbl_len": 1, "active_mtu": 4096, "window_bytes": 524_288,
        },
        "completions": 7 * round, "failed_completions": 2, "drops": {"bad_psn": 4 * round, "bad_icrc": 0},
        "refusals": {"denied": 1}, "cm": {"sent_req": 3, "stale": 0, "connections_now": 2},
        "link": {"tx_packets": 100, "tx_bytes": 5_000_000 * round, "local_rx_bytes": 2_000 * round},
        "queue_pairs": qps.iter().map(|qpn| qp(*qpn, round)).collect::<Vec<_>>(), "queue_pairs_left_out": 0,
        "completion_queues": [{"id": 1, "depth": 64, "waiting": 60}, {"id": 2, "depth": 1024, "waiting": 0}],
        "regions": [{"addr": 0x7f00_1234_5000_u64, "len": 4_194_304, "pd": 1, "lkey": 7, "rkey": 0x1a2b_3c4d,
                     "access": "LOCAL_WRITE and REMOTE_READ", "is_window": false}],
        "regions_left_out": 0, "region_bytes": 4_194_304,
        "history": [
            {"at_ns": 999_000_000_000_u64, "count": 1, "what": "enters RTS"},
            {"at_ns": 1_000_500_000_000_u64, "count": 37, "what": "packet retransmitted"},
        ],
    })
}

fn sample(sampler: &mut Sampler, round: u64, devices: Vec<Value>) -> Sample {
    let devices =
        devices.into_iter().map(|value| serde_json::from_value(value).expect("a snapshot")).collect();
    let report = Report { devices, unanswered: Vec::new() };
    sampler.sample(format!("2026-11-18 12:00:{round:02} UTC"), report)
}

/// Two processes, sampled twice.
fn two_samples() -> Vec<Sample> {
    let mut sampler = Sampler::default();
    let round = |sampler: &mut Sampler, round| {
        let one = device(4242, 1, "ib_write_bw", &[0x1_0001, 0x1_0002, 0x1_0005], round);
        let other = device(77, 2, "evil\u{1b}[2J\u{202e}\u{9b}31m字", &[0x2_0003], round);
        sample(sampler, round, vec![one, other])
    };
    vec![round(&mut sampler, 1), round(&mut sampler, 2)]
}

fn app() -> App {
    let mut app = App::new(String::new(), true);
    two_samples().into_iter().for_each(|sample| app.update(sample));
    app
}

fn screen(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
    terminal.draw(|frame| draw::frame(app, frame)).expect("it draws");
    let buffer = terminal.backend().buffer().clone();
    let line =
        |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
    (0..height).map(line).collect()
}

fn press(app: &mut App, keys: &[KeyCode]) -> Action {
    keys.iter().map(|code| app.key(KeyEvent::new(*code, KeyModifiers::NONE))).last().unwrap_or(Action::None)
}

fn compare_with_golden(name: &str, shown: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/golden").join(format!("{name}.txt"));
    if std::env::var_os("FERROCE_BLESS").is_some() {
        return std::fs::write(&path, shown).expect("the file is written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(shown, expected, "{} differs; FERROCE_BLESS=1 writes it anew", path.display());
}

#[test]
fn frames_look_as_they_did() {
    for (width, height) in [(40, 12), (100, 14), (200, 14)] {
        let mut app = app();
        for tab in Tab::ALL {
            app.show(tab);
            compare_with_golden(&format!("{tab:?}-{width}").to_lowercase(), &screen(&mut app, width, height));
        }
        app.show(Tab::Qps);
        press(&mut app, &[KeyCode::Enter]);
        app.update(two_samples().remove(1));
        compare_with_golden(&format!("open-{width}"), &screen(&mut app, width, 20));
        press(&mut app, &[KeyCode::End]);
        assert!(screen(&mut app, width, 10).contains("enters RTS"), "the oldest event is the last line");
    }
    let mut app = App::new(String::new(), false);
    app.update(two_samples().remove(1));
    compare_with_golden("once", &(draw::text(&mut app, 200) + "\n"));
}

/// Screens that are too small for any row are drawn too.
#[test]
fn every_size_is_drawn() {
    let mut app = app();
    for tab in Tab::ALL {
        app.show(tab);
        for (width, height) in [(1, 1), (2, 3), (3, 2), (8, 4), (17, 5), (40, 1), (500, 3), (1, 60)] {
            screen(&mut app, width, height);
            press(&mut app, &[KeyCode::Char('?')]);
            screen(&mut app, width, height);
            press(&mut app, &[KeyCode::Char('?'), KeyCode::Enter, KeyCode::End]);
            screen(&mut app, width, height);
            app.show(tab);
        }
    }
}

#[test]
fn rates_are_differences_by_the_clock_of_the_device() {
    let samples = two_samples();
    assert_eq!(samples[0].devices[0].rates.tx_bytes, 0.0);
    let device = &samples[1].devices[0];
    assert_eq!((device.rates.tx_bytes, device.rates.rx_bytes, device.rates.drops), (5e6, 2e3, 4.0));
    assert_eq!((device.qp_rates[1].tx_bytes, device.qp_rates[1].direct), (2e6, 1234.0));
    let json = samples[1].to_json();
    assert_eq!(json["devices"][0]["queue_pairs"][1]["rates"]["tx_bytes"], 2e6);
    // The slot now belongs to a process that counts from zero.
    let mut sampler = Sampler::default();
    sample(&mut sampler, 9, vec![device_of(9)]);
    let anew = sample(&mut sampler, 1, vec![device_of(1)]);
    assert_eq!((anew.devices[0].rates.tx_bytes, anew.devices[0].qp_rates[0].tx_bytes), (0.0, 0.0));
}

fn device_of(round: u64) -> Value {
    device(5, 5, "again", &[0x5_0001], round)
}

#[test]
fn control_characters_reach_no_terminal() {
    let mut app = app();
    for tab in Tab::ALL {
        app.show(tab);
        let shown = screen(&mut app, 200, 20);
        assert!(
            !shown.chars().any(|c| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c)),
            "{shown:?}"
        );
        assert!(tab == Tab::Qps || shown.contains("evil?[2J??31m字"), "{shown}");
    }
    press(&mut app, &[KeyCode::Char('/'), KeyCode::Char('\u{1b}')]);
    assert_eq!(app.filter, "");
}

#[test]
fn keys_sort_filter_and_open() {
    let mut app = app();
    let first = |app: &App| app.rows.first().map(|row| row.cells[0].text.clone()).unwrap_or_default();
    assert_eq!(first(&app), "0x010005", "the busiest one first");
    press(&mut app, &[KeyCode::Char('r')]);
    assert_eq!(first(&app), "0x010001");
    press(&mut app, &[KeyCode::Char('S'), KeyCode::Char('S')]);
    assert_eq!((app.order().column, first(&app)), (0, "0x010001".to_owned()));
    press(
        &mut app,
        &[KeyCode::Char('/'), KeyCode::Char('E'), KeyCode::Char('R'), KeyCode::Char('r'), KeyCode::Enter],
    );
    assert_eq!((app.rows.len(), first(&app)), (1, "0x010005".to_owned()), "state ERR");
    assert_eq!(press(&mut app, &[KeyCode::Enter]), Action::Refresh);
    assert_eq!(app.history_of().map(|qp| (qp.pid, qp.slot, qp.qpn)), Some((4242, 1, 0x1_0005)));
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!((app.history_of(), app.rows.len()), (None, 1));
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!(app.rows.len(), 4, "the filter is cleared");
    press(&mut app, &[KeyCode::Char('2'), KeyCode::End, KeyCode::Enter]);
    assert_eq!((app.tab, app.only_pid, app.rows.len()), (Tab::Qps, Some(4242), 3));
    assert_eq!(press(&mut app, &[KeyCode::Char('q')]), Action::Quit);
    assert_eq!(app.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Action::Quit);
}

/// The selection stays with the queue pair, and an open one that is gone keeps its last numbers.
#[test]
fn a_process_may_vanish_while_it_is_watched() {
    let mut app = app();
    press(&mut app, &[KeyCode::Char('s'), KeyCode::Down, KeyCode::Enter]);
    let open = app.history_of().expect("a queue pair is open");
    let mut sampler = Sampler::default();
    let rest = || vec![device(77, 2, "other", &[0x2_0003], 3)];
    app.update(sample(&mut sampler, 3, rest()));
    assert_eq!(app.history_of(), Some(open));
    let shown = screen(&mut app, 100, 30);
    assert!(shown.contains("It is gone; this is its last report, at 2026-11-18 12:00:02 UTC."), "{shown}");
    assert!(shown.contains("packet retransmitted ×37"), "{shown}");
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!((app.rows.len(), app.selected), (1, 0));
    app.update(sample(&mut sampler, 4, Vec::new()));
    let nobody = "No process of yours has a device open.";
    assert!(screen(&mut app, 40, 8).contains(nobody) && draw::text(&mut app, 40).ends_with(nobody));
    let why = "process 9 is stopped".to_owned();
    app.update(sampler.sample(
        String::new(),
        Report { devices: Vec::new(), unanswered: vec![Unanswered { pid: None, why }] },
    ));
    assert!(screen(&mut app, 100, 8).contains("process 9 is stopped"));
}

#[test]
fn ten_thousand_queue_pairs_are_walked() {
    let qps: Vec<u32> = (0x1_0002..0x1_0002 + 10_000).collect();
    let mut sampler = Sampler::default();
    let mut app = App::new(String::new(), true);
    app.update(sample(&mut sampler, 1, vec![device(1, 1, "many", &qps, 1)]));
    app.update(sample(&mut sampler, 2, vec![device(1, 1, "many", &qps, 2)]));
    let shown = screen(&mut app, 100, 20);
    assert!(shown.contains("1 process, 10000 queue pairs"), "{shown}");
    press(&mut app, &[KeyCode::End]);
    let shown = screen(&mut app, 100, 20);
    assert_eq!((app.selected, app.top), (9_999, 10_000 - app.page), "{shown}");
    press(&mut app, &[KeyCode::PageUp]);
    assert_eq!(app.selected, 9_999 - app.page);
}
