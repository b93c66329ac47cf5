//! Memory windows of a real NIC: what they open, to whom, and how they are closed again.

mod objects_support;

use ferroce_nic::{Cq, Error, MemoryWindow, Nic, Pd, Qp, WindowType, next_rkey};
use ferroce_proto::RKey;
use ferroce_proto::verbs::{
    Access, AtomicOp, MwBind, Payload, RecvWr, SendFlags, SendOp, SendWr, Transport, WcFlags, WcOpcode,
    WcStatus,
};
use objects_support::{Buffer, completions, connect, create, open, pair, post};
use std::sync::Arc;

/// Queue pairs `a` (who uses the window) and `b` (who binds it), memory of each, all in one domain.
struct Setup {
    nic: Nic,
    pd: Arc<Pd>,
    cq: Cq,
    a: Qp,
    b: Qp,
    from: Buffer,
    to: Buffer,
}

fn setup(address: &str) -> Setup {
    let nic = open(address);
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(64, None, 0).unwrap();
    let (a, b) = pair(&nic, &pd, &cq, Transport::Rc);
    let from = Buffer::new(&pd, 4096, Access::LOCAL_WRITE);
    from.fill(0, 4096, 9);
    let to = Buffer::new(&pd, 4096, Access::LOCAL_WRITE | Access::MW_BIND);
    Setup { nic, pd, cq, a, b, from, to }
}

impl Setup {
    /// A fresh pair, for after the old one failed.
    fn reconnect(&mut self) {
        (self.a, self.b) = pair(&self.nic, &self.pd, &self.cq, Transport::Rc);
    }

    fn bind_status(&self, bind: MwBind) -> WcStatus {
        post(&self.b, 1, SendOp::BindMw(bind), &[]);
        let done = completions(&self.cq, 1)[0];
        assert!(done.status != WcStatus::Success || done.opcode == WcOpcode::BindMw);
        done.status
    }

    /// Binds bytes 1000..2000 of `to` to a window of type 2, for everything.
    fn bind_two(&self, window: &MemoryWindow) -> RKey {
        let rkey = next_rkey(window.rkey());
        let bind = window.bind(rkey, &self.to.mr, self.to.addr(1000), 1000, Access::REMOTE);
        assert_eq!(self.bind_status(bind), WcStatus::Success);
        assert_eq!(window.rkey(), rkey);
        rkey
    }

    fn write_status(&self, addr: u64, rkey: RKey, len: u32) -> WcStatus {
        post(&self.a, 2, SendOp::Write { addr, rkey }, &[self.from.sge(0, len)]);
        completions(&self.cq, 1)[0].status
    }
}

#[test]
fn a_bound_window_opens_its_bytes_and_no_others() {
    let mut s = setup("127.91.2.1");
    let window = s.pd.alloc_window(WindowType::Two).unwrap();
    let rkey = s.bind_two(&window);
    assert_eq!(s.write_status(s.to.addr(1000), rkey, 1000), WcStatus::Success);
    post(&s.a, 3, SendOp::Read { addr: s.to.addr(1500), rkey }, &[s.from.sge(0, 100)]);
    let op = AtomicOp::FetchAdd { add: 1 };
    post(&s.a, 4, SendOp::Atomic { addr: s.to.addr(1000), rkey, op }, &[s.from.sge(8, 8)]);
    assert!(completions(&s.cq, 2).iter().all(|c| c.status == WcStatus::Success));
    assert_eq!(s.to.read(1000, 1), [10], "the atomic went through too");
    assert!(s.to.read(0, 1000).iter().chain(&s.to.read(2000, 2096)).all(|b| *b == 0));
    assert_eq!(s.write_status(s.to.addr(999), rkey, 10), WcStatus::RemAccessErr);
    s.reconnect();
    assert_eq!(
        s.write_status(s.to.addr(1000), s.to.mr.rkey(), 10),
        WcStatus::RemAccessErr,
        "the region is shut"
    );
}

