//! The direct path of a WRITE in one piece to a local peer: that it is used, that it has the same effects as packets, and that it declines
//! where anything is out of order. Regions are used cached there, which ends with the region.

mod objects_support;

use ferroce_nic::{Cq, MemoryRegion, Nic, Pd, Qp, WindowType, next_rkey};
use ferroce_proto::RKey;
use ferroce_proto::verbs::{
    Access, AttrMask, Completion, Payload, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge,
    Transport, WcOpcode, WcStatus,
};
use objects_support::{Buffer, CAP, completions, connect, create, open, post};
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// Queue pair `a` of one NIC, who writes, and `b` of another.
struct Setup {
    near: Nic,
    far: Nic,
    near_pd: Arc<Pd>,
    far_pd: Arc<Pd>,
    cq: Cq,
    a: Qp,
    b: Qp,
    from: Buffer,
    to: Buffer,
}

fn setup(addresses: [&str; 2]) -> Setup {
    let [near, far] = addresses.map(open);
    let [near_pd, far_pd] = [&near, &far].map(|nic| nic.alloc_pd().unwrap());
    let [cq, far_cq] = [&near, &far].map(|nic| nic.create_cq(64, None, 0).unwrap());
    let (a, b) = (create(&near_pd, &cq, Transport::Rc), create(&far_pd, &far_cq, Transport::Rc));
    connect(&far, &a, b.qpn());
    connect(&near, &b, a.qpn());
    let from = Buffer::new(&near_pd, 4096, Access::LOCAL_WRITE);
    from.fill(0, 4096, 9);
    let to = Buffer::new(&far_pd, 5 * 4096, OPEN);
    Setup { near, far, near_pd, far_pd, cq, a, b, from, to }
}

fn write<'a>(addr: u64, rkey: RKey, payload: Payload<'a>) -> SendWr<'a> {
    let (op, flags) = (SendOp::Write { addr, rkey }, SendFlags::SIGNALED);
    SendWr { wr_id: 7, op, flags, payload, ud: None, srq: None }
}

fn has_fabric() -> bool {
    !std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp")
}

impl Setup {
    /// An address of `to` whose page is the region's alone, so that it is mapped.
    fn page(&self) -> u64 {
        self.to.addr(0).next_multiple_of(4096)
    }

    fn at(&self, addr: u64, len: usize) -> Vec<u8> {
        self.to.read((addr - self.to.addr(0)) as usize, len)
    }

    fn try_direct(&self, addr: u64, rkey: RKey, data: Payload<'_>) -> bool {
        self.a.post_send_each(|posting| posting.try_post(&write(addr, rkey, data)).is_done()).unwrap()
    }

    /// On the direct path only.
    fn write_direct(&self, sge: Sge) -> bool {
        self.try_direct(self.page(), self.to.mr.rkey(), Payload::Sges(from_ref(&sge)))
    }

    /// On any path.
    fn status(&self, sge: Sge) -> WcStatus {
        post(&self.a, 1, SendOp::Write { addr: self.page(), rkey: self.to.mr.rkey() }, &[sge]);
        completions(&self.cq, 1)[0].status
    }

    /// Writes until the direct path is open.
    #[track_caller]
    fn warm_up(&self, sge: Sge) {
        for _ in 0..2 {
            assert_eq!(self.status(sge), WcStatus::Success);
        }
        assert!(self.write_direct(sge), "nothing prevents it");
        assert_eq!(completions(&self.cq, 1)[0].status, WcStatus::Success);
    }

    fn reconnect(&mut self) {
        let cq = self.far.create_cq(64, None, 0).unwrap();
        self.a = create(&self.near_pd, &self.cq, Transport::Rc);
        self.b = create(&self.far_pd, &cq, Transport::Rc);
        connect(&self.far, &self.a, self.b.qpn());
        connect(&self.near, &self.b, self.a.qpn());
    }
}

#[test]
fn both_paths_do_the_same() {
    if !has_fabric() {
        return println!("SKIPPED: over UDP nothing is written directly");
    }
    let s = setup(["127.91.7.1", "127.91.7.2"]);
    let (sge, addr, rkey) = (s.from.sge(100, 8), s.page(), s.to.mr.rkey());
    s.warm_up(sge);
    let mapped = || s.near.counters().link.direct_mapped;
    let mut seen = Vec::new();
    for long in [true, false] {
        s.from.fill(100, 8, 50 + u8::from(long));
        let (before, performed) = (mapped(), s.a.counters().performed);
        let wr = write(addr, rkey, Payload::Sges(from_ref(&sge)));
        match long {
            true => s.a.post_send_each(|posting| posting.post(|| wr)).unwrap().unwrap(),
            false => assert!(s.write_direct(sge)),
        }
        assert_eq!(s.at(addr, 8), [50 + u8::from(long); 8], "there before the call returns");
        assert_eq!((mapped() - before, s.a.counters().performed - performed), (1, 1));
        seen.push(completions(&s.cq, 1)[0]);
    }
    assert_eq!(seen[0], seen[1]);
    let expected =
        Completion { wr_id: 7, opcode: WcOpcode::RdmaWrite, qpn: s.a.qpn(), ..Completion::default() };
    assert_eq!(seen[0], expected);
    // Inline data needs no region; without the flag there is no completion.
    assert!(s.try_direct(addr + 8, rkey, Payload::Inline(&[3; 20])));
    assert_eq!(s.at(addr + 8, 21)[19..], [3, 0]);
    assert_eq!(completions(&s.cq, 1)[0], expected);
    let data = Payload::Inline(&[4]);
    let quiet = SendWr { flags: SendFlags::empty(), ..write(addr, rkey, data) };
    assert!(s.a.post_send_each(|posting| posting.try_post(&quiet).is_done()).unwrap());
    assert_eq!((s.at(addr, 1), s.cq.poll(&mut [Completion::default()]).unwrap()), (vec![4], 0));
}

