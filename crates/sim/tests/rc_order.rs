//! What may overtake what: READs and atomics in flight, fences, invalidations.

use ferroce_proto::verbs::{Access, Mtu, QpState, WcFlags, WcOpcode, WcStatus};
use ferroce_proto::wire::Operation;
use ferroce_sim::filter::{Seen, op};
use ferroce_sim::{Pair, PairSetup, Rule, Wr};
use std::cell::Cell;
use std::rc::Rc;

const FAR: u64 = 128 * 1024;

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B256, ..PairSetup::rc() }
}

fn success(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WcStatus::Success)).collect()
}

/// Counts READ and atomic requests that have left and whose last answer has not, and remembers the most.
fn watch_reads(pair: &Pair) -> Rc<Cell<i32>> {
    let most = Rc::new(Cell::new(0));
    let (seen_most, mut now) = (most.clone(), 0);
    pair.world.rule(Rule::on(move |seen: &Seen<'_>| {
        let operation = seen.operation();
        if operation == Operation::ReadRequest || operation.is_atomic() {
            now += 1;
        } else if operation == Operation::AtomicAcknowledge
            || (operation.is_read_response() && operation.ends_message())
        {
            now -= 1;
        }
        seen_most.set(seen_most.get().max(now));
        false
    }));
    most
}

#[test]
fn no_more_reads_and_atomics_are_in_flight_than_agreed() {
    for max_rd_atomic in [1, 2, 3, 8, 16] {
        let setup = PairSetup { max_rd_atomic, max_dest_rd_atomic: max_rd_atomic, ..setup() };
        let pair = setup.connect();
        let most = watch_reads(&pair);
        pair.b.mr.write(0, &100u64.to_ne_bytes());
        for id in 0..40 {
            let to = pair.a.sge(id * 1000, if id % 3 == 0 { 8 } else { 700 });
            let wr = match id % 3 {
                0 => Wr::fetch_add(id, &pair.b.mr, 0, 1),
                _ => Wr::read(id, &pair.b.mr, FAR + id),
            };
            pair.a.qp.post(wr.sge(to));
        }
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), success(0..40));
        assert_eq!(most.get(), i32::from(max_rd_atomic), "never more, and as many as allowed");
        assert_eq!(pair.b.mr.read_u64(0), 100 + 14);
    }
}

#[test]
fn a_queue_pair_without_read_resources_fails_the_first_read() {
    for atomic in [false, true] {
        let pair = PairSetup { max_rd_atomic: 0, ..setup() }.connect();
        pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 8)));
        let wr = if atomic { Wr::fetch_add(2, &pair.b.mr, 0, 1) } else { Wr::read(2, &pair.b.mr, 0) };
        pair.a.qp.post(wr.sge(pair.a.sge(0, 8)));
        pair.a.qp.post(Wr::write(3, &pair.b.mr, 0).sge(pair.a.sge(0, 8)));
        pair.run();
        let expected = [(1, WcStatus::Success), (2, WcStatus::LocQpOpErr), (3, WcStatus::WrFlushErr)];
        assert_eq!(pair.a.send_cq.statuses(), expected);
    }
}

#[test]
fn a_fenced_request_waits_for_reads_and_atomics_and_an_unfenced_one_does_not() {
    for atomic in [false, true] {
        for fenced in [false, true] {
            let pair = setup().connect();
            let wr = if atomic { Wr::fetch_add(1, &pair.b.mr, 0, 1) } else { Wr::read(1, &pair.b.mr, 0) };
            pair.a.qp.post(wr.sge(pair.a.sge(0, 8)));
            let write = Wr::write(2, &pair.b.mr, FAR).sge(pair.a.sge(0, 8));
            pair.a.qp.post(if fenced { write.fenced() } else { write });
            pair.run();
            assert_eq!(pair.a.send_cq.statuses(), success([1, 2]));
            let journal = pair.world.journal();
            let order: Vec<_> = journal.packets().map(|(p, _)| p.opcode.operation).collect();
            let place = |what: Operation| order.iter().position(|o| *o == what).unwrap();
            let answer = if atomic { Operation::AtomicAcknowledge } else { Operation::ReadResponseOnly };
            assert_eq!(place(Operation::WriteOnly) > place(answer), fenced, "{order:?}");
            if fenced {
                // The fenced WRITE carries the data of the READ.
                assert_eq!(pair.b.mr.read(FAR as usize, 8), pair.a.mr.read(0, 8));
            }
        }
    }
}

