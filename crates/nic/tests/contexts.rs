//! Progress contexts: completion queues that different threads poll share nothing, and yet it is one device.

mod objects_support;

use ferroce_nic::{Config, Cq, Nic, Pd, Qp, QpInit};
use ferroce_proto::Qpn;
use ferroce_proto::verbs::{Access, AtomicOp, Completion, QpState, RecvWr, SendOp, Transport, WcStatus};
use objects_support::{Buffer, CAP, completions, connect, connect_at, create, gid, init, post};
use std::sync::Arc;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// A NIC with at most so many contexts.
fn open(address: &str, most: u8) -> Nic {
    let addresses = Some(vec![address.parse().unwrap()]);
    let config = Config::from_env().unwrap();
    Nic::open(config.with(|config| (config.addresses, config.progress_contexts) = (addresses, Some(most))))
        .unwrap()
}

fn cq(nic: &Nic) -> Cq {
    nic.create_cq(64, None, 0).unwrap()
}

/// The part of a queue pair number that names the context.
fn context(qpn: Qpn) -> u32 {
    qpn.value() >> 16
}

/// Queue pairs of one NIC, each with a completion queue and a context of its own.
fn apart(nic: &Nic, pd: &Arc<Pd>) -> [(Qp, Cq); 2] {
    let ends = [(); 2].map(|()| {
        let cq = cq(nic);
        (create(pd, &cq, Transport::Rc), cq)
    });
    assert_ne!(context(ends[0].0.qpn()), context(ends[1].0.qpn()));
    ends
}

#[test]
fn completion_queues_get_contexts_of_their_own_as_long_as_there_are_some() {
    let nic = open("127.92.1.1", 3);
    let pd = nic.alloc_pd().unwrap();
    let cqs: Vec<Cq> = (0..5).map(|_| cq(&nic)).collect();
    let made: Vec<Qp> = cqs.iter().map(|cq| create(&pd, cq, Transport::Rc)).collect();
    let contexts: Vec<u32> = made.iter().map(|qp| context(qp.qpn())).collect();
    assert_eq!(contexts[0], u32::from(nic.slot()));
    assert!(contexts[1] != contexts[0] && contexts[2] != contexts[1] && contexts[2] != contexts[0]);
    assert!(contexts[..3].contains(&contexts[3]) && contexts[..3].contains(&contexts[4]));
    assert_ne!(contexts[3], contexts[4], "the load is spread");
    let again = create(&pd, &cqs[1], Transport::Rc);
    assert_eq!(context(again.qpn()), contexts[1], "all queue pairs of a completion queue are together");
}

#[test]
fn both_completion_queues_of_a_queue_pair_belong_together() {
    let nic = open("127.92.2.1", 8);
    let pd = nic.alloc_pd().unwrap();
    let cqs = [(); 4].map(|()| cq(&nic));
    let make = |send: usize, recv: usize| {
        let (transport, send_cq, recv_cq) = (Transport::Rc, &cqs[send], &cqs[recv]);
        let qp =
            pd.create_qp(&QpInit { transport, send_cq, recv_cq, srq: None, cap: CAP, signal_all: false });
        context(qp.as_ref().unwrap().qpn())
    };
    let (first, second) = (make(0, 1), make(2, 3));
    assert_ne!(first, second);
    assert_eq!((make(1, 0), make(3, 2)), (first, second));
    // The queues are apart already: whoever polls either drives both contexts.
    assert_eq!(make(0, 3), second);
}

#[test]
fn a_place_that_became_free_is_used_again() {
    let nic = open("127.92.3.1", 2);
    let pd = nic.alloc_pd().unwrap();
    let [(first, _first_cq), (second, second_cq)] = apart(&nic, &pd);
    let freed = context(second.qpn());
    drop((second, second_cq));
    let third_cq = cq(&nic);
    let third = create(&pd, &third_cq, Transport::Rc);
    assert_eq!(context(third.qpn()), freed);
    drop(first);
}

/// Everything between the contexts of one NIC, or of two NICs.
fn exercise([near_nic, far_nic]: [&Nic; 2], [(near, near_cq), (far, far_cq)]: [(Qp, Cq); 2]) {
    connect(far_nic, &near, far.qpn());
    init(&far);
    let theirs = Buffer::new(far.pd(), 4096, ALL);
    far.post_recv(&[RecvWr { wr_id: 7, sges: &[theirs.sge(2048, 64)] }]).unwrap();
    connect(near_nic, &far, near.qpn());
    let ours = Buffer::new(near.pd(), 4096, ALL);
    ours.fill(0, 64, 5);
    let rkey = theirs.mr.rkey();
    post(&near, 1, SendOp::Write { addr: theirs.addr(0), rkey }, &[ours.sge(0, 64)]);
    assert_eq!(completions(&near_cq, 1)[0].status, WcStatus::Success);
    assert_eq!(theirs.read(0, 64), [5; 64]);
    post(&near, 2, SendOp::Read { addr: theirs.addr(0), rkey }, &[ours.sge(1024, 64)]);
    let add = AtomicOp::FetchAdd { add: 3 };
    post(&near, 3, SendOp::Atomic { addr: theirs.addr(8), rkey, op: add }, &[ours.sge(512, 8)]);
    post(&near, 4, SendOp::Send, &[ours.sge(0, 64)]);
    let done = completions(&near_cq, 3);
    assert!(done.iter().all(|c| c.status == WcStatus::Success), "{done:?}");
    assert_eq!((ours.read(1024, 64), ours.read(512, 8)), (vec![5; 64], vec![5; 8]));
    assert_eq!(theirs.read(8, 1), [8]);
    let received = completions(&far_cq, 1);
    assert_eq!((received[0].wr_id, received[0].byte_len), (7, 64));
    // A region that is gone is gone for all contexts.
    drop(theirs);
    post(&near, 5, SendOp::Write { addr: 0x1000, rkey }, &[ours.sge(0, 8)]);
    assert_eq!(completions(&near_cq, 1)[0].status, WcStatus::RemAccessErr);
    assert_eq!(near.query().state, QpState::Err);
}

