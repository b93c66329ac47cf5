//! Payloads that are put in place while they are received: the data is right, nothing else is touched, and it ends when
//! the right to write ends.

mod link_support;
mod nic_support;

use ferroce_nic::Qp;
use ferroce_proto::verbs::*;
use link_support::turn_at;
use nic_support::*;
use std::time::Instant;

const MIB: usize = 1 << 20;

fn target(area: &Area, offset: usize) -> (u64, ferroce_proto::RKey) {
    (area.mr().iova() + offset as u64, area.mr().rkey())
}

#[test]
fn long_writes_land_where_they_belong() {
    let (a, b) = (End::open("127.44.0.1", None), End::open("127.44.0.2", None));
    let (qa, qb) = (a.qp(Transport::Rc), b.qp(Transport::Rc));
    connect((&a, &qa), (&b, &qb), 14, 7);
    let into = Area::new(&b, MIB + 999);
    let start = Instant::now();
    let mut round = 0;
    // At least some; and until it has been tried, since that depends on who runs when.
    while round < 20 || b.placing().0 < 1000 {
        assert!(start.elapsed() < PATIENCE, "{:?}", b.nic.counters().link);
        // Whole and broken numbers of packets, at odd places.
        let len = [MIB, MIB + 999, 300_001, 20 * 4096, 5 * 4096 + 1][round % 5];
        let offset = (into.mr().len() - len) / 2;
        into.fill(7);
        let before = into.bytes().to_vec();
        let from = Area::new(&a, len);
        from.fill(round as u64);
        post_write(&qa, 1, &from, target(&into, offset));
        a.success();
        assert_eq!(into.bytes()[offset..offset + len], *from.bytes(), "round {round}");
        assert_eq!(into.bytes()[..offset], before[..offset]);
        assert_eq!(into.bytes()[offset + len..], before[offset + len..]);
        round += 1;
    }
    assert_eq!(b.nic.counters().link.bad_icrc, 0);
}

#[test]
fn long_reads_land_where_they_belong() {
    let (a, b) = (End::open("127.44.1.1", None), End::open("127.44.1.2", None));
    let (qa, qb) = (a.qp(Transport::Rc), b.qp(Transport::Rc));
    connect((&a, &qa), (&b, &qb), 14, 7);
    let (into, from) = (Area::new(&a, MIB + 999), Area::new(&b, MIB + 999));
    let start = Instant::now();
    let mut round = 0;
    while round < 10 || a.placing().0 < 1000 {
        assert!(start.elapsed() < PATIENCE, "{:?}", a.nic.counters().link);
        into.fill(1000);
        from.fill(round);
        let (addr, rkey) = target(&from, 0);
        // Two entries, split at an odd place.
        let sges = [into.mr().sge(0, 333_333), into.mr().sge(333_333, (MIB + 999 - 333_333) as u32)];
        post(&qa, 1, SendOp::Read { addr, rkey }, &sges);
        a.success();
        assert!(into.bytes() == from.bytes(), "round {round}");
        round += 1;
    }
}

#[test]
fn unreliable_writes_land_where_they_belong() {
    let (a, b) = (End::open("127.44.2.1", None), End::open("127.44.2.2", None));
    let (qa, qb) = (a.qp(Transport::Uc), b.qp(Transport::Uc));
    connect((&a, &qa), (&b, &qb), 0, 0);
    // Few enough bytes that no receive buffer overflows.
    let (from, into) = (Area::new(&a, 64 * 1024), Area::new(&b, 64 * 1024));
    let start = Instant::now();
    let mut round = 0;
    while round < 20 || b.placing().0 < 100 {
        assert!(start.elapsed() < PATIENCE, "{:?}", b.nic.counters().link);
        from.fill(round);
        qb.post_recv(&[RecvWr { wr_id: 2, sges: &[] }]).unwrap();
        let (addr, rkey) = target(&into, 0);
        let sge = from.mr().sge(0, 64 * 1024);
        post(&qa, 1, SendOp::WriteImm { addr, rkey, imm: round as u32 }, &[sge]);
        a.success();
        assert_eq!(b.success().imm, round as u32);
        assert!(into.bytes() == from.bytes(), "round {round}");
        round += 1;
    }
}

