//! Doorbell coalescing: while packets are in flight, short requests leave in batches, and none is left behind.

mod child_support;
mod objects_support;

use child_support::Other;
use ferroce_nic::{CompletionChannel, Config, Cq, LinkChoice, Nic, Pd, Qp};
use ferroce_proto::verbs::{Access, Payload, RecvWr, SendFlags, SendOp, SendWr, Sge, Transport, WcStatus};
use ferroce_proto::{LKey, Qpn, RKey};
use objects_support::{Buffer, completions, connect_at, connect_with, create, gid, init};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Packets in flight from which on requests wait for more.
const BUSY: usize = 8;
/// Requests that leave in one batch at the latest.
const BATCH: usize = 16;
/// About 1.07 s: longer than the delay of the acknowledgements.
const TIMEOUT: u8 = 18;
/// Bytes at both ends.
const MEMORY: usize = 16384;
/// Set in the process that exits.
const ROLE: &str = "COALESCING_SENDER";
/// Set in the process that is stopped.
const RESPONDER: &str = "COALESCING_RESPONDER";
/// Queue pairs of the process that is stopped.
const MANY: usize = 32;

/// The far end: its acknowledgements take long, so packets stay in flight.
struct Far {
    _nic: Nic,
    pd: Arc<Pd>,
    memory: Buffer,
    cq: Cq,
    qp: Qp,
}

/// The near end.
struct Near {
    nic: Nic,
    pd: Arc<Pd>,
    cq: Cq,
    qp: Qp,
    memory: Buffer,
}

fn open(address: &str, faults: Option<&str>) -> Nic {
    let addresses = Some(vec![address.parse().unwrap()]);
    let faults = faults.map(|faults| faults.parse().unwrap());
    let config = Config::from_env().unwrap().with(|config| {
        (config.addresses, config.faults, config.link) = (addresses, faults, LinkChoice::Udp);
    });
    Nic::open(config).unwrap()
}

impl Far {
    fn new(address: &str) -> Far {
        let nic = open(address, Some("delay=300ms"));
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(128, None, 0).unwrap());
        let qp = create(&pd, &cq, Transport::Rc);
        let memory = Buffer::new(&pd, MEMORY, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        Far { _nic: nic, pd, memory, cq, qp }
    }

    /// Connects it, with receives posted.
    fn connect(&self, near: &str, peer: Qpn) {
        init(&self.qp);
        for n in 0..32 {
            self.qp.post_recv(&[RecvWr { wr_id: 0, sges: &[self.memory.sge(n * 8, 8)] }]).unwrap();
        }
        connect_at(gid(near), &self.qp, peer);
    }