#[test]
fn the_direct_path_declines_what_is_out_of_order() {
    if !has_fabric() {
        return println!("SKIPPED: over UDP nothing is written directly");
    }
    let mut s = setup(["127.91.7.3", "127.91.7.4"]);
    let (addr, rkey, end) = (s.page(), s.to.mr.rkey(), s.to.addr(5 * 4096));
    s.warm_up(s.from.sge(0, 8));
    let closed = Buffer::new(&s.far_pd, 4096, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let strange = Buffer::new(&s.far.alloc_pd().unwrap(), 4096, OPEN);
    let refused = [
        (addr, RKey(rkey.0 ^ 1), s.from.sge(0, 8), "no such key"),
        (end - 4, rkey, s.from.sge(0, 8), "beyond the target"),
        (s.to.addr(0) - 1, rkey, s.from.sge(0, 8), "before it"),
        (u64::MAX - 3, rkey, s.from.sge(0, 8), "around the end of all addresses"),
        (closed.addr(0), closed.mr.rkey(), s.from.sge(0, 8), "no right to write"),
        (strange.addr(0), strange.mr.rkey(), s.from.sge(0, 8), "another domain"),
        (addr, rkey, s.from.sge(4092, 8), "beyond the source"),
        (addr, rkey, s.from.sge(0, 0), "nothing"),
    ];
    let before = (s.to.read(0, 5 * 4096), s.near.counters().link.direct_mapped);
    for (addr, rkey, sge, why) in refused {
        assert!(!s.try_direct(addr, rkey, Payload::Sges(&[sge])), "{why}");
    }
    assert!(!s.try_direct(addr, rkey, Payload::Sges(&[])));
    assert!(!s.try_direct(addr, rkey, Payload::Inline(&[1; CAP.max_inline_data as usize + 1])));
    assert_eq!((s.to.read(0, 5 * 4096), s.near.counters().link.direct_mapped), before);
    assert_eq!(s.cq.poll(&mut [Completion::default()]).unwrap(), 0);
    s.warm_up(s.from.sge(0, 8));
    // The two ends of the connection.
    s.a.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    assert!(!s.write_direct(s.from.sge(0, 8)), "it is in ERR");
    s.reconnect();
    s.warm_up(s.from.sge(0, 8));
    s.b.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    assert!(!s.write_direct(s.from.sge(0, 8)), "the peer is in ERR");
}

#[test]
fn nothing_is_overtaken() {
    if !has_fabric() {
        return println!("SKIPPED: over UDP nothing is written directly");
    }
    let s = setup(["127.91.7.5", "127.91.7.6"]);
    s.warm_up(s.from.sge(0, 8));
    // No receive is posted: the message stays under way.
    post(&s.a, 1, SendOp::Send, &[s.from.sge(0, 8)]);
    assert!(!s.write_direct(s.from.sge(0, 8)), "a message is under way");
    assert!(!s.try_direct(s.page(), s.to.mr.rkey(), Payload::Inline(&[1])));
}

#[test]
fn a_cached_region_ends_with_its_region() {
    if !has_fabric() {
        return println!("SKIPPED: over UDP nothing is written directly");
    }
    let mut s = setup(["127.91.7.7", "127.91.7.8"]);
    let sge = s.from.sge(0, 8);
    s.warm_up(sge);
    // Other bytes under the same keys.
    let moved: Arc<[u8]> = Arc::from([77_u8; 64]);
    let place = Some((moved.as_ptr() as usize, 64, s.from.mr.iova()));
    // SAFETY: the bytes outlive the region, and nobody writes to them.
    unsafe { s.from.mr.modify(None, None, place) }.unwrap();
    assert!(s.write_direct(sge));
    assert_eq!(s.at(s.page(), 8), [77; 8], "no byte from where the region was");
    completions(&s.cq, 1);
    s.warm_up(sge);
    assert!(!s.write_direct(Sge { len: 65, ..sge }), "it is shorter now");
    // New keys.
    s.from.mr.reregister(None, Some(Access::LOCAL_WRITE)).unwrap();
    assert!(!s.write_direct(sge));
    s.warm_up(s.from.sge(0, 8));
    // Windows keep it where it is.
    let mut bound = Buffer::new(&s.near_pd, 4096, Access::LOCAL_WRITE | Access::MW_BIND);
    let window = s.near_pd.alloc_window(WindowType::Two).unwrap();
    let bind = window.bind(next_rkey(window.rkey()), &bound.mr, bound.addr(0), 4096, Access::REMOTE);
    post(&s.a, 2, SendOp::BindMw(bind), &[]);
    assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::Success);
    s.warm_up(bound.sge(0, 8));
    assert!(bound.mr.deregister().is_err());
    s.warm_up(bound.sge(0, 8));
    // And gone.
    let sge = s.from.sge(0, 8);
    s.warm_up(sge);
    s.from.mr.deregister().unwrap();
    assert!(!s.write_direct(sge));
    assert_eq!(s.status(sge), WcStatus::LocProtErr);
}

