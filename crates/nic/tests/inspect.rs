//! NICs of other processes, asked for their counters: running, polling, stopped, forked, and pestered.

use ferroce_nic::inspect::{self, InspectError, Snapshot};
use ferroce_nic::{Config, Cq, Nic, Pd, Qp, QpInit};
use ferroce_proto::verbs::{
    Access, AddressVector, AttrMask, Completion, Mtu, Payload, QpAttr, QpCap, QpState, RecvWr, SendFlags,
    SendOp, SendWr, Transport, WcStatus,
};
use ferroce_proto::{Gid, RKey};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far longer than anything here takes; reached only by a failure.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// A NIC on an address of its own, with a queue pair.
struct End {
    qp: Qp,
    cq: Cq,
    pd: Arc<Pd>,
    nic: Nic,
    addr: IpAddr,
}

fn open(addr: &str) -> Nic {
    let addresses = Some(vec![addr.parse().unwrap()]);
    Nic::open(Config::from_env().unwrap().with(|c| c.addresses = addresses)).expect("the device opens")
}

impl End {
    fn new(addr: &str) -> End {
        let nic = open(addr);
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(64, None, 0).unwrap();
        let qp = make_qp(&pd, &cq);
        End { qp, cq, pd, nic, addr: addr.parse().unwrap() }
    }

    fn connect(&self, to: &End) {
        use AttrMask as M;
        let attr = QpAttr {
            state: QpState::Init,
            port: 1,
            access: Access::REMOTE_WRITE,
            path_mtu: Mtu::B1024,
            dest_qpn: to.qp.qpn(),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            av: AddressVector { dgid: Gid::from_ip(to.addr), hop_limit: 64, port: 1, ..Default::default() },
            ..Default::default()
        };
        let steps = [
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
            (
                QpState::Rtr,
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            ),
            (QpState::Rts, M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC),
        ];
        for (state, mask) in steps {
            self.qp.modify(&QpAttr { state, ..attr }, mask | M::STATE).unwrap();
        }
    }

    /// Writes no bytes to the peer and waits until that was acknowledged: packets for a peer that does nothing.
    fn write_nothing(&self) {
        let op = SendOp::Write { addr: 0, rkey: RKey(0) };
        let wr = SendWr {
            wr_id: 3,
            op,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&[]),
            ud: None,
            srq: None,
        };
        self.qp.post_send(&[wr]).unwrap();
        self.wait();
    }

    /// Sends an empty message and waits until it was acknowledged.
    fn send_to(&self, to: &End) {
        to.qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
        let flags = SendFlags::SIGNALED;
        let payload = Payload::Inline(&[]);
        self.qp
            .post_send(&[SendWr { wr_id: 2, op: SendOp::Send, flags, payload, ud: None, srq: None }])
            .unwrap();
        self.wait();
        to.wait();
    }

    fn wait(&self) {
        let start = Instant::now();
        let mut out = [Completion::default(); 1];
        while self.cq.poll(&mut out).unwrap() == 0 {
            assert!(start.elapsed() < MAX_WAIT, "no completion");
        }
        assert_eq!(out[0].status, WcStatus::Success);
    }
}

fn make_qp(pd: &Arc<Pd>, cq: &Cq) -> Qp {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init =
        QpInit { transport: Transport::Rc, send_cq: cq, recv_cq: cq, srq: None, cap, signal_all: false };
    pd.create_qp(&init).unwrap()
}

/// What the NICs of one process answer.
fn snapshots(pid: u32) -> Vec<Snapshot> {
    inspect::all_within(MAX_WAIT).into_iter().flatten().filter(|s| s.pid == pid).collect()
}

fn snapshot_of_slot(slot: u8) -> Option<Snapshot> {
    inspect::all_within(MAX_WAIT).into_iter().flatten().find(|s| s.slot == slot)
}

/// The whole of a NIC, as soon as it answers in time.
fn whole_of(slot: u8, history_of: Option<(u8, u32)>) -> Snapshot {
    let start = Instant::now();
    loop {
        let found = inspect::whole(history_of).into_iter().flatten().find(|s| s.slot == slot);
        if let Some(whole) = found.filter(|s| s.queue_pairs_left_out == 0) {
            return whole;
        }
        assert!(start.elapsed() < MAX_WAIT, "it does not answer");
    }
}