/// Unless all packets go by UDP, one-sided operations are executed in the memory of another context.
#[track_caller]
fn assert_direct(nic: &Nic) {
    let link = nic.counters().link;
    let is_udp = Config::from_env().unwrap().link == ferroce_nic::LinkChoice::Udp;
    assert!(is_udp || link.direct_mapped + link.direct_copied >= 2, "{link:?}");
}

#[test]
fn contexts_of_one_nic_reach_each_other() {
    let nic = open("127.92.4.1", 2);
    let pd = nic.alloc_pd().unwrap();
    exercise([&nic, &nic], apart(&nic, &pd));
    let counters = nic.counters();
    assert_direct(&nic);
    assert!(counters.completions >= 6, "the counters are those of all contexts: {counters:?}");
}

#[test]
fn contexts_of_two_nics_reach_each_other() {
    let nics = ["127.92.5.1", "127.92.5.2"].map(|address| open(address, 2));
    let [one, other] = nics.each_ref().map(|nic| apart(nic, &nic.alloc_pd().unwrap()));
    let [_, (near, near_cq)] = one;
    let [_, (far, far_cq)] = other;
    exercise([&nics[0], &nics[1]], [(near, near_cq), (far, far_cq)]);
    assert_direct(&nics[0]);
}

#[test]
fn a_program_that_sleeps_is_woken_by_any_context() {
    let nic = open("127.92.6.1", 2);
    let pd = nic.alloc_pd().unwrap();
    let channel = nic.create_channel().unwrap();
    let [near_cq, far_cq] = [None, Some(&channel)].map(|channel| nic.create_cq(64, channel, 9).unwrap());
    let [near, far] = [&near_cq, &far_cq].map(|cq| create(&pd, cq, Transport::Rc));
    assert_ne!(context(near.qpn()), context(far.qpn()));
    init(&far);
    let memory = Buffer::new(&pd, 64, ALL);
    far.post_recv(&[RecvWr { wr_id: 1, sges: &[memory.sge(0, 8)] }]).unwrap();
    connect_at(gid("127.92.6.1"), &near, far.qpn());
    connect_at(gid("127.92.6.1"), &far, near.qpn());
    far_cq.request_notify(false).unwrap();
    post(&near, 2, SendOp::Send, &[memory.sge(32, 8)]);
    assert_eq!(channel.wait().unwrap(), (far_cq.id(), 9));
    assert_eq!(completions(&far_cq, 1)[0].wr_id, 1);
}

#[test]
fn threads_with_completion_queues_of_their_own_all_progress() {
    let nic = open("127.92.7.1", 4);
    let pd = nic.alloc_pd().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let cqs = [(); 2].map(|()| cq(&nic));
                let [near, far] = cqs.each_ref().map(|cq| create(&pd, cq, Transport::Rc));
                init(&far);
                let memory = Buffer::new(&pd, 4096, ALL);
                let receive = || far.post_recv(&[RecvWr { wr_id: 0, sges: &[memory.sge(0, 8)] }]).unwrap();
                (0..32).for_each(|_| receive());
                connect(&nic, &near, far.qpn());
                connect(&nic, &far, near.qpn());
                for _ in 0..500 {
                    post(&near, 1, SendOp::Send, &[memory.sge(64, 8)]);
                    assert_eq!(completions(&cqs[1], 1)[0].status, WcStatus::Success);
                    receive();
                    assert_eq!(completions(&cqs[0], 1)[0].status, WcStatus::Success);
                }
            });
        }
    });
}

#[test]
fn counters_show_the_queue_pairs_of_all_contexts() {
    let nic = open("127.92.9.1", 2);
    let pd = nic.alloc_pd().unwrap();
    let ends = apart(&nic, &pd);
    let found = ferroce_nic::inspect::all().into_iter().flatten().find(|found| found.slot == nic.slot());
    let shown: Vec<u32> = found.unwrap().queue_pairs.iter().map(|qp| qp.qpn).collect();
    assert!(ends.iter().all(|(qp, _)| shown.contains(&qp.qpn().value())), "{shown:x?}");
}

/// UCX polls the queue of its datagram interface between any two messages; a system call each time would cost more than the messages.
#[test]
fn a_socket_without_packets_is_polled_less_often_than_the_rings() {
    const POLLS: u64 = 80_000;
    if std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp") {
        return println!("SKIPPED: over UDP there are no rings to poll instead");
    }
    let nic = open("127.92.10.1", 1);
    let (pd, cq) = (nic.alloc_pd().unwrap(), cq(&nic));
    let _qp = create(&pd, &cq, Transport::Ud);
    let before = nic.counters().link.rx_calls;
    for _ in 0..POLLS {
        assert_eq!(cq.poll(&mut [Completion::default()]).unwrap(), 0);
    }
    let calls = nic.counters().link.rx_calls - before;
    assert!(calls < POLLS / 4, "{calls} system calls in {POLLS} polls");
}
