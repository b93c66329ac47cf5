//! Atomic writes and flushes: answered like a READ of no bytes, executed once, refused like a WRITE.

use ferroce_proto::qp::{PostError, RefusalReason};
use ferroce_proto::verbs::{
    Access, EventKind, FlushWhat, Mtu, QpState, SendOp, Transport, WcOpcode, WcStatus,
};
use ferroce_proto::wire::Operation;
use ferroce_sim::filter::op;
use ferroce_sim::{Faults, Pair, PairSetup, Rule, Wr};

const GLOBAL: FlushWhat = FlushWhat { global: true, persistent: false, whole_region: false };
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE).union(Access::FLUSH_GLOBAL);

fn pair() -> Pair {
    PairSetup { mtu: Mtu::B256, access: ALL, ..PairSetup::rc() }.connect()
}

#[test]
fn a_value_is_stored_and_earlier_writes_are_flushed() {
    let pair = pair();
    let (a, b) = (&pair.a, &pair.b);
    let mr = b.node.mr(b.pd, 8192, ALL);
    a.qp.post(Wr::write(1, &mr, 0).sge(a.sge(0, 1000)));
    a.qp.post(Wr::flush(2, &mr, 0, 1000, GLOBAL));
    a.qp.post(Wr::atomic_write(3, &mr, 4096, 0x1122_3344));
    a.qp.post(Wr::flush(4, &mr, 0, 0, FlushWhat { whole_region: true, ..GLOBAL }));
    a.qp.post(Wr::read(5, &mr, 4096).sge(a.sge(128 * 1024, 8)));
    pair.run();
    let done: Vec<_> = a.send_cq.drain().iter().map(|c| (c.wr_id, c.status, c.opcode)).collect();
    let ok = WcStatus::Success;
    let expected = [
        (1, ok, WcOpcode::RdmaWrite),
        (2, ok, WcOpcode::Flush),
        (3, ok, WcOpcode::AtomicWrite),
        (4, ok, WcOpcode::Flush),
        (5, ok, WcOpcode::RdmaRead),
    ];
    assert_eq!(done, expected);
    assert_eq!(mr.read_u64(4096), 0x1122_3344);
    assert_eq!(a.mr.read_u64(128 * 1024), 0x1122_3344);
}

#[test]
fn a_repeated_atomic_write_does_not_undo_what_came_after() {
    let pair = pair();
    let lost = pair.world.rule(Rule::on(op(Operation::ReadResponseOnly)).first().drop());
    pair.a.qp.post(Wr::atomic_write(1, &pair.b.mr, 0, 7));
    pair.world.run_for(100_000);
    assert_eq!(pair.b.mr.read_u64(0), 7);
    pair.b.mr.write(0, &9u64.to_ne_bytes());
    pair.run();
    lost.once();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.b.mr.read_u64(0), 9, "executed once");
    assert_eq!(pair.b.node.atomics_run(), 1);
}

#[test]
fn each_fault_has_its_answer() {
    type Make = fn(&Pair) -> Wr;
    type Answer = (WcStatus, EventKind, RefusalReason);
    let invalid = |why| (WcStatus::RemInvReqErr, EventKind::QpReqErr, why);
    let access = |why| (WcStatus::RemAccessErr, EventKind::QpAccessErr, why);
    let cases: [(&str, Make, Answer); 6] = [
        ("misaligned", |p| Wr::atomic_write(1, &p.b.mr, 4, 7), invalid(RefusalReason::Misaligned)),
        ("past the end", |p| Wr::atomic_write(1, &p.b.mr, 256 * 1024, 7), access(RefusalReason::OutOfRange)),
        ("no right", |p| Wr::flush(1, &p.b.mr, 0, 8, GLOBAL), access(RefusalReason::Denied)),
        ("range", |p| Wr::flush(1, &open(p), 0, 65, GLOBAL), access(RefusalReason::OutOfRange)),
        (
            "persistence",
            |p| Wr::flush(1, &open(p), 0, 8, FlushWhat { persistent: true, ..GLOBAL }),
            access(RefusalReason::Denied),
        ),
        ("nothing", |p| Wr::flush(1, &open(p), 0, 8, FlushWhat::default()), access(RefusalReason::Denied)),
    ];
    for (what, wr, (status, event, reason)) in cases {
        let pair = pair();
        pair.a.qp.post(wr(&pair));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, status)], "{what}");
        assert_eq!(pair.b.node.events(), [(pair.b.qp.qpn, event)], "{what}");
        assert_eq!(pair.b.qp.state(), QpState::Err, "{what}");
        assert_eq!(pair.b.node.refusals(reason), 1, "{what}");
    }
}

fn open(pair: &Pair) -> ferroce_sim::Mr {
    pair.b.node.mr(pair.b.pd, 64, ALL)
}

#[test]
fn the_queue_pair_must_grant_it_too() {
    let pair = PairSetup { access: Access::REMOTE_READ, ..PairSetup::rc() }.connect();
    pair.a.qp.post(Wr::atomic_write(1, &pair.b.mr, 0, 7));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn flushes_and_atomic_writes_count_as_reads() {
    let pair = PairSetup { max_rd_atomic: 0, access: ALL, ..PairSetup::rc() }.connect();
    pair.a.qp.post(Wr::atomic_write(1, &pair.b.mr, 0, 7));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::LocQpOpErr)]);
    let pair = PairSetup { max_dest_rd_atomic: 0, access: ALL, ..PairSetup::rc() }.connect();
    pair.a.qp.post(Wr::atomic_write(1, &pair.b.mr, 0, 7));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RemInvReqErr)]);
}

#[test]
fn only_reliable_connections_flush_and_write_atomically() {
    for transport in [Transport::Uc, Transport::Ud, Transport::XrcIni] {
        let pair = PairSetup::new(transport).connect();
        let wr = Wr::atomic_write(1, &pair.b.mr, 0, 7);
        assert_eq!(pair.a.qp.post_send(&wr), Err(PostError::NotOnThisTransport(transport)));
    }
    let pair = pair();
    let inline =
        Wr::new(1, SendOp::AtomicWrite { addr: 0, rkey: pair.b.mr.rkey, value: [0; 8] }).inline(&[1; 8]);
    assert_eq!(
        pair.a.qp.post_send(&inline),
        Err(PostError::InlineNotAllowed),
        "the value is part of the request"
    );
}

#[test]
fn losses_are_repaired() {
    for seed in 0..8 {
        let setup = PairSetup { seed, mtu: Mtu::B256, access: ALL, ..PairSetup::rc() };
        let pair = setup.connect();
        let mr = pair.b.node.mr(pair.b.pd, 8192, ALL);
        pair.world.set_faults(Faults { loss: 0.05, duplication: 0.05, ..Faults::default() });
        for id in 0..30u64 {
            pair.a.qp.post(Wr::write(3 * id, &mr, 1024).sge(pair.a.sge(0, 700)));
            pair.a.qp.post(Wr::atomic_write(3 * id + 1, &mr, 8 * id, id));
            pair.a.qp.post(Wr::flush(3 * id + 2, &mr, 1024, 700, GLOBAL));
        }
        pair.run();
        let done = pair.a.send_cq.statuses();
        assert!(done.len() == 90 && done.iter().all(|d| d.1 == WcStatus::Success), "seed {seed}: {done:?}");
        assert!((0..30).all(|id| mr.read_u64(8 * id) == id as u64), "seed {seed}");
        assert_eq!(pair.b.node.atomics_run(), 30, "seed {seed}");
    }
}
