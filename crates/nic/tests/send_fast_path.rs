//! The fast path of a message in one packet: that it is used, that it has the same effects as the regular path, and that it declines where
//! anything is out of order. The receive's region is used cached, which ends with the region.

mod objects_support;

use ferroce_nic::{Cq, Nic, Pd, Qp};
use ferroce_proto::qp::QpCounters;
use ferroce_proto::verbs::{
    Access, AttrMask, Completion, Payload, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge,
    Transport, WcOpcode, WcStatus,
};
use objects_support::{Buffer, CAP, completions, connect, create, open};
use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Queue pair `a` of one NIC, who sends, and `b` of another.
struct Setup {
    near: Nic,
    near_pd: Arc<Pd>,
    cqs: [Cq; 2],
    a: Qp,
    b: Option<Qp>,
    from: Buffer,
    to: Buffer,
    _far: Nic,
}

fn setup(addresses: [&str; 2]) -> Setup {
    let [near, far] = addresses.map(open);
    let [near_pd, far_pd] = [&near, &far].map(|nic| nic.alloc_pd().unwrap());
    let cqs = [&near, &far].map(|nic| nic.create_cq(128, None, 0).unwrap());
    let (a, b) = (create(&near_pd, &cqs[0], Transport::Rc), create(&far_pd, &cqs[1], Transport::Rc));
    connect(&far, &a, b.qpn());
    connect(&near, &b, a.qpn());
    let from = Buffer::new(&near_pd, 4096, Access::LOCAL_WRITE);
    let to = Buffer::new(&far_pd, 4096, Access::LOCAL_WRITE);
    Setup { near, near_pd, cqs, a, b: Some(b), from, to, _far: far }
}

impl Setup {
    fn plain<'a>(payload: Payload<'a>, imm: Option<u32>) -> SendWr<'a> {
        let op = imm.map_or(SendOp::Send, SendOp::SendImm);
        SendWr { wr_id: 7, op, flags: SendFlags::SIGNALED, payload, ud: None, srq: None }
    }

    /// While it is posted, or not at all.
    fn short(&self, wr: SendWr<'_>) -> bool {
        let post = |posting: &mut ferroce_nic::Posting<'_>| {
            posting.is_last(true);
            posting.try_post(&wr).is_done()
        };
        self.a.post_send_each(post).unwrap()
    }

    /// By whatever way it takes.
    fn long(&self, wr: SendWr<'_>) {
        self.a.post_send_each(|posting| posting.post(|| wr)).unwrap().unwrap();
    }

    fn receive(&self, sge: Sge) {
        self.b.as_ref().unwrap().post_recv(&[RecvWr { wr_id: 9, sges: &[sge] }]).unwrap();
    }

    /// Polls both ends until each has a completion.
    fn one_each(&self) -> [Completion; 2] {
        let (mut found, give_up) = ([None; 2], Instant::now() + Duration::from_secs(20));
        while let [None, _] | [_, None] = found {
            for (cq, found) in self.cqs.iter().zip(&mut found) {
                let mut place = [Completion::default()];
                if cq.poll(&mut place).unwrap() > 0 {
                    assert_eq!(found.replace(place[0]), None, "one is enough");
                }
            }
            assert!(Instant::now() < give_up, "{found:?}");
        }
        found.map(Option::unwrap_or_default)
    }

    fn both_counters(&self) -> [QpCounters; 2] {
        [self.a.counters(), self.b.as_ref().unwrap().counters()]
    }
}

/// What went to and fro between the two.
fn traffic([a, b]: [QpCounters; 2]) -> [u64; 6] {
    [a.tx_packets, a.tx_bytes, a.retransmitted, b.rx_packets, b.rx_bytes, b.acks_sent]
}

