//! Unreliable datagrams: one packet is one message, from any sender with the Q_Key.

use ferroce_proto::qp::{DropReason, PostError};
use ferroce_proto::verbs::{
    Access, AttrMask, Mtu, QpAttr, QpState, Transport, UdTarget, WcFlags, WcOpcode, WcStatus,
};
use ferroce_proto::wire::{Grh, Ipv4Header};
use ferroce_proto::{Gid, Qkey, Qpn};
use ferroce_sim::filter::any;
use ferroce_sim::{Pair, PairSetup, QKEY, Rule, Wr};
use std::net::{Ipv4Addr, Ipv6Addr};

const FAR: u64 = 128 * 1024;
const GRH: usize = 40;

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B1024, ..PairSetup::new(Transport::Ud) }
}

fn target(pair: &Pair) -> UdTarget {
    pair.b.target(&pair.a.node)
}

#[test]
fn every_size_at_every_mtu() {
    for mtu in Mtu::ALL {
        for len in [0, 1, 3, mtu.bytes() - 1, mtu.bytes()] {
            let pair = PairSetup { mtu, ..setup() }.connect();
            pair.b.post_recv(9, FAR, 40 + len);
            pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, len)).to(target(&pair)));
            pair.run();
            let sent = pair.a.send_cq.only();
            assert_eq!((sent.status, sent.opcode), (WcStatus::Success, WcOpcode::Send));
            let got = pair.b.recv_cq.only();
            assert_eq!((got.wr_id, got.status, got.byte_len), (9, WcStatus::Success, 40 + len));
            assert_eq!((got.src_qpn, got.flags), (pair.a.qp.qpn, WcFlags::GRH));
            let len = len as usize;
            assert!(pair.b.mr.read(FAR as usize + GRH, len) == pair.a.mr.read(0, len));
        }
    }
}

#[test]
fn the_grh_carries_the_source_of_a_datagram() {
    let pair = setup().connect();
    pair.b.post_recv(9, FAR, 200);
    pair.a.qp.post(Wr::send_imm(1, 5).sge(pair.a.sge(0, 101)).to(target(&pair)));
    pair.run();
    let got = pair.b.recv_cq.only();
    assert_eq!((got.imm, got.flags, got.sl), (5, WcFlags::GRH | WcFlags::WITH_IMM, 2));
    let front = pair.b.mr.read(FAR as usize, GRH);
    assert_eq!(front[..20], [0; 20]);
    let ip = Ipv4Header::parse(&front[20..]).expect("a whole IPv4 header with a right checksum");
    assert_eq!((ip.src, ip.dst), (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)));
    // IP, UDP, BTH, DETH, immediate, payload, pad, ICRC
    assert_eq!((ip.total_len, ip.ttl), (20 + 8 + 12 + 8 + 4 + 101 + 3 + 4, 64));

    let pair = PairSetup { ipv6: true, ..setup() }.connect();
    pair.b.post_recv(9, FAR, 200);
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)).to(target(&pair)));
    pair.run();
    assert_eq!(pair.b.recv_cq.only().sl, 1);
    let grh = Grh::parse(&pair.b.mr.read(FAR as usize, GRH)).unwrap();
    assert_eq!((grh.sgid, grh.dgid), (pair.a.node.gid(), pair.b.node.gid()));
    assert_eq!((grh.payload_len, grh.hop_limit), (8 + 12 + 8 + 100 + 4, 64));
}

#[test]
fn the_grh_may_span_several_sges() {
    let pair = setup().connect();
    let sges = [pair.b.sge(FAR, 10), pair.b.sge(FAR + 100, 35), pair.b.sge(FAR + 200, 95)];
    pair.b.qp.post_recv(9, &sges).unwrap();
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)).to(target(&pair)));
    pair.run();
    assert_eq!(pair.b.recv_cq.only().byte_len, 140);
    let far = FAR as usize;
    let mut bytes = pair.b.mr.read(far, 10);
    bytes.extend(pair.b.mr.read(far + 100, 35));
    bytes.extend(pair.b.mr.read(far + 200, 95));
    assert!(Ipv4Header::parse(&bytes[20..]).is_ok());
    assert!(bytes[GRH..] == pair.a.mr.read(0, 100));
}

