//! Unreliable connection: a message arrives whole or is dropped silently.

mod support;

use ferroce_proto::qp::{DropReason, PostError};
use ferroce_proto::verbs::{Access, AttrMask, EventKind, Mtu, QpAttr, QpState, Transport, WcStatus};
use ferroce_proto::wire::Opcode;
use ferroce_proto::{Psn, RKey};
use ferroce_sim::filter::{Seen, request};
use ferroce_sim::{Pair, PairSetup, Rule, Wr};
use std::cell::Cell;
use std::rc::Rc;
use support::{FAR, SEND, SEND_IMM, WRITE, WRITE_IMM, run, size_classes};

const MTU: Mtu = Mtu::B256;

fn setup() -> PairSetup {
    PairSetup { mtu: MTU, ..PairSetup::new(Transport::Uc) }
}

fn all(status: WcStatus, ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, status)).collect()
}

#[test]
fn every_operation_of_every_size_at_every_mtu() {
    for mtu in Mtu::ALL {
        for script in [&SEND, &SEND_IMM, &WRITE, &WRITE_IMM] {
            for len in size_classes(mtu) {
                for psn_a in [Psn::new(7), Psn::new(0xff_fffe)] {
                    let (mut asked, mut answered) = (None, None);
                    let pair = run(script, &PairSetup { mtu, psn_a, ..setup() }, len, |pair| {
                        asked = Some(pair.world.rule(Rule::on(is_marked)));
                        answered = Some(pair.world.rule(Rule::on(is_answer)));
                    });
                    let (asked, answered) = (asked.expect("set").hits(), answered.expect("set").hits());
                    assert_eq!(asked, answered, "one answer for each mark");
                    let packets = u64::from(len.div_ceil(mtu.bytes()).max(1) + answered);
                    assert_eq!(pair.world.packets_sent(), packets, "and nothing else comes back");
                }
            }
        }
    }
}

#[test]
fn a_send_completes_when_its_last_packet_is_sent() {
    let pair = setup().connect();
    pair.b.node.kill();
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 1000)));
    pair.a.qp.post(Wr::write(2, &pair.b.mr, 0).sge(pair.a.sge(0, 1000)).unsignaled());
    pair.a.qp.post(Wr::write(3, &pair.b.mr, 0).sge(pair.a.sge(0, 1000)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::Success, [1, 3]));
    assert_eq!(pair.world.packets_sent(), 12);
}

/// Three messages of five packets; one packet of the second has a fault.
fn three_messages(fault: impl Fn(Rule) -> Rule, place: u32) -> Pair {
    let pair = PairSetup { psn_a: Psn::new(0), ..setup() }.connect();
    let hit = pair.world.rule(fault(Rule::on(request(5 + place)).first()));
    for id in 0..3 {
        pair.b.post_recv(id, FAR + 4096 * id, 2000);
        pair.a.qp.post(Wr::send(id).sge(pair.a.sge(4096 * id, 1280)));
    }
    pair.run();
    hit.once();
    assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::Success, 0..3));
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Rts, QpState::Rts));
    assert_eq!(pair.b.node.events(), []);
    pair
}

#[test]
fn a_message_that_lost_a_packet_is_dropped_and_the_next_one_takes_its_receive() {
    for place in 0..5 {
        let pair = three_messages(Rule::drop, place);
        assert_eq!(pair.b.recv_cq.statuses(), all(WcStatus::Success, [0, 1]), "packet {place} lost");
        assert_eq!(pair.b.mr.read(FAR as usize, 1280), pair.a.mr.read(0, 1280));
        assert_eq!(
            pair.b.mr.read(FAR as usize + 4096, 1280),
            pair.a.mr.read(8192, 1280),
            "message 2 in receive 1"
        );
    }
}