    /// Waits for the first `count` words. Nobody polls meanwhile.
    #[track_caller]
    fn await_words(&self, count: usize) {
        let give_up = Instant::now() + Duration::from_secs(10);
        while self.memory.read(0, count * 8).contains(&0) {
            assert!(Instant::now() < give_up, "{:?}", self.memory.read(0, count * 8));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Near {
    fn new(address: &str, channel: Option<&Arc<CompletionChannel>>) -> Near {
        let nic = open(address, None);
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(128, channel, 0).unwrap());
        let qp = create(&pd, &cq, Transport::Rc);
        let memory = Buffer::new(&pd, MEMORY, Access::LOCAL_WRITE);
        memory.fill(0, MEMORY, 7);
        Near { nic, pd, cq, qp, memory }
    }

    fn post(&self, n: usize, op: SendOp, sges: &[Sge]) {
        let payload = Payload::Sges(sges);
        let wr = SendWr { wr_id: n as u64, op, flags: SendFlags::SIGNALED, payload, ud: None, srq: None };
        self.qp.post_send(&[wr]).unwrap();
    }

    /// Writes words one by one, each with a call of its own.
    fn write(&self, words: std::ops::Range<usize>, to: (u64, RKey)) {
        for n in words {
            let op = SendOp::Write { addr: to.0 + n as u64 * 8, rkey: to.1 };
            self.post(n, op, &[self.memory.sge(n * 8, 8)]);
        }
    }

    fn packets(&self) -> usize {
        self.nic.counters().link.tx_packets as usize
    }
}

/// Two connected ends.
fn pair(net: u8) -> (Near, Far, (u64, RKey)) {
    let addresses = [1, 2].map(|host| format!("127.91.{net}.{host}"));
    let (near, far) = (Near::new(&addresses[0], None), Far::new(&addresses[1]));
    far.connect(&addresses[0], near.qp.qpn());
    connect_with(gid(&addresses[1]), &near.qp, far.qp.qpn(), TIMEOUT);
    let to = (far.memory.addr(0), far.memory.mr.rkey());
    (near, far, to)
}

/// Two connected ends, and `count` WRITEs of the near one of which those after the first [`BUSY`] wait for more.
fn waiting_pair(net: u8, count: usize) -> (Near, Far, (u64, RKey)) {
    for _ in 0..20 {
        let (near, far, to) = pair(net);
        for n in 1..=BUSY {
            near.write(n - 1..n, to);
            assert_eq!(near.packets(), n, "an idle queue pair sends at once");
        }
        near.write(BUSY..count, to);
        if near.packets() == BUSY {
            return (near, far, to);
        }
        // The background thread sends what waits too; if this thread lost the processor meanwhile, it was first.
    }
    panic!("no request waited in twenty attempts");
}

#[test]
fn short_requests_leave_in_batches_while_packets_are_in_flight() {
    // As in `waiting_pair`: the background thread may have been first, and then the last one waits for more.
    let full = (0..20).find_map(|_| {
        let (near, far, to) = waiting_pair(40, BUSY + BATCH - 1);
        near.write(BUSY + BATCH - 1..BUSY + BATCH, to);
        (near.packets() == BUSY + BATCH).then_some((near, far, to))
    });
    let (near, far, to) = full.expect("a full batch leaves");
    near.write(BUSY + BATCH..32, to);
    let calls = near.nic.counters().link.tx_calls as usize;
    assert!(calls <= BUSY + BATCH / 4, "{calls} system calls for {} packets", near.packets());
    assert_eq!(near.cq.poll(&mut [Default::default()]).unwrap(), 0, "no acknowledgement can be here yet");
    assert_eq!(near.packets(), 32, "a poll sends what waits");
    let done = completions(&near.cq, 32);
    assert!(done.iter().enumerate().all(|(n, c)| c.wr_id == n as u64 && c.status == WcStatus::Success));
    far.await_words(32);
}

#[test]
fn requests_of_a_few_packets_wait_too() {
    let any_waited = (0..20).any(|_| {
        let (near, _far, to) = waiting_pair(48, BUSY);
        for n in 0..3 {
            let op = SendOp::Write { addr: to.0 + n as u64 * 2048, rkey: to.1 };
            near.post(BUSY + n, op, &[near.memory.sge(0, 2048)]);
        }
        let has_waited = near.packets() == BUSY;
        completions(&near.cq, BUSY + 3);
        // As in `waiting_pair`: the background thread may have been first.
        has_waited
    });
    assert!(any_waited, "no request waited in twenty attempts");
}

#[test]
fn sends_wait_as_writes_do_and_arrive_in_order() {
    let (near, far, to) = pair(41);
    for n in 0..BUSY + 4 {
        near.memory.fill(n * 8, 8, 1 + n as u8);
        near.post(n, SendOp::Send, &[near.memory.sge(n * 8, 8)]);
    }
    // A long request takes the short ones along.
    near.post(99, SendOp::Write { addr: to.0 + 1024, rkey: to.1 }, &[near.memory.sge(0, 12_288)]);
    assert_eq!(near.packets(), BUSY + 4 + 12);
    assert_eq!(completions(&near.cq, BUSY + 5).last().unwrap().wr_id, 99);
    completions(&far.cq, BUSY + 4);
    let words = far.memory.read(0, (BUSY + 4) * 8);
    assert!(words.chunks(8).enumerate().all(|(n, word)| word == [1 + n as u8; 8]), "{words:?}");
}

#[test]
fn what_waits_leaves_although_nobody_polls() {
    let (near, far, to) = pair(42);
    // A poller that goes away: the background thread keeps out of its way at first.
    assert_eq!(near.cq.poll(&mut [Default::default()]).unwrap(), 0);
    near.write(0..BUSY + 3, to);
    far.await_words(BUSY + 3);
}

#[test]
fn what_waits_leaves_before_the_program_sleeps() {
    let (near, far, to) = waiting_pair(43, BUSY + 3);
    near.cq.request_notify(false).unwrap();
    assert_eq!(near.packets(), BUSY + 3, "who asks for a notification is about to sleep");
    near.write(BUSY + 3..BUSY + 4, to);
    assert_eq!(near.packets(), BUSY + 4, "nobody polls before the notification");
    far.await_words(BUSY + 4);
}

#[test]
fn what_waits_in_many_queue_pairs_leaves_before_the_program_sleeps() {
    const PAIRS: usize = 200;
    /// Queue pairs that the background thread may be serving at this moment.
    const BEING_SERVED: usize = 16;
    let (near, far, to) = pair(47);
    let more: Vec<(Qp, Qp)> = (0..PAIRS)
        .map(|_| {
            let ends = (create(&near.pd, &near.cq, Transport::Rc), create(&far.pd, &far.cq, Transport::Rc));
            connect_at(gid("127.91.47.1"), &ends.1, ends.0.qpn());
            connect_with(gid("127.91.47.2"), &ends.0, ends.1.qpn(), TIMEOUT);
            ends
        })
        .collect();
    for (qp, _) in &more {
        for n in 0..=BUSY {
            let op = SendOp::Write { addr: to.0 + n as u64 * 8, rkey: to.1 };
            let sges = [near.memory.sge(n * 8, 8)];
            let (wr_id, flags, payload) = (0, SendFlags::empty(), Payload::Sges(&sges));
            qp.post_send(&[SendWr { wr_id, op, flags, payload, ud: None, srq: None }]).unwrap();
        }
    }
    near.cq.request_notify(false).unwrap();
    let left_behind = PAIRS * (BUSY + 1) - near.packets();
    assert!(left_behind <= BEING_SERVED, "{left_behind} requests of {PAIRS} queue pairs still wait");
}

#[test]
fn a_fault_of_a_request_that_waits_is_reported_in_its_place() {
    let (near, _far, to) = pair(44);
    near.write(0..BUSY + 1, to);
    let sge = near.memory.sge(0, 8);
    let op = SendOp::Write { addr: to.0, rkey: to.1 };
    near.post(50, op, &[Sge { lkey: LKey(sge.lkey.0 ^ 1), ..sge }]);
    near.post(51, op, &[sge]);
    let done = completions(&near.cq, BUSY + 3);
    let statuses: Vec<WcStatus> = done.iter().map(|c| c.status).collect();
    assert!(statuses[..=BUSY].iter().all(|&status| status == WcStatus::Success), "{statuses:?}");
    assert_eq!(statuses[BUSY + 1..], [WcStatus::LocProtErr, WcStatus::WrFlushErr]);
}

#[test]
fn what_waits_leaves_before_the_queue_pair_goes() {
    let (near, far, _) = waiting_pair(45, BUSY + 3);
    let Near { nic, pd, cq, qp, memory } = near;
    drop(qp);
    assert_eq!(nic.counters().link.tx_packets as usize, BUSY + 3);
    far.await_words(BUSY + 3);
    drop((memory, cq, pd));
}

/// Not a test: the process that exits right after its last post.
#[test]
fn sender() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let numbers: Vec<u64> = role.split(' ').map(|number| number.parse().unwrap()).collect();
    let near = Near::new("127.91.46.1", None);
    println!("@has {}", near.qp.qpn().value());
    std::io::stdin().lines().next();
    connect_with(gid("127.91.46.2"), &near.qp, Qpn::new(numbers[0] as u32), TIMEOUT);
    near.write(0..BUSY + 3, (numbers[1], RKey(numbers[2] as u32)));
    // No destructor runs.
    std::process::exit(0);
}

#[test]
fn what_waits_leaves_when_the_process_exits() {
    let far = Far::new("127.91.46.2");
    let role = format!("{} {} {}", far.qp.qpn().value(), far.memory.addr(0), far.memory.mr.rkey().0);
    let mut sender = Other::start(Other::command("sender").env(ROLE, role));
    far.connect("127.91.46.1", Qpn::new(sender.line("@has ").parse().unwrap()));
    sender.tell("go");
    sender.finish();
    far.await_words(BUSY + 3);
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

fn many(pd: &Arc<Pd>, cq: &Cq) -> (Vec<Qp>, String) {
    let qps: Vec<Qp> = (0..MANY).map(|_| create(pd, cq, Transport::Rc)).collect();
    let qpns: Vec<String> = qps.iter().map(|qp| qp.qpn().value().to_string()).collect();
    (qps, qpns.join(" "))
}

fn connect_many(qps: &[Qp], address: &str, peers: &[u64]) {
    for (qp, peer) in qps.iter().zip(peers) {
        connect_with(gid(address), qp, Qpn::new(*peer as u32), TIMEOUT);
    }
}

/// Not a test: the process that is stopped until requests of many queue pairs wait for it.
#[test]
fn responder() {
    if std::env::var(RESPONDER).is_err() {
        return;
    }
    let nic = open("127.91.47.2", None);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(128, None, 0).unwrap());
    let memory = Buffer::new(&pd, MEMORY, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let (qps, qpns) = many(&pd, &cq);
    println!("@has {} {} {qpns}", memory.addr(0), memory.mr.rkey().0);
    let mut lines = std::io::stdin().lines().map(Result::unwrap);
    connect_many(&qps, "127.91.47.1", &numbers(&lines.next().unwrap()));
    println!("@is connected");
    lines.next();
    let link = nic.counters().link;
    println!("@sent {} {}", link.tx_calls, link.tx_packets);
}

#[test]
fn acknowledgements_of_many_queue_pairs_leave_together() {
    let mut responder = Other::start(Other::command("responder").env(RESPONDER, "1"));
    let has = numbers(&responder.line("@has "));
    let nic = open("127.91.47.1", None);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(128, None, 0).unwrap());
    let memory = Buffer::new(&pd, MEMORY, Access::LOCAL_WRITE);
    let (qps, qpns) = many(&pd, &cq);
    connect_many(&qps, "127.91.47.2", &has[2..]);
    responder.tell(&qpns);
    responder.line("@is connected");
    responder.stop();
    for qp in &qps {
        let op = SendOp::Write { addr: has[0], rkey: RKey(has[1] as u32) };
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&[memory.sge(0, 8)]));
        qp.post_send(&[SendWr { wr_id: 1, op, flags, payload, ud: None, srq: None }]).unwrap();
    }
    responder.signal("CONT");
    assert!(completions(&cq, MANY).iter().all(|completion| completion.status == WcStatus::Success));
    responder.tell("how many");
    let sent = numbers(&responder.line("@sent "));
    assert!(sent[1] >= MANY as u64 && sent[0] < sent[1], "{} calls for {} packets", sent[0], sent[1]);
    responder.finish();
}
