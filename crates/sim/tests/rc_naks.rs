//! Requests that the responder refuses: the status at the requester, and the events at the responder.

use ferroce_proto::qp::DropReason;
use ferroce_proto::verbs::{Access, EventKind, Mtu, QpState, SendOp, WcStatus};
use ferroce_proto::wire::{NakCode, Syndrome};
use ferroce_proto::{PdId, RKey};
use ferroce_sim::filter::{Seen, is_ack, is_nak, is_request};
use ferroce_sim::{Mr, Pair, PairSetup, Rule, Wr};

const FAR: u64 = 128 * 1024;

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B256, ..PairSetup::rc() }
}

/// What must follow a refused request.
struct Consequence {
    requester: WcStatus,
    nak: NakCode,
    /// Status of the receive the message had taken, if any.
    receive: Option<WcStatus>,
    event: Option<EventKind>,
}

const ACCESS: Consequence = Consequence {
    requester: WcStatus::RemAccessErr,
    nak: NakCode::RemoteAccess,
    receive: None,
    event: Some(EventKind::QpAccessErr),
};
const INVALID: Consequence = Consequence {
    requester: WcStatus::RemInvReqErr,
    nak: NakCode::InvalidRequest,
    receive: None,
    event: Some(EventKind::QpReqErr),
};

/// Posts `wr` behind a good request and before another, on a pair whose responder has one receive more than needed.
#[track_caller]
fn refused(pair: &Pair, wr: Wr, expected: &Consequence) {
    let naks = pair.world.rule(Rule::on(is_nak));
    for endpoint in [&pair.a, &pair.b] {
        endpoint.post_recv(50, FAR, 100);
        endpoint.post_recv(51, FAR, 100);
    }
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 300)));
    pair.a.qp.post(wr);
    pair.a.qp.post(Wr::write(3, &pair.b.mr, 0).sge(pair.a.sge(0, 300)));
    pair.b.qp.post(Wr::write(60, &pair.a.mr, 0).sge(pair.b.sge(0, 10)));
    pair.run();

    let statuses = pair.a.send_cq.statuses();
    let after = [(1, WcStatus::Success), (2, expected.requester), (3, WcStatus::WrFlushErr)];
    assert_eq!(statuses, after);
    let flushed = [(50, WcStatus::WrFlushErr), (51, WcStatus::WrFlushErr)];
    assert_eq!(pair.a.recv_cq.statuses(), flushed);
    let first = expected.receive.unwrap_or(WcStatus::WrFlushErr);
    assert_eq!(pair.b.recv_cq.statuses(), [(50, first), (51, WcStatus::WrFlushErr)]);
    let events: Vec<_> =
        pair.b.node.events().into_iter().map(|(qpn, kind)| (qpn == pair.b.qp.qpn, kind)).collect();
    assert_eq!(events, expected.event.into_iter().map(|kind| (true, kind)).collect::<Vec<_>>());
    assert_eq!(pair.a.node.events(), [], "a failed request is told by its completion");
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Err));
    naks.once();
    let journal = pair.world.journal();
    let syndrome = journal.packets().filter_map(|(p, _)| p.syndrome).find(|s| matches!(s, Syndrome::Nak(_)));
    assert_eq!(syndrome, Some(Syndrome::Nak(expected.nak)));
    assert!(journal.explanations().count() >= 2, "both sides say why");
}

fn region(pair: &Pair, pd: PdId, access: Access) -> Mr {
    pair.b.node.mr(pd, 4096, access)
}

/// One-sided requests to an offset of a region.
fn one_sided(pair: &Pair, mr: &Mr, offset: u64, len: u32) -> Vec<(Access, Wr)> {
    let data = pair.a.sge(0, len);
    let mut all = vec![
        (Access::REMOTE_WRITE, Wr::write(2, mr, offset).sge(data)),
        (Access::REMOTE_READ, Wr::read(2, mr, offset).sge(data)),
    ];
    if len == 8 {
        all.push((Access::REMOTE_ATOMIC, Wr::fetch_add(2, mr, offset, 1).sge(data)));
        all.push((Access::REMOTE_ATOMIC, Wr::compare_swap(2, mr, offset, 0, 1).sge(data)));
    }
    all
}