#[test]
fn no_data_of_a_dropped_message_is_placed_later() {
    let pair = PairSetup { psn_a: Psn::new(0), ..setup() }.connect();
    let hit = pair.world.rule(Rule::on(request(4)).drop().first());
    pair.a.qp.post(Wr::write(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 1280)));
    pair.b.post_recv(2, 0, 0);
    pair.a.qp.post(Wr::send(2));
    pair.run();
    hit.once();
    assert_eq!(pair.b.recv_cq.statuses(), all(WcStatus::Success, [2]));
    assert_eq!(
        pair.b.mr.read(FAR as usize, 1024),
        pair.a.mr.read(0, 1024),
        "four packets of it are in place"
    );
}

#[test]
fn a_message_out_of_order_is_dropped() {
    for place in 0..5 {
        // The held packet comes after its successor, or between the messages, or into the next one.
        let pair = three_messages(|rule| rule.delay(15), place);
        let got = pair.b.recv_cq.statuses();
        assert!(got.iter().all(|(_, s)| *s == WcStatus::Success));
        assert!((1..=2).contains(&got.len()), "place {place}: {got:?}");
        assert_eq!(pair.b.mr.read(FAR as usize, 1280), pair.a.mr.read(0, 1280));
    }
}

#[test]
fn a_duplicate_packet_costs_at_most_its_message() {
    for place in 0..5 {
        let pair = three_messages(Rule::duplicate, place);
        let got = pair.b.recv_cq.statuses();
        assert!(got.iter().all(|(_, s)| *s == WcStatus::Success));
        assert!((2..=3).contains(&got.len()), "place {place}: {got:?}");
    }
}

#[test]
fn a_duplicate_single_packet_message_is_delivered_once() {
    // The copy has an old sequence number: it is not the message that is due.
    let pair = PairSetup { psn_a: Psn::new(0), ..setup() }.connect();
    pair.world.rule(Rule::on(request(1)).duplicate());
    for id in 0..4 {
        pair.b.post_recv(id, FAR + 4096 * id, 100);
    }
    for id in 0..3 {
        pair.a.qp.post(Wr::send_imm(id, id as u32).sge(pair.a.sge(0, 10)));
    }
    pair.run();
    let got: Vec<u32> = pair.b.recv_cq.drain().iter().map(|c| c.imm).collect();
    let copies = got.iter().filter(|imm| **imm == 1).count();
    assert!(copies >= 1 && got.first() == Some(&0) && got.last() == Some(&2), "{got:?}");
}

#[test]
fn a_write_with_immediate_that_lost_a_packet_completes_nothing() {
    for place in 0..4 {
        let pair = PairSetup { psn_a: Psn::new(0), ..setup() }.connect();
        pair.world.rule(Rule::on(request(place)).first().drop());
        pair.b.post_recv(8, 0, 0);
        pair.b.post_recv(9, 0, 0);
        pair.a.qp.post(Wr::write_imm(1, &pair.b.mr, FAR, 1).sge(pair.a.sge(0, 1000)));
        pair.a.qp.post(Wr::write_imm(2, &pair.b.mr, FAR + 4096, 2).sge(pair.a.sge(0, 1000)));
        pair.run();
        let got = pair.b.recv_cq.only();
        assert_eq!((got.wr_id, got.imm, got.byte_len), (8, 2, 1000));
    }
}

#[test]
fn without_a_receive_a_message_is_dropped_whole() {
    let pair = setup().connect();
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 1000)));
    pair.run();
    pair.b.post_recv(9, FAR, 1000);
    pair.a.qp.post(Wr::send(2).sge(pair.a.sge(5000, 900)));
    pair.run();
    assert_eq!(pair.b.recv_cq.only().byte_len, 900);
    assert_eq!(pair.b.mr.read(FAR as usize, 900), pair.a.mr.read(5000, 900));
    assert_eq!(pair.world.journal().drops(pair.b.node.id, DropReason::NoReceive), 1);
}

#[test]
fn a_message_that_does_not_fit_is_dropped_and_its_receive_serves_the_next() {
    let pair = setup().connect();
    pair.b.post_recv(9, FAR, 500);
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 1000)));
    pair.a.qp.post(Wr::send(2).sge(pair.a.sge(0, 500)));
    pair.run();
    let got = pair.b.recv_cq.only();
    assert_eq!((got.wr_id, got.status, got.byte_len), (9, WcStatus::Success, 500));
    assert_eq!(pair.world.journal().drops(pair.b.node.id, DropReason::Unfit), 1);
    assert_eq!(pair.b.qp.state(), QpState::Rts);
}