#[test]
fn the_targets_region_may_change() {
    if !has_fabric() {
        return println!("SKIPPED: over UDP nothing is written directly");
    }
    let mut s = setup(["127.91.7.9", "127.91.7.10"]);
    let sge = s.from.sge(0, 8);
    s.warm_up(sge);
    let all = Some((s.to.mr.addr(), s.to.mr.len(), s.to.mr.iova()));
    let first = Some((s.to.mr.addr(), 8, s.to.mr.iova()));
    // SAFETY: the same bytes, or the first of them.
    unsafe { s.to.mr.modify(None, None, first) }.unwrap();
    assert!(!s.write_direct(sge), "it is shorter now");
    // SAFETY: as above.
    unsafe { s.to.mr.modify(None, None, all) }.unwrap();
    s.warm_up(sge);
    s.to.mr.deregister().unwrap();
    assert!(!s.write_direct(sge));
    assert_eq!(s.status(sge), WcStatus::RemAccessErr);
}

/// Once a region is deregistered, nobody reads it any more: what the program writes there afterwards never arrives. Long, so that a copy is
/// nearly always under way.
#[test]
fn deregistration_waits_for_the_owner_of_the_cache() {
    const LONG: usize = 4 << 20;
    let mut s = setup(["127.91.7.11", "127.91.7.12"]);
    s.to = Buffer::new(&s.far_pd, LONG + 2 * 4096, OPEN);
    for _ in 0..20 {
        let from = Buffer::new(&s.near_pd, LONG, Access::LOCAL_WRITE);
        from.fill(0, LONG, 1);
        let Buffer { bytes, mut mr } = from;
        let sge = mr.sge(0, LONG as u32);
        let under_way = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0.. {
                    if s.status(sge) != WcStatus::Success {
                        break;
                    }
                    under_way.store(round > 3, Ordering::Relaxed);
                }
            });
            while !under_way.load(Ordering::Relaxed) && !writer.is_finished() {
                std::thread::yield_now();
            }
            MemoryRegion::deregister(&mut mr).unwrap();
            // From the end: a copy under way is nearer the beginning.
            bytes.iter().rev().for_each(|byte| byte.store(2, Ordering::Relaxed));
            writer.join().unwrap();
        });
        assert!(s.at(s.page(), LONG).iter().all(|byte| *byte == 1), "bytes from after deregistration");
        s.reconnect();
    }
}

/// A WRITE with immediate that is one packet of the path MTU takes a receive, which completes with the error (IBA 11.6.2). The first packet of
/// a longer one is refused before a receive is taken. Both links do the same, although a ring carries larger packets.
#[test]
fn an_invalid_key_and_an_immediate_leave_receives_alike_on_both_links() {
    let [near, far] = ["127.91.4.40", "127.91.4.41"].map(open);
    let [near_pd, far_pd] = [&near, &far].map(|nic| nic.alloc_pd().unwrap());
    let [cq, far_cq] = [&near, &far].map(|nic| nic.create_cq(64, None, 0).unwrap());
    let from = Buffer::new(&near_pd, 4096, Access::LOCAL_WRITE);
    let statuses = |len| {
        let (a, b) = (create(&near_pd, &cq, Transport::Rc), create(&far_pd, &far_cq, Transport::Rc));
        connect(&far, &a, b.qpn());
        connect(&near, &b, a.qpn());
        b.post_recv(&[1, 2].map(|wr_id| RecvWr { wr_id, sges: &[] })).unwrap();
        post(&a, 1, SendOp::WriteImm { addr: 0, rkey: RKey(77), imm: 5 }, &[from.sge(0, len)]);
        assert_eq!(completions(&cq, 1)[0].status, WcStatus::RemAccessErr);
        let received = completions(&far_cq, 2);
        [received[0].status, received[1].status]
    };
    assert_eq!(statuses(1024), [WcStatus::LocAccessErr, WcStatus::WrFlushErr]);
    assert_eq!(statuses(1025), [WcStatus::WrFlushErr; 2]);
}
