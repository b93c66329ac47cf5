//! The end of a process inside a call, and of queue pairs while their counters are reported.

use crate::engine::QpPage;
use crate::engine::progress::{DelayedAcks, UnsentAck};
use crate::objects::{Cq, Pd, Qp, QpInit};
use crate::{Config, LinkChoice, Nic};
use ferroce_proto::verbs::{QpCap, Transport};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Set in the process that exits.
const EXITS: &str = "FERROCE_TEST_WORKER";
/// Its exit status.
const STATUS: i32 = 7;
/// Completions that each destroyed queue pair has counted.
const EACH: u64 = 1000;
/// Queue pairs that are destroyed.
const DESTROYED: u64 = 300;

fn open(address: &str) -> (Nic, Arc<Pd>, Cq) {
    let addresses = Some(vec![address.parse().unwrap()]);
    let nic = Nic::open(Config { addresses, link: LinkChoice::Udp, ..Config::default() }).unwrap();
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(16, None, 0).unwrap());
    (nic, pd, cq)
}

fn create(pd: &Arc<Pd>, cq: &Cq) -> Qp {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let transport = Transport::Rc;
    pd.create_qp(&QpInit { transport, send_cq: cq, recv_cq: cq, srq: None, cap, signal_all: true }).unwrap()
}

/// As a signal handler that calls `exit` does while its thread posts a request.
#[test]
fn a_process_that_exits_inside_a_call_ends_and_reports() {
    if std::env::var_os(EXITS).is_some() {
        let (nic, pd, cq) = open("127.43.93.1");
        let [interrupted, _other] = [(), ()].map(|()| create(&pd, &cq));
        nic.inner().engine.polling.push_ready(&interrupted.core);
        let _ = interrupted.post_send_each(|_| std::process::exit(STATUS));
    }
    let folder = std::env::temp_dir().join(format!("ferroce-exit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let test = "engine::calls::tests::a_process_that_exits_inside_a_call_ends_and_reports";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact"]).env(EXITS, "1").env("FERROCE_REPORT", &folder);
    let mut process = command.spawn().unwrap();
    let give_up = Instant::now() + Duration::from_secs(30);
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > give_up {
            process.kill().unwrap();
            panic!("it does not exit");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(STATUS));
    let report = std::fs::read_to_string(folder.join(format!("{}-0.json", process.id()))).unwrap();
    assert!(report.contains("\"queue pairs\":1"), "the queue pair of the call is not listed: {report}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_queue_pair_that_is_destroyed_is_counted_once() {
    let (nic, pd, cq) = open("127.43.93.2");
    let engine = &nic.inner().engine;
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..DESTROYED {
                let qp = create(&pd, &cq);
                let machine = qp.core.machine.lock();
                qp.core.tally.completions.add(EACH);
                drop(machine);
            }
            has_ended.store(true, Ordering::Release);
        });
        let mut before = 0;
        while !has_ended.load(Ordering::Acquire) {
            let total = engine.report(QpPage { after: 0, most: 0 }).counters.completions;
            assert!(total >= before, "{before} completions, then {total}");
            before = total;
        }
    });
    assert_eq!(engine.report(QpPage::ALL).counters.completions, DESTROYED * EACH);
}

#[test]
fn a_destroyed_queue_pair_does_not_wait_to_acknowledge() {
    let (nic, pd, cq) = open("127.43.93.3");
    let table = &nic.inner().engine.qps;
    let [gone, left] = [(), ()].map(|()| create(&pd, &cq));
    let (mut acks, unsent_ack) = (DelayedAcks::default(), UnsentAck::none());
    acks.refresh(table, &unsent_ack);
    acks.push(&gone.core, &unsent_ack);
    acks.push(&left.core, &unsent_ack);
    unsent_ack.clear_if(gone.qpn());
    drop(gone);
    acks.refresh(table, &unsent_ack);
    assert!(acks.waiting.iter().map(|qp| qp.qpn).eq([left.qpn()]));
    assert!(!acks.all_piggybacked(&unsent_ack));
    unsent_ack.clear_if(left.qpn());
    assert!(acks.all_piggybacked(&unsent_ack));
}

#[test]
fn acknowledgements_of_a_second_message_are_not_taken_for_carried() {
    let (_nic, pd, cq) = open("127.43.93.4");
    let [first, second] = [(), ()].map(|()| create(&pd, &cq));
    let (mut acks, unsent_ack) = (DelayedAcks::default(), UnsentAck::none());
    acks.push(&first.core, &unsent_ack);
    unsent_ack.clear_if(second.qpn());
    assert!(!acks.all_piggybacked(&unsent_ack), "another queue pair has sent");
    unsent_ack.clear_if(first.qpn());
    assert!(acks.all_piggybacked(&unsent_ack));
    for qp in [&first, &second] {
        acks.push(&qp.core, &unsent_ack);
        assert!(!acks.all_piggybacked(&unsent_ack), "another message has arrived");
        acks.waiting.pop();
    }
    acks.finish();
    acks.push(&second.core, &unsent_ack);
    assert!(!acks.all_piggybacked(&unsent_ack));
}