#[test]
fn a_missing_right_is_an_access_error() {
    for kind in 0..4 {
        for from_qp in [false, true] {
            let all = Access::LOCAL_WRITE | Access::REMOTE;
            let right =
                [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::REMOTE_ATOMIC]
                    [kind];
            // The request before needs the right to write.
            let rest = if from_qp && kind == 0 { continue } else { all - right };
            let access = if from_qp { rest } else { all };
            let pair = PairSetup { access, ..setup() }.connect();
            let mr = region(&pair, pair.b.pd, if from_qp { all } else { rest });
            let (need, wr) = one_sided(&pair, &mr, 0, 8).swap_remove(kind);
            assert_eq!(need, right);
            refused(&pair, wr, &ACCESS);
            assert_eq!(mr.read(0, 8), [0; 8], "nothing was written");
        }
    }
}

#[test]
fn a_foreign_domain_is_an_access_error() {
    for kind in 0..4 {
        let pair = setup().connect();
        let mr = region(&pair, pair.b.node.pd(), Access::LOCAL_WRITE | Access::REMOTE);
        refused(&pair, one_sided(&pair, &mr, 0, 8).swap_remove(kind).1, &ACCESS);
    }
}

#[test]
fn an_unknown_or_freed_key_is_an_access_error() {
    for kind in 0..4 {
        let pair = setup().connect();
        let mr = region(&pair, pair.b.pd, Access::LOCAL_WRITE | Access::REMOTE);
        mr.deregister();
        refused(&pair, one_sided(&pair, &mr, 0, 8).swap_remove(kind).1, &ACCESS);
    }
    let pair = setup().connect();
    let local_key = RKey(pair.b.mr.lkey.0);
    let wr = Wr::new(2, SendOp::Read { addr: pair.b.mr.start, rkey: local_key }).sge(pair.a.sge(0, 8));
    refused(&pair, wr, &ACCESS);
}

#[test]
fn a_range_that_leaves_its_region_is_an_access_error() {
    for kind in 0..2 {
        for (offset, len) in [(4095, 2), (4096, 1), (0, 4097), (u64::MAX, 2), (5000, 1000)] {
            let pair = setup().connect();
            let mr = region(&pair, pair.b.pd, Access::LOCAL_WRITE | Access::REMOTE);
            refused(&pair, one_sided(&pair, &mr, offset, len).swap_remove(kind).1, &ACCESS);
            assert_eq!(mr.read(0, 4096), [0; 4096], "nothing was written");
        }
    }
}

#[test]
fn ranges_do_not_wrap_around_the_address_space() {
    for kind in 0..2 {
        let pair = setup().connect();
        let mr = pair.b.node.mr_at(pair.b.pd, u64::MAX - 4095, 4096, Access::LOCAL_WRITE | Access::REMOTE);
        refused(&pair, one_sided(&pair, &mr, 4000, 600).swap_remove(kind).1, &ACCESS);
    }
    // Up to the last byte it works.
    let pair = setup().connect();
    let mr = pair.b.node.mr_at(pair.b.pd, u64::MAX - 4095, 4096, Access::LOCAL_WRITE | Access::REMOTE);
    pair.a.qp.post(Wr::write(1, &mr, 3000).sge(pair.a.sge(0, 1096)));
    pair.a.qp.post(Wr::read(2, &mr, 3000).sge(pair.a.sge(2000, 1096)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(pair.a.mr.read(0, 1096) == pair.a.mr.read(2000, 1096));
}

#[test]
fn zero_bytes_need_no_key() {
    let pair = setup().connect();
    pair.a.qp.post(Wr::new(1, SendOp::Write { addr: 7, rkey: RKey(7) }));
    pair.a.qp.post(Wr::new(2, SendOp::Read { addr: 7, rkey: RKey(7) }));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn earlier_reads_are_answered_before_a_refusal() {
    for depth in [1, usize::MAX] {
        let pair = setup().connect();
        pair.b.node.set_link_depth(depth);
        let (a, b) = (&pair.a, &pair.b);
        b.mr.write(0, &1u64.to_ne_bytes());
        a.qp.post(Wr::read(1, &b.mr, FAR).sge(a.sge(0, 5000)));
        a.qp.post(Wr::fetch_add(2, &b.mr, 0, 1).sge(a.sge(8000, 8)));
        a.qp.post(Wr::read(3, &b.mr, FAR).sge(a.sge(9000, 5000)));
        a.qp.post(Wr::new(4, SendOp::Write { addr: 0, rkey: RKey(1) }).sge(a.sge(0, 10)));
        a.qp.post(Wr::read(5, &b.mr, FAR).sge(a.sge(0, 5000)));
        pair.run();
        let (ok, refused, flushed) = (WcStatus::Success, WcStatus::RemAccessErr, WcStatus::WrFlushErr);
        assert_eq!(a.send_cq.statuses(), [(1, ok), (2, ok), (3, ok), (4, refused), (5, flushed)]);
        assert!(a.mr.read(0, 5000) == b.mr.read(FAR as usize, 5000));
    }
}

#[test]
fn a_region_deregistered_in_the_middle_is_an_access_error() {
    for read in [false, true] {
        let pair = PairSetup { window: 1024, ..setup() }.connect();
        let mr = pair.b.node.mr(pair.b.pd, 256 * 1024, Access::LOCAL_WRITE | Access::REMOTE);
        let wr = if read { Wr::read(1, &mr, 0) } else { Wr::write(1, &mr, 0) };
        pair.a.qp.post(wr.sge(pair.a.sge(0, 256 * 1024)));
        pair.world.run_for(6_000);
        assert_eq!(pair.a.send_cq.drain(), []);
        mr.deregister();
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RemAccessErr)], "read: {read}");
        assert_eq!(pair.b.node.events(), [(pair.b.qp.qpn, EventKind::QpAccessErr)]);
    }
}