#[test]
fn a_wrong_key_is_dropped() {
    let pair = setup().connect();
    pair.b.post_recv(9, FAR, 200);
    let wrong = UdTarget { qkey: Qkey(0x2222_2222), ..target(&pair) };
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)).to(wrong));
    pair.a.qp.post(Wr::send(2).sge(pair.a.sge(500, 100)).to(target(&pair)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(pair.b.recv_cq.statuses(), [(9, WcStatus::Success)]);
    assert!(pair.b.mr.read(FAR as usize + GRH, 100) == pair.a.mr.read(500, 100));
    assert_eq!(pair.world.journal().drops(pair.b.node.id, DropReason::BadQkey), 1);
}

#[test]
fn a_controlled_qkey_selects_the_senders_own() {
    let pair = setup().connect();
    pair.b.post_recv(9, FAR, 200);
    let controlled = UdTarget { qkey: Qkey(0x8001_0000), ..target(&pair) };
    pair.a.qp.post(Wr::send(1).to(controlled));
    pair.run();
    assert_eq!(pair.b.recv_cq.statuses(), [(9, WcStatus::Success)], "both have {QKEY}");
}

#[test]
fn the_key_can_be_changed() {
    let pair = setup().connect();
    let attr = QpAttr { qkey: Qkey(77), ..QpAttr::default() };
    pair.b.qp.modify(&attr, AttrMask::QKEY).unwrap();
    pair.b.post_recv(9, FAR, 200);
    pair.a.qp.post(Wr::send(1).to(target(&pair)));
    pair.a.qp.post(Wr::send_imm(2, 2).to(UdTarget { qkey: Qkey(77), ..target(&pair) }));
    pair.run();
    assert_eq!(pair.b.recv_cq.only().imm, 2);
}

#[test]
fn a_datagram_longer_than_the_mtu_stops_the_send_queue() {
    let pair = setup().connect();
    pair.b.post_recv(9, FAR, 3000);
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 1024)).to(target(&pair)));
    pair.a.qp.post(Wr::send(2).sge(pair.a.sge(0, 1025)).to(target(&pair)));
    pair.a.qp.post(Wr::send(3).sge(pair.a.sge(0, 10)).to(target(&pair)));
    pair.run();
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocLenErr), (3, WcStatus::WrFlushErr)];
    assert_eq!((pair.a.send_cq.statuses(), pair.a.qp.state()), (expected.to_vec(), QpState::Sqe));
    assert_eq!(pair.b.recv_cq.statuses(), [(9, WcStatus::Success)]);

    pair.a.qp.set_state(QpState::Rts).unwrap();
    pair.b.post_recv(10, FAR, 3000);
    pair.a.qp.post(Wr::send(4).to(target(&pair)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(4, WcStatus::Success)]);
    assert_eq!(pair.b.recv_cq.statuses(), [(10, WcStatus::Success)]);
}

#[test]
fn a_datagram_that_does_not_fit_is_dropped_and_its_receive_serves_the_next() {
    for room in [0, 39, 40, 139] {
        let pair = setup().connect();
        pair.b.post_recv(9, FAR, room);
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)).to(target(&pair)));
        pair.run();
        assert_eq!(pair.b.recv_cq.drain(), []);
        assert_eq!(pair.world.journal().drops(pair.b.node.id, DropReason::Unfit), 1);
        pair.a.qp.post(Wr::send(2).to(target(&pair)));
        pair.run();
        assert_eq!(pair.b.recv_cq.drain().len(), usize::from(room >= 40));
        assert_eq!(pair.b.qp.state(), QpState::Rts);
    }
}

#[test]
fn without_a_receive_a_datagram_is_dropped() {
    let pair = setup().connect();
    pair.a.qp.post(Wr::send(1).to(target(&pair)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.world.journal().drops(pair.b.node.id, DropReason::NoReceive), 1);
}

#[test]
fn a_receive_without_usable_memory_is_a_local_error() {
    let pair = setup().connect();
    let closed = pair.b.node.mr(pair.b.pd, 4096, Access::empty());
    pair.b.qp.post_recv(8, &[closed.sge(0, 1000)]).unwrap();
    pair.b.post_recv(9, FAR, 1000);
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)).to(target(&pair)));
    pair.a.qp.post(Wr::send(2).sge(pair.a.sge(0, 100)).to(target(&pair)));
    pair.run();
    // An error of the receive queue ends the queue pair, whatever its transport (IBA 10.10.2.2).
    assert_eq!(pair.b.recv_cq.statuses(), [(8, WcStatus::LocProtErr), (9, WcStatus::WrFlushErr)]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
    assert_eq!(closed.read(0, 4096), [0; 4096]);
}