#[test]
fn a_zero_based_window_counts_from_its_first_byte_and_grants_what_it_says() {
    let mut s = setup("127.91.2.2");
    let window = s.pd.alloc_window(WindowType::Two).unwrap();
    let rkey = next_rkey(window.rkey());
    let access = Access::REMOTE_WRITE | Access::ZERO_BASED;
    let bind = window.bind(rkey, &s.to.mr, s.to.addr(100), 50, access);
    assert_eq!(s.bind_status(bind), WcStatus::Success);
    assert_eq!(s.write_status(0, rkey, 50), WcStatus::Success);
    assert_eq!((s.to.read(100, 50), s.to.read(150, 1)), (vec![9; 50], vec![0]));
    post(&s.a, 3, SendOp::Read { addr: 0, rkey }, &[s.from.sge(0, 10)]);
    assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::RemAccessErr, "it may be written only");
    s.reconnect();
    assert_eq!(s.write_status(1, rkey, 50), WcStatus::RemAccessErr);
}

#[test]
fn a_window_of_type_2_is_open_to_its_queue_pair_only() {
    let mut s = setup("127.91.2.3");
    let window = s.pd.alloc_window(WindowType::Two).unwrap();
    let rkey = s.bind_two(&window);
    let (c, d) = pair(&s.nic, &s.pd, &s.cq, Transport::Rc);
    post(&c, 3, SendOp::Write { addr: s.to.addr(1000), rkey }, &[s.from.sge(0, 10)]);
    assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::RemAccessErr);
    assert_eq!(s.nic.counters().refusals["wrong_qp"], 1);
    drop((c, d));
    let (c, d) = pair(&s.nic, &s.pd, &s.cq, Transport::Rc);
    post(&d, 4, SendOp::LocalInv(rkey), &[]);
    assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::LocQpOpErr, "nor may another one close it");
    drop((c, d));
    assert_eq!(s.write_status(s.to.addr(1000), rkey, 10), WcStatus::Success);
    s.reconnect();
}

#[test]
fn windows_of_type_2_are_closed_by_invalidation() {
    let mut s = setup("127.91.2.4");
    let window = s.pd.alloc_window(WindowType::Two).unwrap();
    let first = s.bind_two(&window);
    let again = window.bind(next_rkey(first), &s.to.mr, s.to.addr(0), 10, Access::REMOTE);
    post(&s.b, 5, SendOp::LocalInv(first), &[]);
    let done = completions(&s.cq, 1)[0];
    assert_eq!((done.status, done.opcode), (WcStatus::Success, WcOpcode::LocalInv));
    assert_eq!(s.write_status(s.to.addr(1000), first, 10), WcStatus::RemAccessErr);
    s.reconnect();
    assert_eq!(s.bind_status(again), WcStatus::Success, "and can be bound again");
    // The peer closes it.
    s.b.post_recv(&[RecvWr { wr_id: 70, sges: &[] }]).unwrap();
    post(&s.a, 6, SendOp::SendInv(again.rkey), &[]);
    let done = completions(&s.cq, 2);
    let got = done.iter().find(|c| c.wr_id == 70).unwrap();
    assert_eq!((got.status, got.flags, got.invalidated), (WcStatus::Success, WcFlags::WITH_INV, again.rkey));
    assert_eq!(s.write_status(s.to.addr(0), again.rkey, 10), WcStatus::RemAccessErr);
    s.reconnect();
    // One that is closed cannot be closed again.
    post(&s.b, 7, SendOp::LocalInv(again.rkey), &[]);
    assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::LocQpOpErr);
}

#[test]
fn a_bind_that_may_not_be_fails() {
    let mut s = setup("127.91.2.5");
    let window = s.pd.alloc_window(WindowType::Two).unwrap();
    let (rkey, at) = (next_rkey(window.rkey()), s.to.addr(0));
    let good = window.bind(rkey, &s.to.mr, at, 10, Access::REMOTE);
    let no_bind = Buffer::new(&s.pd, 64, Access::LOCAL_WRITE);
    let read_only = Buffer::new(&s.pd, 64, Access::MW_BIND);
    let other_pd = s.nic.alloc_pd().unwrap();
    let foreign = Buffer::new(&other_pd, 64, Access::LOCAL_WRITE | Access::MW_BIND);
    let foreign_window = other_pd.alloc_window(WindowType::Two).unwrap();
    let over = |b: &Buffer| window.bind(rkey, &b.mr, b.addr(0), 10, Access::REMOTE);
    let cases = [
        ("no MW_BIND", over(&no_bind)),
        ("no LOCAL_WRITE", over(&read_only)),
        ("another domain's region", over(&foreign)),
        ("another domain's window", MwBind { window: foreign_window.number(), ..good }),
        ("past the end", MwBind { len: 4097, ..good }),
        ("no bytes", MwBind { len: 0, ..good }),
        ("no window", MwBind { window: u32::MAX, ..good }),
    ];
    for (what, bind) in cases {
        assert_eq!(s.bind_status(bind), WcStatus::MwBindErr, "{what}");
        s.reconnect();
    }
    let read_only = window.bind(rkey, &read_only.mr, read_only.addr(0), 10, Access::REMOTE_READ);
    assert_eq!(s.bind_status(read_only), WcStatus::Success, "reading needs no LOCAL_WRITE");
    assert_eq!(s.bind_status(good), WcStatus::MwBindErr, "bound already");
}