#[test]
fn a_receive_that_is_too_small_is_a_length_error_here_and_an_invalid_request_there() {
    let expected = Consequence { receive: Some(WcStatus::LocLenErr), event: None, ..INVALID };
    for len in [101, 256, 257, 1000] {
        let pair = setup().connect();
        refused(&pair, Wr::send(2).sge(pair.a.sge(0, len)), &expected);
    }
}

#[test]
fn a_receive_without_usable_memory_is_a_protection_error_here_and_an_operation_error_there() {
    let expected = Consequence {
        requester: WcStatus::RemOpErr,
        nak: NakCode::RemoteOperational,
        receive: Some(WcStatus::LocProtErr),
        event: None,
    };
    for kind in 0..4 {
        let pair = setup().connect();
        let b = &pair.b;
        let sge = match kind {
            0 => region(&pair, b.pd, Access::REMOTE).sge(0, 100),
            1 => region(&pair, b.node.pd(), Access::LOCAL_WRITE).sge(0, 100),
            2 => region(&pair, b.pd, Access::LOCAL_WRITE).sge(4090, 100),
            _ => {
                let mr = region(&pair, b.pd, Access::LOCAL_WRITE);
                mr.deregister();
                mr.sge(0, 100)
            }
        };
        b.qp.post_recv(40, &[sge]).unwrap();
        pair.a.qp.post(Wr::send(2).sge(pair.a.sge(0, 10)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(2, expected.requester)]);
        assert_eq!(pair.b.recv_cq.statuses(), [(40, WcStatus::LocProtErr)]);
        assert_eq!(pair.b.node.events(), []);
        assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Err));
    }
}

#[test]
fn a_refused_write_with_immediate_fails_its_receive() {
    let pair = setup().connect();
    let wrong = Wr::new(2, SendOp::WriteImm { addr: 0, rkey: RKey(1), imm: 1 });
    let expected = Consequence { receive: Some(WcStatus::LocAccessErr), event: None, ..ACCESS };
    refused(&pair, wrong.sge(pair.a.sge(0, 10)), &expected);
}

#[test]
fn an_odd_atomic_address_is_an_invalid_request() {
    for offset in 1..8 {
        let pair = setup().connect();
        refused(&pair, Wr::fetch_add(2, &pair.b.mr, offset, 1).sge(pair.a.sge(0, 8)), &INVALID);
        assert_eq!(pair.b.node.atomics_run(), 0);
    }
}

#[test]
fn more_reads_than_responder_resources_are_invalid() {
    // The requester believes that it may have 8 in flight; the responder's link is slow, so they pile up.
    let pair = PairSetup { max_dest_rd_atomic: 2, ..setup() }.connect();
    pair.b.node.set_link_depth(1);
    for id in 1..9 {
        pair.a.qp.post(Wr::read(id, &pair.b.mr, 0).sge(pair.a.sge(id * 4096, 4096)));
    }
    pair.run();
    let statuses = pair.a.send_cq.statuses();
    assert!(statuses.iter().any(|(_, s)| *s == WcStatus::RemInvReqErr), "{statuses:?}");
    assert_eq!(pair.b.node.events(), [(pair.b.qp.qpn, EventKind::QpReqErr)]);
}