fn socket_of(slot: u8) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let uid = std::fs::metadata("/proc/self").unwrap().uid();
    let netns = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
    let directory = ferroce_nic::registry::default_base().join(format!("ferroce-{uid}-{netns}"));
    directory.join(format!("nic-{slot}.sock"))
}

/// Programs end with receives posted. Those are no failures, and nothing explains them.
#[test]
fn flushed_requests_are_not_counted_as_failed() {
    let (a, b) = (End::new("127.77.9.1"), End::new("127.77.9.2"));
    a.connect(&b);
    (0..3).for_each(|wr_id| a.qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap());
    a.qp.modify(&QpAttr { state: QpState::Err, ..Default::default() }, AttrMask::STATE).unwrap();
    let answer = snapshot_of_slot(a.nic.slot()).expect("it answers");
    assert_eq!((answer.completions, answer.failed_completions, answer.flushed_completions), (3, 0, 3));
}

/// What changed the queue pair is kept; what moved its data is not.
#[test]
fn a_history_lists_what_happened_to_a_queue_pair() {
    let (a, b) = (End::new("127.77.9.3"), End::new("127.77.9.4"));
    a.connect(&b);
    b.connect(&a);
    (0..9).for_each(|_| a.send_to(&b));
    let history = |end: &End| {
        let answer = whole_of(end.nic.slot(), Some((end.nic.slot(), end.qp.qpn().value())));
        let events = answer.objects.history.expect("a history");
        events.into_iter().map(|event| (event.what, event.count)).collect::<Vec<_>>()
    };
    let count = |events: &[(String, u64)], what: &str| {
        events.iter().filter(|(event, _)| event.contains(what)).map(|(_, count)| count).sum::<u64>()
    };
    let states = ["INIT", "RTR", "RTS"].map(|state| (format!("enters {state}"), 1));
    let of_b = history(&b);
    assert!(of_b.starts_with(&states[..2]) && of_b.len() <= 4, "{of_b:?}");
    // A message that finds no receive.
    let payload = Payload::Inline(&[]);
    let wr = SendWr { wr_id: 7, op: SendOp::Send, flags: SendFlags::SIGNALED, payload, ud: None, srq: None };
    a.qp.post_send(&[wr]).unwrap();
    let start = Instant::now();
    while count(&history(&a), "RNR NAK received") == 0 {
        assert!(start.elapsed() < MAX_WAIT, "no RNR NAK");
    }
    assert!(count(&history(&b), "RNR NAK sent") > 0);
    a.qp.modify(&QpAttr { state: QpState::Err, ..Default::default() }, AttrMask::STATE).unwrap();
    let of_a = history(&a);
    assert_eq!((count(&of_a, "enters ERR"), count(&of_a, "flushed")), (1, 1), "{of_a:?}");
    let other = inspect::whole(Some((a.nic.slot(), 0x7f_ffff)));
    assert!(other.into_iter().flatten().all(|s| s.objects.history.is_none()), "no such queue pair");
}

/// The answer has what a person asks for beside queue pairs.
#[test]
fn queues_and_memory_are_listed() {
    let (a, b) = (End::new("127.77.9.5"), End::new("127.77.9.6"));
    a.connect(&b);
    (0..3).for_each(|wr_id| a.qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap());
    a.qp.modify(&QpAttr { state: QpState::Err, ..Default::default() }, AttrMask::STATE).unwrap();
    let memory = vec![0_u8; 12_345];
    let addr = memory.as_ptr().addr();
    // SAFETY: the vector outlives the region, and nobody else uses its bytes meanwhile.
    let region =
        unsafe { a.pd.register(addr, memory.len(), addr as u64, Access::REMOTE_READ, None) }.unwrap();
    let answer = snapshot_of_slot(a.nic.slot()).expect("it answers");
    let [cq] = &answer.objects.completion_queues[..] else { panic!("{answer:?}") };
    assert_eq!((cq.waiting, cq.depth >= 64, answer.queue_pairs[0].cqs), (3, true, [cq.id; 2]));
    let [listed] = &answer.objects.regions[..] else { panic!("{answer:?}") };
    assert_eq!((listed.addr, listed.len, listed.rkey), (addr as u64, 12_345, region.rkey().0));
    assert_eq!((listed.access.as_str(), answer.objects.region_bytes), ("REMOTE_READ", 12_345));
    drop(region);
    let answer = snapshot_of_slot(a.nic.slot()).expect("it answers");
    assert_eq!((answer.objects.regions.len(), answer.objects.regions_left_out), (0, 0));
}