#[test]
fn a_write_without_access_is_dropped() {
    let pair = setup().connect();
    let closed = pair.b.node.mr(pair.b.pd, 4096, Access::LOCAL_WRITE);
    pair.a.qp.post(Wr::write(1, &closed, 0).sge(pair.a.sge(0, 1000)));
    pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR).sge(pair.a.sge(0, 1000)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::Success, [1, 2]));
    assert_eq!(closed.read(0, 4096), [0; 4096]);
    assert_eq!(pair.b.mr.read(FAR as usize, 1000), pair.a.mr.read(0, 1000));
    assert_eq!(pair.world.journal().drops(pair.b.node.id, DropReason::AccessDenied), 1);
    assert_eq!((pair.b.node.events(), pair.b.qp.state()), (vec![], QpState::Rts));
}

#[test]
fn a_receive_without_usable_memory_is_a_local_error() {
    // The receive is the one at fault: it must complete with an error, or every later message would fail.
    let pair = setup().connect();
    let closed = pair.b.node.mr(pair.b.pd, 4096, Access::empty());
    pair.b.qp.post_recv(8, &[closed.sge(0, 1000)]).unwrap();
    pair.b.post_recv(9, FAR, 1000);
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)));
    pair.a.qp.post(Wr::send(2).sge(pair.a.sge(0, 100)));
    pair.run();
    assert_eq!(pair.b.recv_cq.statuses(), [(8, WcStatus::LocProtErr), (9, WcStatus::WrFlushErr)]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
}

#[test]
fn operations_that_need_a_response_cannot_be_posted() {
    let pair = setup().connect();
    let (a, b) = (&pair.a, &pair.b);
    let refused = Err(PostError::NotOnThisTransport(Transport::Uc));
    assert_eq!(a.qp.post_send(&Wr::read(1, &b.mr, 0).sge(a.sge(0, 8))), refused);
    assert_eq!(a.qp.post_send(&Wr::fetch_add(1, &b.mr, 0, 1).sge(a.sge(0, 8))), refused);
    assert_eq!(a.qp.post_send(&Wr::send_inv(1, RKey(1))), refused);
}

#[test]
fn a_send_that_fails_locally_stops_the_send_queue_only() {
    let pair = setup().connect();
    let (a, b) = (&pair.a, &pair.b);
    let gone = a.node.mr(a.pd, 4096, Access::empty());
    gone.deregister();
    a.qp.post(Wr::write(1, &b.mr, FAR).sge(a.sge(0, 10)));
    a.qp.post(Wr::write(2, &b.mr, FAR).sge(gone.sge(0, 10)));
    a.qp.post(Wr::write(3, &b.mr, FAR).sge(a.sge(0, 10)).unsignaled());
    pair.run();
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
    assert_eq!((a.send_cq.statuses(), a.qp.state()), (expected.to_vec(), QpState::Sqe));
    a.qp.post(Wr::write(4, &b.mr, FAR).sge(a.sge(0, 10)));
    assert_eq!(a.send_cq.statuses(), [(4, WcStatus::WrFlushErr)]);

    // Receives go on meanwhile.
    a.post_recv(9, 0, 100);
    b.qp.post(Wr::send(5).sge(b.sge(0, 100)));
    pair.run();
    assert_eq!(a.recv_cq.statuses(), [(9, WcStatus::Success)]);

    let attr = QpAttr { state: QpState::Rts, cur_state: QpState::Sqe, ..QpAttr::default() };
    a.qp.modify(&attr, AttrMask::STATE | AttrMask::CUR_STATE).unwrap();
    b.post_recv(10, FAR, 2000);
    a.qp.post(Wr::send(6).sge(a.sge(0, 2000)));
    pair.run();
    assert_eq!(a.send_cq.statuses(), [(6, WcStatus::Success)]);
    assert_eq!(b.recv_cq.statuses(), [(10, WcStatus::Success)], "the peer follows after SQE");
}