/// Several long WRITEs at a time and short SENDs between them, until guesses have been right and wrong.
fn interleave(a: &End, b: &End) {
    const QPS: usize = 4;
    const NOTES: usize = 8;
    let pairs: Vec<(Qp, Qp)> = (0..QPS).map(|_| (a.qp(Transport::Rc), b.qp(Transport::Rc))).collect();
    for (qa, qb) in &pairs {
        connect((a, qa), (b, qb), 12, 7);
    }
    let froms: Vec<Area> = (0..QPS - 1).map(|i| Area::new(a, MIB + 4096 * i + i)).collect();
    let intos: Vec<Area> = froms.iter().map(|f| Area::new(b, f.mr().len())).collect();
    let (note, notes) = (Area::new(a, 16), Area::new(b, 16));
    let (talker, listener) = &pairs[QPS - 1];
    let start = Instant::now();
    let mut round = 0;
    while round < 10 || b.placing().0 < 1000 || b.placing().1 == 0 {
        assert!(start.elapsed() < PATIENCE, "{:?}", b.nic.counters().link);
        for (i, (from, into)) in froms.iter().zip(&intos).enumerate() {
            from.fill(round * 10 + i as u64);
            into.fill(1000);
            post_write(&pairs[i].0, i as u64, from, target(into, 0));
        }
        for n in 0..NOTES as u64 {
            listener.post_recv(&[RecvWr { wr_id: n, sges: &[notes.mr().sge(0, 16)] }]).unwrap();
        }
        let (mut notes_left, mut open) = (NOTES, NOTES + QPS - 1);
        while open > 0 {
            assert!(start.elapsed() < PATIENCE, "{:?}", b.nic.counters().link);
            if notes_left > 0 {
                post(talker, 99, SendOp::Send, &[note.mr().sge(0, 16)]);
                notes_left -= 1;
            }
            let mut out = [Completion::default(); 4];
            let n = a.cq.poll(&mut out).unwrap();
            assert!(out[..n].iter().all(|c| c.status == WcStatus::Success), "{out:?}");
            open -= n;
        }
        for _ in 0..NOTES {
            b.success();
        }
        for (from, into) in froms.iter().zip(&intos) {
            assert!(into.bytes() == from.bytes(), "round {round}");
        }
        round += 1;
    }
}

#[test]
fn queue_pairs_that_take_turns_get_their_own_data() {
    interleave(&End::open("127.44.3.1", None), &End::open("127.44.3.2", None));
}

#[test]
fn a_bad_wire_changes_nothing_but_the_pace() {
    // Over IPv6, where a damaged packet is never taken for a good one with another identification.
    let _turn = turn_at("::1");
    let faults = "loss=1%,dup=1%,reorder=1%,corrupt=1%,seed=11";
    let (a, b) = (End::open("::1", Some(faults)), End::open("::1", Some("loss=1%,seed=12")));
    interleave(&a, &b);
    let (sent, got) = (a.nic.counters().link, b.nic.counters().link);
    assert!(sent.injected_losses > 0 && sent.injected_reorders > 0 && sent.injected_duplicates > 0);
    assert!(got.bad_icrc > 0);
}

/// Starts long WRITEs, calls `end` while they come in, and makes sure that not a byte changes once it has returned.
fn nothing_lands_after(a: &End, b: &End, status: WcStatus, end: impl Fn(&mut Area, &mut Option<Qp>)) {
    // A peer that is gone should be missed soon; one that answers should be given all the time it needs.
    let (timeout, retry_cnt) = if status == WcStatus::RetryExcErr { (10, 1) } else { (16, 7) };
    for round in 0..20 {
        let (qa, qb) = (a.qp(Transport::Rc), b.qp(Transport::Rc));
        connect((a, &qa), (b, &qb), timeout, retry_cnt);
        let (from, mut into) = (Area::new(a, 2 * MIB), Area::new(b, 2 * MIB));
        let mut qb = Some(qb);
        from.fill(round);
        let before = b.placing().0;
        for wr_id in 0..64 {
            post_write(&qa, wr_id, &from, target(&into, 0));
        }
        b.wait_until_placed(before);
        end(&mut into, &mut qb);
        // From here on the memory is the program's own, and what comes next would land near its start.
        into.blank();
        let mine = into.bytes().to_vec();
        let failed = (0..64).map(|_| a.complete()).find(|c| c.status != WcStatus::Success);
        let failed = failed.expect("128 MiB do not pass in the time that the first packets take");
        assert_eq!(failed.status, status, "{failed:?}");
        assert!(into.bytes() == mine, "round {round}: memory changed after the right to write had ended");
        drop(qa);
    }
}

#[test]
fn nothing_lands_after_deregistration() {
    let (a, b) = (End::open("127.44.5.1", None), End::open("127.44.5.2", None));
    nothing_lands_after(&a, &b, WcStatus::RemAccessErr, |into, _| into.mr = None);
}

#[test]
fn nothing_lands_after_the_queue_pair_is_destroyed() {
    let (a, b) = (End::open("127.44.6.1", None), End::open("127.44.6.2", None));
    nothing_lands_after(&a, &b, WcStatus::RetryExcErr, |_, qp| *qp = None);
}

#[test]
fn nothing_lands_after_the_queue_pair_is_in_error() {
    let (a, b) = (End::open("127.44.7.1", None), End::open("127.44.7.2", None));
    nothing_lands_after(&a, &b, WcStatus::RetryExcErr, |_, qp| {
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        qp.as_ref().unwrap().modify(&attr, AttrMask::STATE).unwrap();
    });
}