#[test]
fn without_responder_resources_the_first_read_is_refused() {
    for kind in 1..4 {
        let pair = PairSetup { max_dest_rd_atomic: 0, ..setup() }.connect();
        let wr = one_sided(&pair, &pair.b.mr, 0, 8).swap_remove(kind).1;
        refused(&pair, wr, &INVALID);
    }
}

/// Changes the opcode of the second request (the first of message 2) or its RETH.
fn forged(change: impl Fn(&mut Vec<u8>) + 'static, wr: fn(&Pair) -> Wr, expected: &Consequence) {
    let pair = setup().connect();
    let forged = pair.world.rule(
        Rule::on(|seen: &Seen<'_>| is_request(seen) && seen.psn().value() == 2)
            .rewrite(move |bytes| change(bytes)),
    );
    refused(&pair, wr(&pair), expected);
    assert!(forged.hits() >= 1);
}

#[test]
fn a_message_out_of_order_is_an_invalid_request() {
    const OPCODES: [u8; 4] = [1, 2, 7, 8]; // SEND middle, SEND last, WRITE middle, WRITE last
    for opcode in OPCODES {
        forged(move |bytes| bytes[0] = opcode, |p| Wr::send(2).sge(p.a.sge(0, 20)), &INVALID);
    }
    // A first packet that is not full.
    forged(|bytes| bytes[0] = 0, |p| Wr::send(2).sge(p.a.sge(0, 20)), &INVALID);
}

#[test]
fn a_write_with_a_wrong_dma_length_is_an_invalid_request() {
    for claimed in [19u32, 21, 0x8000_0001, u32::MAX] {
        let lie = move |bytes: &mut Vec<u8>| bytes[24..28].copy_from_slice(&claimed.to_be_bytes());
        forged(lie, |p| Wr::write(2, &p.b.mr, FAR).sge(p.a.sge(0, 20)), &INVALID);
    }
}

#[test]
fn a_read_longer_than_any_message_is_an_invalid_request() {
    let lie = |bytes: &mut Vec<u8>| bytes[24..28].copy_from_slice(&0x8000_0001u32.to_be_bytes());
    forged(lie, |p| Wr::read(2, &p.b.mr, FAR).sge(p.a.sge(0, 20)), &INVALID);
}

#[test]
fn each_nak_code_has_its_status() {
    let codes = [
        (0x61, WcStatus::RemInvReqErr),
        (0x62, WcStatus::RemAccessErr),
        (0x63, WcStatus::RemOpErr),
        (0x64, WcStatus::RemInvRdReqErr),
    ];
    for (syndrome, status) in codes {
        let pair = setup().connect();
        let forged = pair.world.rule(Rule::on(is_ack).first().rewrite(move |bytes| bytes[12] = syndrome));
        pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 20)));
        pair.a.qp.post(Wr::write(2, &pair.b.mr, 0).sge(pair.a.sge(0, 20)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, status), (2, WcStatus::WrFlushErr)]);
        forged.once();
    }
}

#[test]
fn a_reserved_syndrome_is_malformed() {
    for syndrome in [0x40, 0x5f, 0x65, 0x7f, 0x80, 0xff] {
        let pair = setup().connect();
        pair.world.rule(Rule::on(is_ack).first().rewrite(move |bytes| bytes[12] = syndrome));
        pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 20)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
        assert_eq!(pair.world.journal().drops(pair.a.node.id, DropReason::Malformed), 1);
    }
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_dropped() {
    for psn in [2u32, 100, 0x7f_ffff] {
        let pair = setup().connect();
        let forge = move |bytes: &mut Vec<u8>| bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
        pair.world.rule(Rule::on(is_ack).first().rewrite(forge));
        pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 20)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
        assert_eq!(pair.world.journal().drops(pair.a.node.id, DropReason::BadPsn), 1);
    }
}

#[test]
fn a_read_response_of_the_wrong_length_is_a_bad_response() {
    let pair = setup().connect();
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 4);
    pair.world.rule(Rule::on(|seen: &Seen<'_>| seen.operation().is_read_response()).first().rewrite(cut));
    pair.a.qp.post(Wr::read(1, &pair.b.mr, 0).sge(pair.a.sge(0, 20)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::BadRespErr)]);
    assert_eq!(pair.a.qp.state(), QpState::Err);
}

