//! One-sided operations of unreliable and of extended reliable connections, done directly in the memory of a local peer: that they are, that they do what
//! packets do, and that whatever is out of order is left to packets.

mod objects_support;

use ferroce_nic::{Cq, Nic, Pd, Qp, Srq, XrcDomain};
use ferroce_proto::verbs::{
    Access, AtomicOp, AttrMask, Completion, QpAttr, QpState, RecvWr, SendOp, Transport, WcOpcode, WcStatus,
};
use ferroce_proto::{RKey, Srqn};
use objects_support::{Buffer, completions, connect, create, open, post_to};
use std::sync::Arc;
use std::time::{Duration, Instant};

const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// An unreliable and an extended reliable connection from one NIC to another.
struct Setup {
    near: Nic,
    far: Nic,
    near_pd: Arc<Pd>,
    far_pd: Arc<Pd>,
    cq: Cq,
    far_cq: Cq,
    domain: Arc<XrcDomain>,
    srq: Srq,
    uc: [Qp; 2],
    xrc: [Qp; 2],
    from: Buffer,
    to: Buffer,
}

fn setup(addresses: [&str; 2]) -> Setup {
    let [near, far] = addresses.map(open);
    let [near_pd, far_pd] = [&near, &far].map(|nic| nic.alloc_pd().unwrap());
    let [cq, far_cq] = [&near, &far].map(|nic| nic.create_cq(64, None, 0).unwrap());
    let uc = [create(&near_pd, &cq, Transport::Uc), create(&far_pd, &far_cq, Transport::Uc)];
    let domain = far.alloc_xrc_domain().unwrap();
    let srq = far_pd.create_xrc_srq(16, 2, &domain, &far_cq).unwrap();
    let xrc = [create(&near_pd, &cq, Transport::XrcIni), domain.create_target(&far).unwrap()];
    for [near_end, far_end] in [&uc, &xrc] {
        connect(&far, near_end, far_end.qpn());
        connect(&near, far_end, near_end.qpn());
    }
    let from = Buffer::new(&near_pd, 4096, Access::LOCAL_WRITE);
    let to = Buffer::new(&far_pd, 5 * 4096, OPEN);
    Setup { near, far, near_pd, far_pd, cq, far_cq, domain, srq, uc, xrc, from, to }
}

/// The operations, and what they leave at the target and bring back.
fn operations(addr: u64, rkey: RKey) -> [(SendOp, WcOpcode); 4] {
    let swap = AtomicOp::CompareSwap { compare: u64::from_ne_bytes([5; 8]), swap: 40 };
    [
        (SendOp::Write { addr, rkey }, WcOpcode::RdmaWrite),
        (SendOp::Read { addr, rkey }, WcOpcode::RdmaRead),
        (SendOp::Atomic { addr, rkey, op: swap }, WcOpcode::CompSwap),
        (SendOp::Atomic { addr, rkey, op: AtomicOp::FetchAdd { add: 2 } }, WcOpcode::FetchAdd),
    ]
}

fn has_fabric() -> bool {
    !std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp")
}

impl Setup {
    /// An address of `to` whose page is the region's alone, so that it is mapped.
    fn page(&self) -> u64 {
        self.to.addr(0).next_multiple_of(4096)
    }

    /// What became of eight bytes, and whether it was done directly.
    #[track_caller]
    fn outcome(&self, qp: &Qp, op: SendOp, srq: Option<Srqn>) -> (Completion, bool) {
        let (performed, mapped) = (qp.counters().performed, self.near.counters().link.direct_mapped);
        post_to(qp, 7, op, &[self.from.sge(0, 8)], srq);
        let completion = completions(&self.cq, 1)[0];
        let performed = qp.counters().performed - performed;
        assert_eq!(self.near.counters().link.direct_mapped - mapped, performed);
        (completion, performed == 1)
    }

    fn write(&self, qp: &Qp, srq: Option<Srqn>) -> (WcStatus, bool) {
        let op = SendOp::Write { addr: self.page(), rkey: self.to.mr.rkey() };
        let (completion, is_direct) = self.outcome(qp, op, srq);
        (completion.status, is_direct)
    }

    /// Another extended connection instead of one that has failed.
    fn reconnect(&mut self) {
        self.xrc = [
            create(&self.near_pd, &self.cq, Transport::XrcIni),
            self.domain.create_target(&self.far).unwrap(),
        ];
        connect(&self.far, &self.xrc[0], self.xrc[1].qpn());
        connect(&self.near, &self.xrc[1], self.xrc[0].qpn());
    }