#[test]
fn a_fence_holds_when_the_answer_is_lost() {
    let pair = setup().connect();
    let lost =
        pair.world.rule(Rule::on(|seen: &Seen<'_>| seen.operation().is_read_response()).times(2).drop());
    pair.a.qp.post(Wr::read(1, &pair.b.mr, 0).sge(pair.a.sge(0, 600)));
    pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR).sge(pair.a.sge(0, 600)).fenced());
    pair.a.qp.post(Wr::write(3, &pair.b.mr, FAR + 4096).sge(pair.a.sge(0, 600)));
    pair.run();
    assert_eq!(lost.hits(), 2);
    assert_eq!(pair.a.send_cq.statuses(), success([1, 2, 3]));
    assert_eq!(pair.b.mr.read(FAR as usize, 600), pair.b.mr.read(0, 600));
}

#[test]
fn a_read_sees_the_write_before_it_and_not_the_one_after() {
    let pair = setup().connect();
    let (a, b) = (&pair.a, &pair.b);
    b.mr.write(0, &[1; 2000]);
    a.mr.write(0, &[2; 2000]);
    a.mr.write(4000, &[3; 2000]);
    a.qp.post(Wr::write(1, &b.mr, 0).sge(a.sge(0, 2000)));
    a.qp.post(Wr::read(2, &b.mr, 0).sge(a.sge(8000, 2000)));
    a.qp.post(Wr::write(3, &b.mr, 0).sge(a.sge(4000, 2000)).fenced());
    a.qp.post(Wr::read(4, &b.mr, 0).sge(a.sge(12000, 2000)));
    pair.run();
    assert_eq!(a.send_cq.statuses(), success(1..5));
    assert_eq!(a.mr.read(8000, 2000), [2; 2000]);
    assert_eq!(a.mr.read(12000, 2000), [3; 2000]);
}

#[test]
fn send_with_invalidate_invalidates_the_key() {
    let pair = setup().connect();
    let (a, b) = (&pair.a, &pair.b);
    let mr = b.node.mr(b.pd, 4096, Access::LOCAL_WRITE | Access::REMOTE);
    a.qp.post(Wr::write(1, &mr, 0).sge(a.sge(0, 1000)));
    b.post_recv(9, FAR, 1000);
    a.qp.post(Wr::send_inv(2, mr.rkey).sge(a.sge(0, 1000)));
    pair.run();
    assert_eq!(a.send_cq.statuses(), success([1, 2]));
    let got = b.recv_cq.only();
    assert_eq!((got.flags, got.invalidated, got.byte_len), (WcFlags::WITH_INV, mr.rkey, 1000));
    a.qp.post(Wr::write(3, &mr, 0).sge(a.sge(0, 10)));
    pair.run();
    assert_eq!(a.send_cq.statuses(), [(3, WcStatus::RemAccessErr)]);
}

#[test]
fn a_repeated_send_with_invalidate_is_not_executed_twice() {
    // Its ACK is lost, so it comes again; the key is gone by then, which must not be called an error.
    for len in [10, 600] {
        let pair = setup().connect();
        let (a, b) = (&pair.a, &pair.b);
        let mr = b.node.mr(b.pd, 4096, Access::LOCAL_WRITE | Access::REMOTE);
        let lost = pair.world.rule(Rule::on(op(Operation::Acknowledge)).first().drop());
        b.post_recv(9, FAR, 1000);
        a.qp.post(Wr::send_inv(2, mr.rkey).sge(a.sge(0, len)));
        pair.run();
        lost.once();
        assert_eq!((a.send_cq.statuses(), b.recv_cq.statuses()), (success([2]), success([9])));
    }
}