/// Programs derive the new key from any key at hand, such as the region's.
#[test]
fn a_bind_takes_the_low_eight_bits_of_the_key() {
    let s = setup("127.91.2.12");
    let window = s.pd.alloc_window(WindowType::Two).unwrap();
    let RKey(before) = window.rkey();
    let given = RKey(!before & !0xff | 0x5a);
    let bind = window.bind(given, &s.to.mr, s.to.addr(0), 10, Access::REMOTE);
    assert_eq!(s.bind_status(bind), WcStatus::Success);
    assert_eq!(window.rkey(), RKey(before & !0xff | 0x5a));
    assert_eq!(s.write_status(s.to.addr(0), window.rkey(), 10), WcStatus::Success);
    assert_eq!(s.write_status(s.to.addr(0), given, 10), WcStatus::RemAccessErr);
}

#[test]
fn windows_of_type_1_are_bound_by_the_verb() {
    let mut s = setup("127.91.2.6");
    let window = s.pd.alloc_window(WindowType::One).unwrap();
    let bind = |s: &Setup, old, addr, len| {
        let access = if len == 0 { Access::empty() } else { Access::REMOTE_WRITE };
        let made = s.b.bind_window(5, SendFlags::SIGNALED, &window, old, Some(&s.to.mr), addr, len, access);
        made.inspect(|_| assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::Success))
    };
    let first = bind(&s, window.rkey(), s.to.addr(0), 100).unwrap();
    assert_eq!(s.write_status(s.to.addr(0), first, 100), WcStatus::Success);
    // Open to every queue pair of the domain.
    let (c, d) = pair(&s.nic, &s.pd, &s.cq, Transport::Uc);
    post(&c, 3, SendOp::Write { addr: s.to.addr(0), rkey: first }, &[s.from.sge(0, 10)]);
    assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::Success);
    drop((c, d));
    let second = bind(&s, first, s.to.addr(200), 100).unwrap();
    assert_ne!(first, second);
    assert_eq!(s.write_status(s.to.addr(200), second, 100), WcStatus::Success, "bound anew, without closing");
    assert_eq!(s.write_status(s.to.addr(0), first, 10), WcStatus::RemAccessErr, "the old key is no good");
    s.reconnect();
    post(&s.b, 6, SendOp::LocalInv(second), &[]);
    assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::LocQpOpErr, "not this type");
    s.reconnect();
    let third = bind(&s, second, s.to.addr(0), 0).unwrap();
    assert_eq!(s.to.mr.bound_windows(), 0);
    for key in [second, third] {
        assert_eq!(s.write_status(s.to.addr(200), key, 10), WcStatus::RemAccessErr);
        s.reconnect();
    }
    let two = s.pd.alloc_window(WindowType::Two).unwrap();
    let refused = |w, addr, len, access| {
        let made = s.b.bind_window(5, SendFlags::SIGNALED, w, two.rkey(), Some(&s.to.mr), addr, len, access);
        matches!(made, Err(Error::Invalid { .. }))
    };
    assert!(refused(&two, s.to.addr(0), 10, Access::REMOTE_READ), "type 2");
    assert!(refused(&window, s.to.addr(4000), 97, Access::REMOTE_READ), "past the end");
    assert!(refused(&window, s.to.addr(0), 10, Access::MW_BIND), "no right of a window");
}