    /// Packets that the target dropped for this reason.
    fn drops(&self, reason: &str) -> u64 {
        self.far.counters().drops[reason]
    }
}

#[track_caller]
fn wait_until(mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn direct_and_by_packets_are_the_same() {
    let s = setup(["127.91.8.1", "127.91.8.2"]);
    // On-demand memory is never accessed directly.
    let slow = Buffer::new(&s.far_pd, 8192, OPEN | Access::ON_DEMAND);
    let slow_at = slow.addr(0).next_multiple_of(4096);
    let mut seen = Vec::new();
    for (buffer, addr) in [(&s.to, s.page()), (&slow, slow_at)] {
        let offset = (addr - buffer.addr(0)) as usize;
        s.from.fill(0, 8, 5);
        for (op, opcode) in operations(addr, buffer.mr.rkey()) {
            let (completion, is_direct) = s.outcome(&s.xrc[0], op, s.srq.number());
            assert_eq!(is_direct, has_fabric() && std::ptr::eq(buffer, &s.to), "{opcode:?}");
            assert_eq!((completion.status, completion.opcode), (WcStatus::Success, opcode));
            seen.push((completion, buffer.read(offset, 8), s.from.read(0, 8)));
        }
        s.from.fill(0, 8, 6);
        let op = SendOp::Write { addr, rkey: buffer.mr.rkey() };
        let (completion, is_direct) = s.outcome(&s.uc[0], op, None);
        // What an unreliable connection sent it has done.
        wait_until(|| buffer.read(offset, 8) == [6; 8]);
        assert_eq!(is_direct, has_fabric() && std::ptr::eq(buffer, &s.to));
        seen.push((completion, buffer.read(offset, 8), s.from.read(0, 8)));
    }
    let by_packets = seen.split_off(5);
    assert_eq!(seen, by_packets);
}

#[test]
fn what_is_wrong_with_an_extended_request_the_target_finds() {
    let mut s = setup(["127.91.8.3", "127.91.8.4"]);
    let number = s.srq.number();
    assert_eq!(s.write(&s.xrc[0], number), (WcStatus::Success, has_fabric()));
    // A queue of another protection domain: it is that one that counts.
    let other_pd = s.far.alloc_pd().unwrap();
    let other_srq = other_pd.create_xrc_srq(4, 1, &s.domain, &s.far_cq).unwrap();
    let its = Buffer::new(&other_pd, 3 * 4096, OPEN);
    let (addr, rkey) = (its.addr(0).next_multiple_of(4096), its.mr.rkey());
    let at_its = SendOp::Write { addr, rkey };
    let (completion, is_direct) = s.outcome(&s.xrc[0], at_its, other_srq.number());
    assert_eq!((completion.status, is_direct), (WcStatus::Success, has_fabric()));
    // One of another XRC domain.
    let elsewhere = s.far.alloc_xrc_domain().unwrap();
    let strange_srq = s.far_pd.create_xrc_srq(4, 1, &elsewhere, &s.far_cq).unwrap();
    let closed = Buffer::new(&s.far_pd, 3 * 4096, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let to = SendOp::Write { addr: s.page(), rkey: s.to.mr.rkey() };
    let refused = [
        (to, other_srq.number(), WcStatus::RemAccessErr, "a region of another domain than the queue's"),
        (at_its, number, WcStatus::RemAccessErr, "the other way round"),
        (to, strange_srq.number(), WcStatus::RemInvReqErr, "a queue of another XRC domain"),
        (to, Some(Srqn::new(0xff_ffff)), WcStatus::RemInvReqErr, "no such queue"),
        (
            SendOp::Write { addr: s.page(), rkey: RKey(s.to.mr.rkey().0 ^ 1) },
            number,
            WcStatus::RemAccessErr,
            "no such key",
        ),
        (
            SendOp::Write { addr: closed.addr(4096), rkey: closed.mr.rkey() },
            number,
            WcStatus::RemAccessErr,
            "no right",
        ),
    ];
    s.from.fill(0, 8, 99);
    let before = (s.to.read(0, 5 * 4096), its.read(0, 3 * 4096), closed.read(0, 3 * 4096));
    for (op, srq, status, why) in refused {
        let (completion, is_direct) = s.outcome(&s.xrc[0], op, srq);
        assert_eq!((completion.status, is_direct), (status, false), "{why}");
        s.reconnect();
    }
    assert_eq!((s.to.read(0, 5 * 4096), its.read(0, 3 * 4096), closed.read(0, 3 * 4096)), before);
    assert_eq!(s.write(&s.xrc[0], number), (WcStatus::Success, has_fabric()));
    // Gone.
    drop(std::mem::replace(&mut s.srq, other_srq));
    assert_eq!(s.write(&s.xrc[0], number), (WcStatus::RemInvReqErr, false));
}

#[test]
fn what_is_wrong_with_an_unreliable_write_is_dropped_in_silence() {
    let s = setup(["127.91.8.5", "127.91.8.6"]);
    assert_eq!(s.write(&s.uc[0], None), (WcStatus::Success, has_fabric()));
    let before = (s.to.read(0, 5 * 4096), s.drops("access_denied"));
    s.from.fill(0, 8, 99);
    let wrong = SendOp::Write { addr: s.page(), rkey: RKey(s.to.mr.rkey().0 ^ 1) };
    let (completion, is_direct) = s.outcome(&s.uc[0], wrong, None);
    assert_eq!((completion.status, is_direct), (WcStatus::Success, false));
    wait_until(|| s.drops("access_denied") == before.1 + 1);
    assert_eq!(s.to.read(0, 5 * 4096), before.0);
    // That packet is done with, so the next request need not be one. It may take the target a moment to say so.
    if has_fabric() {
        wait_until(|| s.write(&s.uc[0], None).1);
    }
    // In a state that does not receive.
    s.uc[1].modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    let dropped = s.drops("wrong_state");
    assert_eq!(s.write(&s.uc[0], None), (WcStatus::Success, false));
    wait_until(|| s.drops("wrong_state") > dropped);
}

#[test]
fn a_connection_of_another_service_drops_it() {
    let s = setup(["127.91.8.7", "127.91.8.8"]);
    let reliable = create(&s.far_pd, &s.far_cq, Transport::Rc);
    let unreliable = create(&s.near_pd, &s.cq, Transport::Uc);
    connect(&s.far, &unreliable, reliable.qpn());
    connect(&s.near, &reliable, unreliable.qpn());
    s.from.fill(0, 8, 99);
    assert_eq!(s.write(&unreliable, None), (WcStatus::Success, false));
    wait_until(|| s.drops("wrong_transport") == 1);
    assert_eq!(s.to.read(0, 5 * 4096), vec![0; 5 * 4096]);
}

#[test]
fn no_read_is_done_where_none_may_be_outstanding() {
    let s = setup(["127.91.8.9", "127.91.8.10"]);
    let none = QpAttr { max_dest_rd_atomic: 0, ..s.xrc[1].query() };
    let masks = [
        (QpState::Reset, AttrMask::empty()),
        (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS),
        (
            QpState::Rtr,
            AttrMask::AV
                | AttrMask::PATH_MTU
                | AttrMask::DEST_QPN
                | AttrMask::RQ_PSN
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::MIN_RNR_TIMER,
        ),
        (QpState::Rts, AttrMask::SQ_PSN | AttrMask::TIMEOUT),
    ];
    for (state, mask) in masks {
        s.xrc[1].modify(&QpAttr { state, ..none }, mask | AttrMask::STATE).unwrap();
    }
    assert_eq!(s.write(&s.xrc[0], s.srq.number()), (WcStatus::Success, has_fabric()));
    let read = SendOp::Read { addr: s.page(), rkey: s.to.mr.rkey() };
    let (completion, is_direct) = s.outcome(&s.xrc[0], read, s.srq.number());
    assert_eq!((completion.status, is_direct), (WcStatus::RemInvReqErr, false));
}

/// A message and a write behind it: the write is there when the message has been taken, whichever way they went.
#[test]
fn a_write_does_not_overtake_a_message() {
    let s = setup(["127.91.8.11", "127.91.8.12"]);
    for round in 1..=200_u8 {
        let inbox = s.to.sge(4 * 4096 + 8, 8);
        s.uc[1].post_recv(&[RecvWr { wr_id: 1, sges: &[inbox] }]).unwrap();
        s.from.fill(0, 8, round);
        post_to(&s.uc[0], 1, SendOp::Send, &[s.from.sge(0, 8)], None);
        let op = SendOp::Write { addr: s.page(), rkey: s.to.mr.rkey() };
        post_to(&s.uc[0], 2, op, &[s.from.sge(0, 8)], None);
        let at = (s.page() - s.to.addr(0)) as usize;
        wait_until(|| s.to.read(at, 8) == [round; 8]);
        assert_eq!(s.to.read(4 * 4096 + 8, 8), [round; 8], "the message was sent before");
        assert!(completions(&s.cq, 2).iter().all(|c| c.status == WcStatus::Success));
        completions(&s.far_cq, 1);
    }
}