#[test]
fn a_message_cut_off_by_a_local_failure_is_dropped_by_the_peer() {
    let pair = setup().connect();
    let (a, b) = (&pair.a, &pair.b);
    let gone = a.node.mr(a.pd, 4096, Access::empty());
    gone.deregister();
    b.post_recv(9, FAR, 4000);
    a.qp.post(Wr::send(1).sge(a.sge(0, 1024)).sge(gone.sge(0, 10)));
    pair.run();
    assert_eq!(a.send_cq.statuses(), [(1, WcStatus::LocProtErr)]);
    a.qp.set_state(QpState::Rts).unwrap();
    a.qp.post(Wr::send(2).sge(a.sge(0, 1500)));
    pair.run();
    let got = b.recv_cq.only();
    assert_eq!((got.wr_id, got.byte_len), (9, 1500));
}

#[test]
fn draining_an_unreliable_queue() {
    let pair = setup().connect();
    pair.a.node.set_link_depth(2);
    pair.a.qp.post(Wr::write(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 5000)));
    pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR).sge(pair.a.sge(0, 5000)));
    pair.world.run_for(40);
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    pair.a.qp.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert!(pair.a.qp.query().sq_draining);
    assert_eq!(pair.a.node.events(), [], "not yet");
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)], "the message begun is finished");
    assert_eq!(pair.a.node.events(), [(pair.a.qp.qpn, EventKind::SqDrained)]);
    pair.a.qp.set_state(QpState::Rts).unwrap();
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(2, WcStatus::Success)]);
    assert_eq!(pair.b.mr.read(FAR as usize, 5000), pair.a.mr.read(0, 5000));
}

#[test]
fn error_flushes_in_order() {
    let pair = setup().connect();
    pair.a.node.set_link_depth(1);
    for id in 0..5 {
        pair.a.post_recv(100 + id, 0, 10);
        pair.a.qp.post(Wr::write(id, &pair.b.mr, 0).sge(pair.a.sge(0, 5000)));
    }
    pair.world.run_for(50);
    pair.a.qp.set_state(QpState::Err).unwrap();
    assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::WrFlushErr, 0..5));
    assert_eq!(pair.a.recv_cq.statuses(), all(WcStatus::WrFlushErr, 100..105));
}

/// With any loss, the delivered messages are whole and in order.
#[test]
fn under_loss_whole_messages_arrive_in_order() {
    for seed in 0..30 {
        let pair = PairSetup { seed, ..setup() }.connect();
        println!("seed {seed}");
        pair.world.set_faults(ferroce_sim::Faults { loss: 0.1, ..Default::default() });
        for id in 0..40u64 {
            pair.b.post_recv(id, FAR + 2048 * id, 2048);
            let len = (id as u32 * 97) % 1500;
            pair.a.qp.post(Wr::send_imm(id, id as u32).sge(pair.a.sge(id * 10, len)));
        }
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::Success, 0..40));
        let got = pair.b.recv_cq.drain();
        assert!(got.windows(2).all(|pair| pair[0].imm < pair[1].imm), "in order");
        for (slot, c) in got.iter().enumerate() {
            let id = c.imm as usize;
            assert_eq!((c.wr_id, c.byte_len), (slot as u64, (c.imm * 97) % 1500));
            let data = pair.b.mr.read(FAR as usize + 2048 * slot, c.byte_len as usize);
            assert!(data == pair.a.mr.read(id * 10, c.byte_len as usize), "message {id}");
        }
    }
}

#[test]
fn a_small_burst_is_not_marked() {
    let pair = setup().connect();
    let asked = pair.world.rule(Rule::on(is_marked));
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 1000)));
    pair.run();
    assert_eq!(asked.hits(), 0);
}