#[test]
fn both_paths_do_the_same() {
    let s = setup(["127.91.8.1", "127.91.8.2"]);
    let mut seen = Vec::new();
    for (round, is_long) in [true, false, true, false, false, false].into_iter().enumerate() {
        // Not a multiple of four: what pads it is no part of it.
        let (len, byte) = (13 + round % 2 * 35, 50 + round as u8);
        s.from.fill(100, len, byte);
        s.to.fill(0, 100, 0);
        for imm in [None, Some(0xabcd_ef01)] {
            for is_inline in [false, true] {
                let (sge, bytes) = (s.from.sge(100, len as u32), vec![byte; len]);
                let data = if is_inline { Payload::Inline(&bytes) } else { Payload::Sges(from_ref(&sge)) };
                s.receive(s.to.sge(8, 64));
                let before = traffic(s.both_counters());
                match is_long {
                    true => s.long(Setup::plain(data, imm)),
                    false => assert!(s.short(Setup::plain(data, imm)), "nothing stands in the way"),
                }
                let [here, there] = s.one_each();
                assert_eq!(s.to.read(8, len), bytes);
                assert!(s.to.read(8 + len, 64 - len).iter().all(|byte| *byte == 0), "not a byte more");
                let after = traffic(s.both_counters());
                let moved: Vec<u64> =
                    after.iter().zip(before).map(|(after, before)| after - before).collect();
                assert_eq!((there.byte_len, here.status), (len as u32, WcStatus::Success));
                assert_eq!((here.opcode, there.opcode), (WcOpcode::Send, WcOpcode::Recv));
                let number = round % 2 * 4 + usize::from(is_inline) * 2 + usize::from(imm.is_some());
                seen.push((number, moved, here, there));
            }
        }
    }
    // One that took so long that it was asked after may have been sent twice, by either way.
    let in_time: Vec<_> = seen.iter().filter(|(_, moved, ..)| moved[2] == 0).collect();
    assert!(in_time.len() > seen.len() / 2);
    for (number, moved, here, there) in &in_time {
        assert_eq!(moved[..], [1, moved[1], 0, 1, moved[1], 1]);
        for (_, others, here_too, there_too) in in_time.iter().filter(|other| other.0 == *number) {
            assert_eq!((moved, here, there), (others, here_too, there_too));
        }
    }
}

#[test]
fn the_fast_path_declines_what_is_out_of_order() {
    let s = setup(["127.91.8.3", "127.91.8.4"]);
    let (good, strange) =
        (s.from.sge(0, 8), Buffer::new(&s.near.alloc_pd().unwrap(), 64, Access::LOCAL_WRITE));
    let gone = Buffer::new(&s.near_pd, 64, Access::LOCAL_WRITE).sge(0, 8);
    let long = vec![1; CAP.max_inline_data as usize + 1];
    let left: [(Payload<'_>, &str); 5] = [
        (Payload::Sges(&[s.from.sge(0, 1025)]), "more than a packet"),
        (Payload::Inline(&long), "more inline data than was agreed"),
        (Payload::Sges(&[strange.sge(0, 8)]), "another domain"),
        (Payload::Sges(&[gone]), "a region that is gone"),
        (Payload::Sges(&[s.from.sge(4092, 8)]), "beyond the region"),
    ];
    let before = traffic(s.both_counters());
    for (data, why) in left {
        assert!(!s.short(Setup::plain(data, None)), "{why}");
    }
    assert_eq!((traffic(s.both_counters()), s.a.send_room()), (before, CAP.max_send_wr as usize));
    assert_eq!(s.cqs[0].poll(&mut [Completion::default()]).unwrap(), 0);
    // Without a receive at the other end it is under way, and asked to wait; what comes after it must not overtake it.
    assert!(s.short(Setup::plain(Payload::Sges(&[good]), None)));
    while s.a.counters().rnr_received == 0 {
        assert_eq!(s.cqs.each_ref().map(|cq| cq.poll(&mut [Completion::default()]).unwrap()), [0, 0]);
    }
    assert!(!s.short(Setup::plain(Payload::Sges(&[good]), None)), "the peer is not ready");
    s.receive(s.to.sge(0, 8));
    while s.a.send_room() < CAP.max_send_wr as usize {
        assert!(s.cqs[1].poll(&mut [Completion::default()]).is_ok());
        let mut done = [Completion::default()];
        if s.cqs[0].poll(&mut done).unwrap() > 0 {
            assert_eq!(done[0].status, WcStatus::Success);
        }
    }
    s.a.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    assert!(!s.short(Setup::plain(Payload::Sges(&[good]), None)), "it is in ERR");
}

#[test]
fn no_more_than_the_queue_holds() {
    let s = setup(["127.91.8.5", "127.91.8.6"]);
    for _ in 0..CAP.max_recv_wr {
        s.receive(s.to.sge(0, 8));
    }
    let sge = s.from.sge(0, 8);
    // In one list: while it is posted, no answer comes in.
    let post = |posting: &mut ferroce_nic::Posting<'_>| {
        (0..=CAP.max_send_wr)
            .take_while(|_| posting.try_post(&Setup::plain(Payload::Sges(&[sge]), None)).is_done())
            .count()
    };
    assert_eq!(s.a.post_send_each(post).unwrap(), CAP.max_send_wr as usize, "the queue is full then");
    assert_eq!(completions(&s.cqs[1], CAP.max_recv_wr as usize).len(), CAP.max_send_wr as usize);
    let done = completions(&s.cqs[0], CAP.max_send_wr as usize);
    assert!(done.iter().all(|done| done.status == WcStatus::Success));
}

