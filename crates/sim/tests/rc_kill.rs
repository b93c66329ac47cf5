//! A peer that dies at any point of any transfer: the documented status, everything behind it flushed, never a hang.

mod support;

use ferroce_proto::verbs::{Mtu, QpState, WcStatus};
use ferroce_sim::{PairSetup, Rule};
use support::{ALL, Script, run};

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B256, timeout: 10, retry_cnt: 2, ..PairSetup::rc() }
}

const LEN: u32 = 256 * 3 + 7;

fn posted(script: &Script) -> Vec<u64> {
    let pair = setup().connect();
    (script.start)(&pair, LEN);
    pair.a.qp.set_state(QpState::Err).unwrap();
    pair.a.send_cq.drain().iter().map(|c| c.wr_id).collect()
}

#[test]
fn a_peer_may_die_at_any_packet() {
    for script in ALL {
        let ids = posted(script);
        let total = run(script, &setup(), LEN, |_| {}).world.packets_sent();
        for death in 0..total {
            println!("{}: node b dies at packet {death} of {total}", script.name);
            let pair = setup().connect();
            pair.world.rule(Rule::on(move |seen| seen.index >= death).drop());
            (script.start)(&pair, LEN);
            pair.run();
            assert_eq!(pair.a.qp.state(), QpState::Err);
            let got = pair.a.send_cq.statuses();
            let failed = got.iter().position(|(_, s)| *s != WcStatus::Success).expect("something failed");
            assert_eq!(got[failed].1, WcStatus::RetryExcErr);
            assert!(got[failed + 1..].iter().all(|(_, s)| *s == WcStatus::WrFlushErr), "{got:?}");
            // From the failed one on, every request is there, in order.
            let from = ids.iter().position(|id| *id == got[failed].0).unwrap();
            let rest: Vec<u64> = got[failed..].iter().map(|(id, _)| *id).collect();
            assert_eq!(rest, ids[from..]);
        }
    }
}

#[test]
fn a_killed_node_stays_silent() {
    for after_ns in [0, 500, 1_000, 1_010, 1_500, 2_000, 2_050, 3_000] {
        for script in ALL {
            let pair = setup().connect();
            (script.start)(&pair, LEN);
            pair.world.run_for(after_ns);
            pair.b.node.kill();
            pair.run();
            let got = pair.a.send_cq.statuses();
            let failed: Vec<_> = got.iter().filter(|(_, s)| *s != WcStatus::Success).collect();
            if let Some((_, status)) = failed.first() {
                assert_eq!(*status, WcStatus::RetryExcErr);
                assert!(failed[1..].iter().all(|(_, s)| *s == WcStatus::WrFlushErr));
            }
            let state = if failed.is_empty() { QpState::Rts } else { QpState::Err };
            assert_eq!(pair.a.qp.state(), state, "{} after {after_ns} ns: {got:?}", script.name);
        }
    }
}

#[test]
fn a_peer_in_error_stops_answering() {
    for after_ns in [0, 1_000, 1_010, 1_050, 2_000] {
        for script in ALL {
            let pair = setup().connect();
            (script.start)(&pair, LEN);
            pair.world.run_for(after_ns);
            pair.b.qp.set_state(QpState::Err).unwrap();
            pair.run();
            let got = pair.a.send_cq.statuses();
            if let Some((_, status)) = got.iter().find(|(_, s)| *s != WcStatus::Success) {
                assert_eq!(*status, WcStatus::RetryExcErr, "{} after {after_ns} ns", script.name);
            }
            assert_eq!(pair.a.qp.sends_outstanding(), 0);
        }
    }
}