#[test]
fn a_send_without_readable_memory_fails_in_order() {
    for kind in 0..3 {
        let pair = setup().connect();
        let (a, b) = (&pair.a, &pair.b);
        let mr = a.node.mr(if kind == 0 { a.node.pd() } else { a.pd }, 4096, Access::empty());
        let sge = if kind == 1 { mr.sge(4000, 100) } else { mr.sge(0, 100) };
        if kind == 2 {
            mr.deregister();
        }
        a.qp.post(Wr::read(1, &b.mr, 0).sge(a.sge(0, 2000)));
        a.qp.post(Wr::write(2, &b.mr, FAR).sge(sge));
        a.qp.post(Wr::write(3, &b.mr, FAR).sge(a.sge(0, 10)));
        pair.run();
        let expected = [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
        assert_eq!(a.send_cq.statuses(), expected);
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Rts));
    }
}

#[test]
fn an_answer_without_writable_memory_is_a_protection_error() {
    for atomic in [false, true] {
        let pair = setup().connect();
        let (a, b) = (&pair.a, &pair.b);
        let mr = a.node.mr(a.pd, 4096, Access::empty());
        let wr = if atomic { Wr::fetch_add(1, &b.mr, 0, 1) } else { Wr::read(1, &b.mr, 0) };
        a.qp.post(wr.sge(mr.sge(0, 8)));
        a.qp.post(Wr::write(2, &b.mr, FAR).sge(a.sge(0, 10)));
        pair.run();
        assert_eq!(a.send_cq.statuses(), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(a.qp.state(), QpState::Err);
    }
}

#[test]
fn an_atomic_needs_a_buffer_of_eight_bytes() {
    for len in [0, 4, 7, 9, 16] {
        let pair = setup().connect();
        pair.a.qp.post(Wr::fetch_add(1, &pair.b.mr, 0, 1).sge(pair.a.sge(0, len)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::LocLenErr)]);
        assert_eq!(pair.b.node.atomics_run(), 0);
    }
}

/// Any single bit of any packet may be wrong under a right checksum: a peer with a bug, or an attacker on the path. It may
/// cost the connection, but neither a panic nor a hang, and every work request completes exactly once.
#[test]
fn no_forged_bit_breaks_more_than_the_connection() {
    for target in 0..14 {
        for bit in 0..44 * 8 {
            let pair = PairSetup { timeout: 10, retry_cnt: 1, rnr_retry: 1, ..setup() }.connect();
            let flip = move |bytes: &mut Vec<u8>| {
                if let Some(byte) = bytes.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            };
            pair.world.rule(Rule::on(move |seen| seen.index == target).rewrite(flip));
            for id in 0..2 {
                pair.b.post_recv(id, FAR, 600);
            }
            pair.a.qp.post(Wr::send_imm(0, 7).sge(pair.a.sge(0, 300)));
            pair.a.qp.post(Wr::read(1, &pair.b.mr, 0).sge(pair.a.sge(0, 600)));
            pair.a.qp.post(Wr::fetch_add(2, &pair.b.mr, 0, 1).sge(pair.a.sge(0, 8)));
            pair.a.qp.post(Wr::write_imm(3, &pair.b.mr, FAR, 1).sge(pair.a.sge(0, 300)));
            pair.run();
            let ids: Vec<u64> = pair.a.send_cq.drain().iter().map(|c| c.wr_id).collect();
            assert_eq!(ids, [0, 1, 2, 3], "packet {target}, bit {bit}");
            assert!(pair.b.node.atomics_run() <= 1, "packet {target}, bit {bit}");
        }
    }
}

/// A NAK has one code for all of these; between two ferroce ends it also carries the reason.
#[test]
fn the_requester_names_the_reason_of_the_responder() {
    let told = |wr: &dyn Fn(&Pair) -> Wr| -> Vec<String> {
        let pair = setup().connect();
        pair.a.qp.post(wr(&pair));
        pair.run();
        pair.world
            .journal()
            .explanations()
            .filter(|why| why.contains("was refused by"))
            .map(str::to_string)
            .collect()
    };
    let beyond = told(&|pair| Wr::write(2, &pair.b.mr, FAR * 64).sge(pair.a.sge(0, 8)));
    let unknown =
        told(&|pair| Wr::new(2, SendOp::Write { addr: 0, rkey: RKey(0x1234) }).sge(pair.a.sge(0, 8)));
    for (lines, reason) in [(beyond, "outside the region"), (unknown, "a key that names no region")] {
        assert!(
            lines.len() == 1 && lines[0].contains(reason) && lines[0].contains("WRITE wr_id 0x2"),
            "{lines:?}"
        );
    }
}