#[test]
fn another_process_with_two_nics_tells_everything() {
    let mut worker = Worker::start("pair 127.77.1");
    let (one, two) = (worker.next("slot") as u8, worker.next("slot") as u8);
    let answers = snapshots(worker.process.id());
    let [a, b] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!([one.min(two), one.max(two)], [a.slot, b.slot]);
    for (here, there) in [(a, b), (b, a)] {
        let [qp] = &here.queue_pairs[..] else { panic!("{here:?}") };
        assert_eq!((here.device.as_str(), here.queue_pairs_left_out), ("ferroce0", 0));
        assert_eq!((qp.transport.as_str(), qp.state.as_str()), ("RC", "RTS"));
        assert_eq!(qp.peer_qpn, there.queue_pairs[0].qpn);
        assert!(qp.peer.starts_with("127.77.1."), "{}", qp.peer);
        // Ten messages went each way, each with its acknowledgement on the way back.
        assert!(qp.tx_packets >= 10 && qp.rx_packets >= 10, "{qp:?}");
        let sent = here.link["tx_packets"] + here.link["local_tx_packets"];
        assert!(sent >= qp.tx_packets, "{here:?}");
        assert_eq!(here.link["malformed"], 0, "{here:?}");
        assert_eq!((here.completions, here.failed_completions), (20, 0));
        assert!(here.drops.contains_key("bad_psn") && here.attributes.max_qp > 1000);
        let text = serde_json::to_string(here).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), *here);
    }
    assert!(socket_of(one).exists());
    worker.say("close");
    worker.next("closed");
    assert!(!socket_of(one).exists() && !socket_of(two).exists());
    assert!(snapshots(worker.process.id()).is_empty());
}

#[test]
fn a_process_that_polls_without_end_still_answers() {
    let mut worker = Worker::start("poll 127.77.2");
    worker.next("slot");
    assert_eq!(snapshots(worker.process.id()).len(), 1);
}

#[test]
fn a_process_that_is_written_to_without_end_still_answers() {
    let mut worker = Worker::start("flood 127.77.8");
    worker.next("slot");
    assert_eq!(snapshots(worker.process.id()).len(), 2);
}

#[test]
fn a_stopped_process_is_named_and_answers_when_it_goes_on() {
    let mut worker = Worker::start("pair 127.77.3");
    let slots = [worker.next("slot") as u8, worker.next("slot") as u8];
    let pid = worker.process.id();
    worker.signal("STOP");
    let start = Instant::now();
    while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
        assert!(start.elapsed() < MAX_WAIT, "it does not stop");
        std::thread::yield_now();
    }
    let stopped: Vec<u8> = inspect::all()
        .into_iter()
        .filter_map(|answer| match answer {
            Err(InspectError::Stopped { slot, pid: stopped, .. }) if stopped == pid => Some(slot),
            _ => None,
        })
        .collect();
    assert_eq!(stopped, [slots[0].min(slots[1]), slots[0].max(slots[1])]);
    worker.signal("CONT");
    assert_eq!(snapshots(pid).len(), 2);
}

#[test]
fn strange_clients_do_no_harm() {
    let (a, b) = (End::new("127.77.4.1"), End::new("127.77.4.2"));
    a.connect(&b);
    b.connect(&a);
    let path = socket_of(a.nic.slot());
    let mut silent = Vec::new();
    for round in 0..50 {
        let Ok(mut stream) = UnixStream::connect(&path) else { continue };
        match round % 4 {
            // Never reads, never leaves.
            0 => silent.push(stream),
            // Leaves at once.
            1 => drop(stream),
            // Talks nonsense. Whether it is taken or refused does not matter.
            2 => drop(stream.write_all(&[0xa5; 4096])),
            // Reads a little.
            _ => drop(stream.read(&mut [0; 7])),
        }
        a.send_to(&b);
    }
    let answer = snapshot_of_slot(a.nic.slot()).expect("it answers");
    assert_eq!(answer.pid, std::process::id());
    assert_eq!(answer.failed_completions, 0);
    drop(silent);
}

#[test]
fn a_closed_nic_is_not_asked() {
    let end = End::new("127.77.5.1");
    let slot = end.nic.slot();
    assert!(snapshot_of_slot(slot).is_some_and(|s| s.pid == std::process::id()));
    drop(end);
    assert!(snapshot_of_slot(slot).is_none_or(|s| s.pid != std::process::id()));
}