#[test]
fn packets_request_no_acks() {
    let asked = Rc::new(Cell::new(0));
    large_messages(|pair| {
        let count = asked.clone();
        pair.world.rule(Rule::on(move |seen: &Seen<'_>| {
            count.set(count.get() + u32::from(seen.packet.headers.bth.ack_req));
            false
        }));
    });
    assert_eq!(asked.get(), 0, "the bit of the specification is left alone");
}

fn is_answer(seen: &Seen<'_>) -> bool {
    seen.packet.headers.bth.opcode == Opcode::UC_ACK
}

fn is_marked(seen: &Seen<'_>) -> bool {
    seen.packet.headers.bth.selective
}

const WINDOW: u32 = 32 * 1024;
const LARGE: u32 = 60_000;
const PATIENCE_NS: u64 = 200_000_000;

/// Four messages, each longer than the window, into receives that are there.
fn large_messages(before: impl FnOnce(&Pair)) -> Pair {
    let pair = PairSetup { mtu: Mtu::B1024, psn_a: Psn::new(0), window: WINDOW, ..setup() }.connect();
    before(&pair);
    for id in 0..4 {
        pair.b.post_recv(id, FAR, LARGE);
        pair.a.qp.post(Wr::send(id).sge(pair.a.sge(0, LARGE)));
    }
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::Success, 0..4));
    pair
}

#[test]
fn the_sender_keeps_to_its_window() {
    let most = Rc::new(Cell::new(0));
    let pair = large_messages(|pair| {
        let (seen_most, mut taken) = (most.clone(), -1);
        pair.world.rule(Rule::on(move |seen: &Seen<'_>| {
            let psn = seen.psn().value() as i32;
            if is_answer(seen) {
                taken = psn;
            } else {
                seen_most.set(seen_most.get().max(psn - taken));
            }
            false
        }));
    });
    assert_eq!(most.get(), 32, "packets of 1 KiB");
    assert_eq!(pair.b.recv_cq.statuses(), all(WcStatus::Success, 0..4));
    assert!(pair.world.now().0 < PATIENCE_NS, "nobody waited in vain");
}

#[test]
fn a_peer_without_pacing_delays_the_sender_once() {
    let pair = large_messages(|pair| {
        pair.world.rule(Rule::on(is_answer).drop());
    });
    assert_eq!(pair.b.recv_cq.statuses(), all(WcStatus::Success, 0..4));
    // The second time is that of the last marks, which the sender does not wait for.
    assert!((PATIENCE_NS..3 * PATIENCE_NS).contains(&pair.world.now().0), "{:?}", pair.world.now());
}

#[test]
fn one_lost_ack_does_not_block_the_sender() {
    for lost in 1..8 {
        let pair = large_messages(|pair| {
            pair.world.rule(Rule::on(is_answer).nth(lost).drop());
        });
        assert_eq!(pair.b.recv_cq.statuses(), all(WcStatus::Success, 0..4));
        assert!(pair.world.now().0 < PATIENCE_NS, "answer {lost} lost");
    }
}

#[test]
fn a_dead_peer_delays_the_sender_by_the_ack_timeout() {
    let pair = PairSetup { mtu: Mtu::B1024, window: WINDOW, ..setup() }.connect();
    for id in 0..2 {
        pair.b.post_recv(id, FAR, LARGE);
    }
    pair.a.qp.post(Wr::send(0).sge(pair.a.sge(0, LARGE)));
    pair.run();
    pair.b.node.kill();
    (1..60).for_each(|id| pair.a.qp.post(Wr::send(id).sge(pair.a.sge(0, LARGE))));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::Success, 0..60));
    assert!(pair.world.now().0 < 10 * PATIENCE_NS, "{:?}", pair.world.now());
}

#[test]
fn an_ack_of_an_unsent_packet_is_dropped() {
    let pair = large_messages(|pair| {
        let to_the_future = |bytes: &mut Vec<u8>| bytes[9] ^= 0x40;
        pair.world.rule(Rule::on(is_answer).first().rewrite(to_the_future));
    });
    assert_eq!(pair.world.journal().drops(pair.a.node.id, DropReason::BadPsn), 1);
    assert_eq!(pair.b.recv_cq.statuses(), all(WcStatus::Success, 0..4));
}