#[test]
fn a_message_to_nobody_is_given_up() {
    let mut s = setup(["127.91.8.7", "127.91.8.8"]);
    s.receive(s.to.sge(0, 8));
    assert!(s.short(Setup::plain(Payload::Inline(&[1; 8]), None)));
    assert_eq!(completions(&s.cqs[1], 1)[0].status, WcStatus::Success);
    assert_eq!(completions(&s.cqs[0], 1)[0].status, WcStatus::Success);
    drop(s.b.take());
    assert!(s.short(Setup::plain(Payload::Inline(&[1; 8]), None)), "nobody can know");
    assert_eq!(completions(&s.cqs[0], 1)[0].status, WcStatus::RetryExcErr);
}

#[test]
fn the_cached_region_of_a_receive_ends_with_its_region() {
    let mut s = setup(["127.91.8.9", "127.91.8.10"]);
    let sge = s.to.sge(0, 8);
    let send = |s: &Setup, byte: u8| {
        s.receive(sge);
        assert!(s.short(Setup::plain(Payload::Inline(&[byte; 8]), None)));
        completions(&s.cqs[0], 1);
        completions(&s.cqs[1], 1)[0].status
    };
    for round in 1..5 {
        assert_eq!(send(&s, round), WcStatus::Success);
        assert_eq!(s.to.read(0, 8), [round; 8]);
    }
    // Other bytes under the same key.
    let other = Buffer::new(&s.near_pd, 64, Access::LOCAL_WRITE);
    let place = Some((other.bytes.as_ptr() as usize, 64, s.to.mr.iova()));
    // SAFETY: the bytes outlive the region, and are only accessed atomically.
    unsafe { s.to.mr.modify(None, None, place) }.unwrap();
    assert_eq!(send(&s, 9), WcStatus::Success);
    assert_eq!((s.to.read(0, 8), other.read(0, 8)), (vec![4; 8], vec![9; 8]));
    assert_eq!([send(&s, 8), send(&s, 7), send(&s, 6)], [WcStatus::Success; 3], "and cached again");
    assert_eq!((s.to.read(0, 8), other.read(0, 8)), (vec![4; 8], vec![6; 8]));
    // None at all.
    s.to = Buffer::new(&s.near_pd, 64, Access::LOCAL_WRITE);
    s.receive(sge);
    assert!(s.short(Setup::plain(Payload::Inline(&[5; 8]), None)));
    assert_eq!(completions(&s.cqs[1], 1)[0].status, WcStatus::LocProtErr);
    assert_eq!(other.read(0, 8), [6; 8]);
}