#[test]
fn nothing_that_needs_a_connection_can_be_posted() {
    let pair = setup().connect();
    let (a, b) = (&pair.a, &pair.b);
    let refused = Err(PostError::NotOnThisTransport(Transport::Ud));
    assert_eq!(a.qp.post_send(&Wr::write(1, &b.mr, 0).to(target(&pair))), refused);
    assert_eq!(a.qp.post_send(&Wr::read(1, &b.mr, 0).to(target(&pair))), refused);
    assert_eq!(a.qp.post_send(&Wr::fetch_add(1, &b.mr, 0, 1).to(target(&pair))), refused);
    assert_eq!(a.qp.post_send(&Wr::local_inv(1, b.mr.rkey).to(target(&pair))), refused);
    assert_eq!(a.qp.post_send(&Wr::send(1)), Err(PostError::NoDestination));
}

#[test]
fn one_queue_pair_receives_from_many_sources() {
    let pair = setup().connect();
    let mut speakers = vec![];
    for i in 0..10u64 {
        pair.b.post_recv(i, FAR + 100 * i, 100);
        let speaker = setup().endpoint(&pair.world.node(), ferroce_proto::Psn::new(0));
        speaker.qp.connect(&setup(), &pair.b.qp, ferroce_proto::Psn::new(0), ferroce_proto::Psn::new(0));
        let to = pair.b.target(&speaker.node);
        speaker.qp.post(Wr::send_imm(1, i as u32).sge(speaker.sge(0, 20)).to(to));
        speakers.push(speaker);
    }
    pair.run();
    let got = pair.b.recv_cq.drain();
    assert_eq!(got.len(), 10);
    for c in got {
        assert_eq!(c.src_qpn, speakers[c.imm as usize].qp.qpn);
    }
}

#[test]
fn each_member_of_a_group_receives_one_datagram() {
    for group in [
        Gid::from_ip(Ipv4Addr::new(239, 1, 2, 3).into()),
        Gid::from_ip(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 9).into()),
    ] {
        let pair = PairSetup { ipv6: group.to_ipv4().is_none(), ..setup() }.connect();
        let deaf = setup().endpoint(&pair.world.node(), ferroce_proto::Psn::new(0));
        for (i, member) in [&pair.a, &pair.b].into_iter().enumerate() {
            member.node.join(group, &member.qp);
            member.post_recv(i as u64, FAR, 200);
        }
        let to = UdTarget { route: pair.a.node.route_to(group), qpn: Qpn::MULTICAST, qkey: QKEY };
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)).to(to));
        pair.run();
        assert_eq!(pair.world.packets_sent(), 1);
        assert_eq!(pair.a.recv_cq.statuses(), [(0, WcStatus::Success)]);
        assert_eq!(pair.b.recv_cq.statuses(), [(1, WcStatus::Success)]);
        assert_eq!(deaf.recv_cq.drain(), []);
    }
}

#[test]
fn lost_datagrams_are_not_reported() {
    let pair = setup().connect();
    pair.world.rule(Rule::on(any).nth(2).drop());
    pair.world.rule(Rule::on(any).nth(1).duplicate());
    for id in 0..5 {
        pair.b.post_recv(id, FAR + 100 * id, 100);
    }
    for id in 0..3 {
        pair.a.qp.post(Wr::send_imm(id, id as u32).to(target(&pair)));
    }
    pair.run();
    assert_eq!(pair.a.send_cq.drain().len(), 3);
    let got: Vec<u32> = pair.b.recv_cq.drain().iter().map(|c| c.imm).collect();
    assert_eq!(got.len(), 3, "one lost, one twice: {got:?}");
}

#[test]
fn error_flushes_in_order() {
    let pair = setup().connect();
    for id in 0..5 {
        pair.b.post_recv(id, FAR, 100);
    }
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)).to(target(&pair)));
    pair.run();
    pair.b.qp.set_state(QpState::Err).unwrap();
    pair.b.qp.post(Wr::send(7).to(target(&pair)));
    let ids: Vec<_> = pair.b.recv_cq.statuses();
    assert_eq!(ids, (0..5).map(|id| (id, WcStatus::WrFlushErr)).collect::<Vec<_>>());
    assert_eq!(pair.b.send_cq.statuses(), [(7, WcStatus::WrFlushErr)]);
}