#[test]
fn more_queue_pairs_than_fit_are_counted() {
    let end = End::new("127.77.6.1");
    let mut more: Vec<Qp> = (0..999).map(|_| make_qp(&end.pd, &end.cq)).collect();
    let answer = snapshot_of_slot(end.nic.slot()).expect("it answers");
    assert!(
        answer.queue_pairs.len() >= 64 && answer.queue_pairs_left_out > 0,
        "{}",
        answer.queue_pairs.len()
    );
    assert_eq!(answer.queue_pairs.len() as u64 + answer.queue_pairs_left_out, 1000);
    assert_eq!(end.nic.counters().queue_pairs.len(), 1000);
    let whole = whole_of(end.nic.slot(), None);
    assert_eq!(whole.queue_pairs.len(), 1000);
    assert!(whole.queue_pairs.is_sorted_by(|one, next| one.qpn < next.qpn), "each once");
    assert_eq!(whole.objects.completion_queues.len(), 1);
    more.truncate(3);
    let answer = snapshot_of_slot(end.nic.slot()).expect("it answers");
    assert_eq!((answer.queue_pairs.len(), answer.queue_pairs_left_out), (4, 0));
}

#[test]
fn a_forked_child_does_not_answer_for_its_parent() {
    let mut worker = Worker::start("fork 127.77.7");
    let child = Orphan(worker.next("forked") as u32);
    let slot = worker.next("slot") as u8;
    let pid = worker.process.id();
    assert_eq!(snapshots(pid).len(), 1);
    worker.process.kill().unwrap();
    worker.process.wait().unwrap();
    let answers = inspect::all_within(MAX_WAIT);
    let orphaned = |e: &InspectError| matches!(e, InspectError::Orphaned { slot: s, .. } if *s == slot);
    assert!(answers.iter().any(|a| a.as_ref().is_err_and(orphaned)), "{answers:?}");
    drop(child);
}

/// The child of a worker, which does not end with it.
struct Orphan(u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        signal("KILL", self.0);
    }
}

/// A process with NICs.
struct Worker {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    fn start(role: &str) -> Worker {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["worker_process", "--exact", "--nocapture"])
            .env("FERROCE_TEST_WORKER", role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Worker { process, lines }
    }

    /// The next number that the process says under this name.
    fn next(&mut self, name: &str) -> u64 {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the worker is gone");
            // The test harness prints around us, also on the same line.
            if let Some((_, value)) = line.split_once(&format!("@{name} ")) {
                return value.trim().parse().unwrap();
            }
        }
    }

    fn say(&mut self, word: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    fn signal(&self, name: &str) {
        signal(name, self.process.id());
    }
}

fn signal(name: &str, pid: u32) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().unwrap();
    assert!(sent.success());
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test, but the body of a [`Worker`]: only a process that was started as one gets past the first line.
#[test]
fn worker_process() {
    let Ok(role) = std::env::var("FERROCE_TEST_WORKER") else { return };
    let (what, net) = role.split_once(' ').unwrap();
    let count = if matches!(what, "pair" | "flood") { 2 } else { 1 };
    let ends: Vec<End> = (1..=count).map(|i| End::new(&format!("{net}.{i}"))).collect();
    if let [a, b] = &ends[..] {
        a.connect(b);
        b.connect(a);
        for _ in 0..10 {
            a.send_to(b);
            b.send_to(a);
        }
    }
    if what == "fork" {
        fork_a_child();
    }
    for end in &ends {
        println!("@slot {}", end.nic.slot());
    }
    let start = Instant::now();
    while what != "pair" && start.elapsed() < MAX_WAIT {
        match what {
            "poll" => drop(ends[0].cq.poll(&mut [Completion::default()])),
            "flood" => ends[0].write_nothing(),
            _ => break,
        }
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    drop(ends);
    println!("@closed 0");
    std::io::stdin().read_line(&mut line).unwrap();
}

/// A child that inherits the NIC and does nothing until it is killed.
fn fork_a_child() {
    // SAFETY: the child calls nothing but functions that are allowed after fork in a process with threads.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: takes and touches nothing.
            unsafe { libc::pause() };
        },
        child => println!("@forked {child}"),
    }
}