#[test]
fn a_region_is_busy_while_windows_are_bound_to_it() {
    let s = setup("127.91.2.7");
    let Setup { pd, cq, b, from, to, .. } = s;
    let window = pd.alloc_window(WindowType::Two).unwrap();
    let rkey = next_rkey(window.rkey());
    post(&b, 1, SendOp::BindMw(window.bind(rkey, &to.mr, to.addr(0), 10, Access::REMOTE)), &[]);
    completions(&cq, 1);
    let (addr, Buffer { mut mr, .. }) = (to.addr(0), to);
    assert!(matches!(mr.reregister(None, Some(Access::LOCAL_WRITE)), Err(Error::Busy { .. })));
    let error = mr.deregister().unwrap_err();
    assert!(matches!(error, Error::Busy { .. }));
    assert_eq!(error.to_string(), "the memory region is still in use by 1 memory window");
    assert_eq!(mr.bound_windows(), 1);
    drop(window);
    assert_eq!(mr.bound_windows(), 0);
    assert!(mr.deregister().is_ok());
    let (a, b) = pair(&s.nic, &pd, &cq, Transport::Rc);
    post(&a, 2, SendOp::Write { addr, rkey }, &[from.sge(0, 4)]);
    assert_eq!(completions(&cq, 1)[0].status, WcStatus::RemAccessErr);
    drop((a, b));
}

/// A program that is torn down in the wrong order must not leave a door open to freed memory.
#[test]
fn dropping_a_region_closes_its_windows() {
    let s = setup("127.91.2.8");
    let window = s.pd.alloc_window(WindowType::Two).unwrap();
    let rkey = s.bind_two(&window);
    let addr = s.to.addr(1000);
    let Setup { to, a, cq, from, .. } = s;
    drop(to);
    post(&a, 2, SendOp::Write { addr, rkey }, &[from.sge(0, 4)]);
    assert_eq!(completions(&cq, 1)[0].status, WcStatus::RemAccessErr);
}

#[test]
fn bind_and_the_send_that_tells_of_it_go_out_together() {
    let s = setup("127.91.2.9");
    for transport in [Transport::Rc, Transport::Uc] {
        let (a, b) = (create(&s.pd, &s.cq, transport), create(&s.pd, &s.cq, transport));
        connect(&s.nic, &a, b.qpn());
        connect(&s.nic, &b, a.qpn());
        let window = s.pd.alloc_window(WindowType::Two).unwrap();
        let bind = window.bind(next_rkey(window.rkey()), &s.to.mr, s.to.addr(0), 10, Access::REMOTE);
        a.post_recv(&[RecvWr { wr_id: 9, sges: &[s.from.sge(0, 4)] }]).unwrap();
        let key = bind.rkey.0.to_ne_bytes();
        let wr = |op, flags, payload| SendWr { wr_id: 1, op, flags, payload, ud: None, srq: None };
        // An unsignalled SEND before it must not hold the bind up.
        a.post_recv(&[RecvWr { wr_id: 10, sges: &[s.from.sge(8, 4)] }]).unwrap();
        b.post_send(&[
            wr(SendOp::Send, SendFlags::INLINE, Payload::Inline(b"1234")),
            wr(SendOp::BindMw(bind), SendFlags::empty(), Payload::Sges(&[])),
            wr(SendOp::Send, SendFlags::SIGNALED | SendFlags::INLINE, Payload::Inline(&key)),
        ])
        .unwrap();
        let done = completions(&s.cq, 3);
        assert!(done.iter().all(|c| c.status == WcStatus::Success), "{done:?}");
        assert_eq!(s.from.read(8, 4), key);
        post(&a, 3, SendOp::Write { addr: s.to.addr(0), rkey: bind.rkey }, &[s.from.sge(0, 4)]);
        assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::Success);
        post(&b, 4, SendOp::LocalInv(bind.rkey), &[]);
        assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::Success);
    }
}