#[test]
fn a_key_that_cannot_be_invalidated_refuses_the_send() {
    let pair = setup().connect();
    let (a, b) = (&pair.a, &pair.b);
    let foreign = b.node.mr(b.node.pd(), 4096, Access::REMOTE);
    b.post_recv(9, FAR, 1000);
    a.qp.post(Wr::send_inv(2, foreign.rkey).sge(a.sge(0, 10)));
    pair.run();
    assert_eq!(a.send_cq.statuses(), [(2, WcStatus::RemAccessErr)]);
    assert_ne!(b.recv_cq.only().status, WcStatus::Success);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
}

#[test]
fn local_invalidate_takes_effect_in_order() {
    let pair = setup().connect();
    let (a, b) = (&pair.a, &pair.b);
    let mr = a.node.mr(a.pd, 4096, Access::LOCAL_WRITE | Access::REMOTE);
    a.qp.post(Wr::read(1, &b.mr, 0).sge(a.sge(0, 600)));
    a.qp.post(Wr::local_inv(2, mr.rkey));
    a.qp.post(Wr::write(3, &b.mr, FAR).sge(a.sge(0, 600)));
    pair.run();
    let done: Vec<_> = a.send_cq.drain().iter().map(|c| (c.wr_id, c.status, c.opcode)).collect();
    let ok = WcStatus::Success;
    assert_eq!(
        done,
        [(1, ok, WcOpcode::RdmaRead), (2, ok, WcOpcode::LocalInv), (3, ok, WcOpcode::RdmaWrite)]
    );
    b.qp.post(Wr::read(4, &mr, 0).sge(b.sge(0, 10)));
    pair.run();
    assert_eq!(b.send_cq.statuses(), [(4, WcStatus::RemAccessErr)]);
}

#[test]
fn local_invalidate_keeps_its_order_under_loss() {
    for target in 0..8 {
        let pair = setup().connect();
        let (a, b) = (&pair.a, &pair.b);
        let mr = a.node.mr(a.pd, 4096, Access::LOCAL_WRITE | Access::REMOTE);
        pair.world.rule(Rule::on(move |seen| seen.index == target).drop());
        a.qp.post(Wr::write(1, &b.mr, 0).sge(a.sge(0, 600)));
        a.qp.post(Wr::local_inv(2, mr.rkey));
        a.qp.post(Wr::local_inv(3, mr.rkey).unsignaled());
        a.qp.post(Wr::write(4, &b.mr, FAR).sge(a.sge(0, 600)));
        pair.run();
        // The second invalidation finds the key gone.
        let expected = [
            (1, WcStatus::Success),
            (2, WcStatus::Success),
            (3, WcStatus::LocQpOpErr),
            (4, WcStatus::WrFlushErr),
        ];
        assert_eq!(a.send_cq.statuses(), expected, "packet {target} lost");
    }
}

#[test]
fn local_invalidate_alone_needs_no_packet() {
    let pair = setup().connect();
    let mr = pair.a.node.mr(pair.a.pd, 4096, Access::REMOTE);
    pair.a.qp.post(Wr::local_inv(1, mr.rkey));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), success([1]));
    assert_eq!(pair.world.packets_sent(), 0);
}

#[test]
fn completions_come_in_the_order_of_posting() {
    let pair = setup().connect();
    for id in 0..100 {
        let wr = match id % 4 {
            0 => Wr::read(id, &pair.b.mr, FAR).sge(pair.a.sge(0, 1000)),
            1 => Wr::write(id, &pair.b.mr, FAR).sge(pair.a.sge(0, 10)),
            2 => Wr::fetch_add(id, &pair.b.mr, 0, 1).sge(pair.a.sge(0, 8)),
            _ => Wr::write(id, &pair.b.mr, FAR).sge(pair.a.sge(0, 3000)),
        };
        pair.a.qp.post(wr);
    }
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), success(0..100));
}