/// As [`Setup`], but the one that uses the window is a local peer of the one that binds it, and there is more memory.
fn local_peers(address: [&str; 2]) -> (Setup, Nic, Cq) {
    let [near, far] = address.map(open);
    let (near_pd, pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
    let (near_cq, cq) = (near.create_cq(64, None, 0).unwrap(), far.create_cq(64, None, 0).unwrap());
    let (a, b) = (create(&near_pd, &near_cq, Transport::Rc), create(&pd, &cq, Transport::Rc));
    connect(&far, &a, b.qpn());
    connect(&near, &b, a.qpn());
    let from = Buffer::new(&near_pd, 4096, Access::LOCAL_WRITE);
    from.fill(0, 4096, 9);
    let to = Buffer::new(&pd, 5 * 4096, Access::LOCAL_WRITE | Access::MW_BIND);
    (Setup { nic: far, pd, cq, a, b, from, to }, near, near_cq)
}

/// Operations that a local peer did by itself, in memory that it has mapped.
fn mapped(nic: &Nic) -> u64 {
    nic.counters().link.direct_mapped
}

fn has_fabric() -> bool {
    !std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp")
}

#[test]
fn local_peers_reach_through_windows_by_themselves() {
    let (s, near, near_cq) = local_peers(["127.91.2.20", "127.91.2.21"]);
    let done = || completions(&near_cq, 1)[0].status;
    let page = s.to.addr(0).next_multiple_of(4096);
    let write = |rkey, addr, len| {
        post(&s.a, 2, SendOp::Write { addr, rkey }, &[s.from.sge(0, len)]);
        done()
    };
    let window = s.pd.alloc_window(WindowType::Two).unwrap();
    let mut rkey = window.rkey();
    for round in 0..3 {
        rkey = next_rkey(rkey);
        let bind = window.bind(rkey, &s.to.mr, page, 4096, Access::REMOTE);
        assert_eq!(s.bind_status(bind), WcStatus::Success);
        let before = mapped(&near);
        assert_eq!(write(rkey, page + 100, 1000), WcStatus::Success);
        let op = AtomicOp::FetchAdd { add: 1 };
        post(&s.a, 3, SendOp::Atomic { addr: page, rkey, op }, &[s.from.sge(0, 8)]);
        assert_eq!(done(), WcStatus::Success);
        post(&s.a, 4, SendOp::Read { addr: page, rkey }, &[s.from.sge(0, 8)]);
        assert_eq!(done(), WcStatus::Success);
        assert_eq!(s.from.read(0, 1), [round + 1]);
        assert_eq!(mapped(&near) - before, if has_fabric() { 3 } else { 0 });
        post(&s.b, 5, SendOp::LocalInv(rkey), &[]);
        assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::Success);
    }
    assert_eq!(write(rkey, page + 100, 10), WcStatus::RemAccessErr, "it is closed");
}

#[test]
fn a_window_of_type_2_is_open_to_the_local_peer_of_its_queue_pair_only() {
    let (s, near, near_cq) = local_peers(["127.91.2.22", "127.91.2.23"]);
    let window = s.pd.alloc_window(WindowType::Two).unwrap();
    let rkey = s.bind_two(&window);
    let (c, d) = (create(s.from.mr.pd(), &near_cq, Transport::Rc), create(&s.pd, &s.cq, Transport::Rc));
    connect(&s.nic, &c, d.qpn());
    connect(&near, &d, c.qpn());
    post(&c, 3, SendOp::Write { addr: s.to.addr(1000), rkey }, &[s.from.sge(0, 10)]);
    assert_eq!(completions(&near_cq, 1)[0].status, WcStatus::RemAccessErr);
    assert_eq!(s.nic.counters().refusals["wrong_qp"], 1);
}

/// Once a window is closed, nobody writes there any more, and the local peer that tries is refused.
#[test]
fn a_closed_window_is_closed_to_local_peers_under_way() {
    for round in 0..20 {
        let (s, _near, near_cq) = local_peers(["127.91.2.24", "127.91.2.25"]);
        let window = s.pd.alloc_window(WindowType::Two).unwrap();
        let rkey = next_rkey(window.rkey());
        let page = s.to.addr(0).next_multiple_of(4096);
        let bind = window.bind(rkey, &s.to.mr, page, 8192, Access::REMOTE);
        assert_eq!(s.bind_status(bind), WcStatus::Success);
        let begun = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                loop {
                    post(&s.a, 2, SendOp::Write { addr: page, rkey }, &[s.from.sge(0, 4096)]);
                    match completions(&near_cq, 1)[0].status {
                        WcStatus::Success => begun.store(true, std::sync::atomic::Ordering::Relaxed),
                        end => return end,
                    }
                }
            });
            while !begun.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::yield_now();
            }
            post(&s.b, 5, SendOp::LocalInv(rkey), &[]);
            assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::Success);
            let at = (page - s.to.addr(0)) as usize;
            s.to.fill(at, 4096, round);
            assert_eq!(writer.join().unwrap(), WcStatus::RemAccessErr);
            assert!(s.to.read(at, 4096).iter().all(|byte| *byte == round), "somebody wrote");
        });
    }
}
