//! Memory regions beyond the plain one: null, device memory, on demand, registered anew.

mod objects_support;

use ferroce_nic::{Cq, Error, MAX_DM, MemoryRegion, Nic, Pd, Prefetch, Qp, QpInit};
use ferroce_proto::verbs::{
    Access, AtomicOp, FlushWhat, MemoryFault, QpState, RecvWr, SendOp, Sge, Transport, WcOpcode, WcStatus,
};
use ferroce_proto::wire::{
    Aeth, Bth, FlowAddrs, Headers, NakCode, Opcode, Operation, ROCE_UDP_PORT, Reth, Service, Syndrome, icrc,
};
use ferroce_proto::{Psn, Qpn, RKey};
use objects_support::{Buffer, CAP, completions, connect, connect_at, create, gid, open, pair, post};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

struct Setup {
    nic: Nic,
    pd: Arc<Pd>,
    cq: Cq,
    a: Qp,
    b: Qp,
    buffer: Buffer,
}

const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

fn setup(address: &str) -> Setup {
    let nic = open(address);
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(64, None, 0).unwrap();
    let (a, b) = pair(&nic, &pd, &cq, Transport::Rc);
    let buffer = Buffer::new(&pd, 8192, OPEN);
    buffer.fill(0, 4096, 9);
    Setup { nic, pd, cq, a, b, buffer }
}

impl Setup {
    fn reconnect(&mut self) {
        (self.a, self.b) = pair(&self.nic, &self.pd, &self.cq, Transport::Rc);
    }

    fn status(&self, op: SendOp, sge: Sge) -> WcStatus {
        post(&self.a, 1, op, &[sge]);
        completions(&self.cq, 1)[0].status
    }

    fn write(&self, addr: u64, rkey: RKey, len: u32) -> WcStatus {
        self.status(SendOp::Write { addr, rkey }, self.buffer.sge(0, len))
    }
}

/// Pages that the test maps and unmaps itself.
struct Pages {
    addr: usize,
    len: usize,
}

impl Pages {
    /// Maps pages at addresses that no other mapping takes once they are unmapped: the kernel prefers higher ones.
    fn map(len: usize) -> Pages {
        static NEXT: AtomicUsize = AtomicUsize::new(0x20_0000_0000);
        let addr = NEXT.fetch_add(len.next_multiple_of(4 << 20), Ordering::Relaxed);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: new pages, where nothing is mapped.
        let mapped = unsafe { libc::mmap(addr as *mut libc::c_void, len, rights, flags, -1, 0) };
        assert_eq!(mapped as usize, addr);
        Pages { addr, len }
    }

    /// Takes part of them away.
    fn unmap(&self, offset: usize, len: usize) {
        // SAFETY: pages of ours, which nothing of Rust lives in.
        assert_eq!(unsafe { libc::munmap((self.addr + offset) as *mut libc::c_void, len) }, 0);
    }

    fn protect(&self, rights: i32) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(self.addr as *mut libc::c_void, self.len, rights) }, 0);
    }

    fn at(&self, offset: usize) -> u8 {
        // SAFETY: the test asks only for bytes that it left mapped.
        unsafe { ((self.addr + offset) as *const u8).read_volatile() }
    }

    fn register(&self, pd: &Arc<Pd>, access: Access) -> Result<MemoryRegion, Error> {
        // SAFETY: on-demand regions promise nothing; the others are dropped before their pages.
        unsafe { pd.register(self.addr, self.len, self.addr as u64, access, None) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.unmap(0, self.len);
    }
}

#[test]
fn a_null_region_reads_zeros_and_swallows_writes() {
    let s = setup("127.91.3.1");
    let mut null = s.pd.alloc_null_region().unwrap();
    let nowhere = Sge { addr: 0xdead_beef_0000, len: 100, lkey: null.lkey() };
    assert_eq!(
        s.status(SendOp::Write { addr: s.buffer.addr(0), rkey: s.buffer.mr.rkey() }, nowhere),
        WcStatus::Success
    );
    assert_eq!((s.buffer.read(0, 100), s.buffer.read(100, 1)), (vec![0; 100], vec![9]));
    assert_eq!(
        s.status(SendOp::Read { addr: s.buffer.addr(100), rkey: s.buffer.mr.rkey() }, nowhere),
        WcStatus::Success
    );
    s.b.post_recv(&[RecvWr { wr_id: 7, sges: &[s.buffer.sge(4096, 8), nowhere] }]).unwrap();
    post(&s.a, 2, SendOp::Send, &[s.buffer.sge(100, 50)]);
    assert!(completions(&s.cq, 2).iter().all(|c| c.status == WcStatus::Success));
    assert_eq!(s.buffer.read(4096, 9), [9, 9, 9, 9, 9, 9, 9, 9, 0]);
    // SAFETY: refused.
    assert!(matches!(unsafe { null.modify(None, Some(OPEN), None) }, Err(Error::Invalid { .. })));
    assert_eq!(s.write(0, null.rkey(), 8), WcStatus::RemAccessErr, "not for peers");
}

/// A WRITE of the peer to such pages would raise SIGSEGV in this process.
#[test]
fn pages_that_are_read_only_get_no_right_to_write() {
    let mut s = setup("127.91.3.19");
    let pages = Pages::map(4096);
    pages.protect(libc::PROT_READ);
    let mut region = pages.register(&s.pd, Access::REMOTE_READ).unwrap();
    let (addr, rkey) = (pages.addr as u64, region.rkey());
    let refused = region.reregister(None, Some(OPEN));
    assert!(matches!(refused, Err(Error::Memory(MemoryFault::NotPresent { .. }))), "{refused:?}");
    // SAFETY: the pages outlive the region.
    let refused = unsafe { region.modify(None, Some(OPEN), None) };
    assert!(matches!(refused, Err(Error::Memory(MemoryFault::NotPresent { .. }))), "{refused:?}");
    assert_eq!((region.access(), region.rkey()), (Access::REMOTE_READ, rkey), "it is as it was");
    assert_eq!(s.write(addr, rkey, 100), WcStatus::RemAccessErr);
    s.reconnect();
    assert_eq!(s.status(SendOp::Read { addr, rkey }, s.buffer.sge(0, 100)), WcStatus::Success);
    pages.protect(libc::PROT_READ | libc::PROT_WRITE);
    region.reregister(None, Some(OPEN)).unwrap();
    assert_eq!(s.write(addr, region.rkey(), 100), WcStatus::Success);
    drop(region);
}

/// The slot of a deregistered region may belong to another one, which a late call must not change.
#[test]
fn a_deregistered_region_cannot_be_changed() {
    let s = setup("127.91.3.22");
    let (first, second) = (Pages::map(4096), Pages::map(4096));
    let mut gone = first.register(&s.pd, OPEN).unwrap();
    gone.deregister().unwrap();
    let other = second.register(&s.pd, OPEN).unwrap();
    // SAFETY: refused; the pages outlive the region.
    let (modified, moved) = unsafe {
        (
            gone.modify(None, Some(Access::LOCAL_WRITE), None),
            gone.retranslate(first.addr, first.len, first.addr as u64),
        )
    };
    for refused in [gone.reregister(None, Some(Access::LOCAL_WRITE)), modified, moved] {
        let text = refused.unwrap_err().to_string();
        assert_eq!(text, "mr: the region is deregistered already, so it cannot be changed");
    }
    assert_eq!(s.write(second.addr as u64, other.rkey(), 100), WcStatus::Success);
}

#[test]
fn modify_keeps_the_keys_and_changes_the_rest() {
    let mut s = setup("127.91.3.2");
    let (first, second) = (Pages::map(4096), Pages::map(8192));
    let mut region = first.register(&s.pd, OPEN).unwrap();
    let (lkey, rkey) = (region.lkey(), region.rkey());
    let addr = |pages: &Pages| pages.addr as u64;
    assert_eq!(s.write(addr(&first), rkey, 100), WcStatus::Success);
    // SAFETY: the pages outlive the region.
    unsafe {
        region.modify(None, Some(Access::LOCAL_WRITE), None).unwrap();
        assert_eq!(s.write(addr(&first), rkey, 100), WcStatus::RemAccessErr, "no right");
        s.reconnect();
        region.modify(None, Some(OPEN), Some((second.addr, second.len, addr(&second)))).unwrap();
        assert_eq!(s.write(addr(&second) + 5000, rkey, 100), WcStatus::Success);
        assert_eq!((second.at(5000), second.at(5100)), (9, 0));
        assert_eq!(s.write(addr(&first), rkey, 100), WcStatus::RemAccessErr, "moved away");
        s.reconnect();
        let other = s.nic.alloc_pd().unwrap();
        region.modify(Some(&other), None, None).unwrap();
        assert_eq!(region.pd().id(), other.id());
        assert_eq!(s.write(addr(&second), rkey, 100), WcStatus::RemAccessErr, "another domain");
        s.reconnect();
        region.modify(Some(&s.pd), None, None).unwrap();
        assert_eq!(s.write(addr(&second), rkey, 100), WcStatus::Success);
        let refused = region.modify(None, Some(Access::REMOTE_WRITE), None);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "needs LOCAL_WRITE");
        let nowhere = region.modify(None, None, Some((8, 4096, 8)));
        assert!(matches!(nowhere, Err(Error::Memory(MemoryFault::NotPresent { .. }))));
    }
    assert_eq!((region.lkey(), region.rkey()), (lkey, rkey));
    assert_eq!(s.write(addr(&second), rkey, 100), WcStatus::Success, "a refused call changes nothing");
    drop(region);
}

#[test]
fn memory_that_is_not_there_cannot_be_registered() {
    let s = setup("127.91.3.3");
    let pages = Pages::map(3 * 4096);
    pages.unmap(4096, 4096);
    let refused = pages.register(&s.pd, OPEN);
    assert!(matches!(refused, Err(Error::Memory(MemoryFault::NotPresent { .. }))));
    assert!(pages.register(&s.pd, OPEN | Access::ON_DEMAND).is_ok());

    let constant = Pages::map(2 * 4096);
    constant.protect(libc::PROT_READ);
    let refused = constant.register(&s.pd, OPEN);
    assert!(matches!(refused, Err(Error::Memory(MemoryFault::NotPresent { .. }))), "cannot be written");
    assert!(constant.register(&s.pd, Access::REMOTE_READ).is_ok());
}

#[test]
fn on_demand_pages_may_come_and_go() {
    let mut s = setup("127.91.3.4");
    let pages = Pages::map(4 * 4096);
    let region = pages.register(&s.pd, OPEN | Access::ON_DEMAND).unwrap();
    let at = |offset: u64| pages.addr as u64 + offset;
    let sge = |offset, len| Sge { addr: at(offset), len, lkey: region.lkey() };
    assert_eq!(s.write(at(0), region.rkey(), 3000), WcStatus::Success, "never touched before");
    assert_eq!((pages.at(2999), pages.at(3000)), (9, 0));
    let op = AtomicOp::FetchAdd { add: 1 };
    let atomic = |offset| SendOp::Atomic { addr: at(offset), rkey: region.rkey(), op };
    assert_eq!(s.status(atomic(8), s.buffer.sge(0, 8)), WcStatus::Success);
    assert_eq!(pages.at(8), 10);
    pages.unmap(4096, 2 * 4096);
    let read = |offset| SendOp::Read { addr: at(offset), rkey: region.rkey() };
    assert_eq!(s.status(read(0), s.buffer.sge(0, 4000)), WcStatus::Success);
    // Every way to touch what is gone: by the peer, and by our own requests.
    let rkey = s.buffer.mr.rkey();
    let there = s.buffer.addr(0);
    let cases = [
        (SendOp::Write { addr: at(4096), rkey: region.rkey() }, s.buffer.sge(0, 100), WcStatus::RemAccessErr),
        (SendOp::Write { addr: at(4000), rkey: region.rkey() }, s.buffer.sge(0, 200), WcStatus::RemAccessErr),
        (read(4096), s.buffer.sge(0, 100), WcStatus::RemAccessErr),
        (atomic(4096), s.buffer.sge(0, 8), WcStatus::RemAccessErr),
        (SendOp::Write { addr: there, rkey }, sge(4096, 100), WcStatus::LocProtErr),
        (SendOp::Read { addr: there, rkey }, sge(4096, 100), WcStatus::LocProtErr),
    ];
    for (op, sge, status) in cases {
        assert_eq!(s.status(op, sge), status, "{op:?}");
        s.reconnect();
    }
    s.b.post_recv(&[RecvWr { wr_id: 7, sges: &[sge(4096, 100)] }]).unwrap();
    post(&s.a, 2, SendOp::Send, &[s.buffer.sge(0, 50)]);
    let mut failed: Vec<_> = completions(&s.cq, 2).iter().map(|c| (c.wr_id, c.status)).collect();
    failed.sort_by_key(|f| f.0);
    assert_eq!(failed, [(2, WcStatus::RemOpErr), (7, WcStatus::LocProtErr)]);
    s.reconnect();
    pages.protect_last(libc::PROT_READ);
    assert_eq!(s.write(at(3 * 4096), region.rkey(), 10), WcStatus::RemAccessErr, "read-only now");
}

impl Pages {
    fn protect_last(&self, rights: i32) {
        let last = Pages { addr: self.addr + self.len - 4096, len: 4096 };
        last.protect(rights);
        std::mem::forget(last);
    }
}

#[test]
fn one_region_over_the_whole_address_space() {
    let s = setup("127.91.3.5");
    // SAFETY: an on-demand region promises nothing.
    let all = unsafe { s.pd.register(0, usize::MAX, 0, OPEN | Access::ON_DEMAND, None) }.unwrap();
    let later = Pages::map(4096);
    assert_eq!(s.write(later.addr as u64, all.rkey(), 100), WcStatus::Success);
    assert_eq!((later.at(99), later.at(100)), (9, 0));
    let sge = Sge { addr: later.addr as u64, len: 100, lkey: all.lkey() };
    s.pd.prefetch(&[sge], Prefetch::Write, true).unwrap();
    assert_eq!(s.write(64, all.rkey(), 100), WcStatus::RemAccessErr, "nothing is mapped there");
}

#[test]
fn prefetch_checks_what_it_is_asked_for() {
    let s = setup("127.91.3.6");
    let pages = Pages::map(2 * 4096);
    let region = pages.register(&s.pd, OPEN | Access::ON_DEMAND).unwrap();
    let read_only = pages.register(&s.pd, Access::ON_DEMAND).unwrap();
    let sge = |region: &MemoryRegion, len| Sge { addr: pages.addr as u64, len, lkey: region.lkey() };
    let ask = |sge, how, wait| match s.pd.prefetch(&[sge], how, wait) {
        Ok(()) => Ok(()),
        Err(Error::Memory(fault)) => Err(fault),
        Err(other) => panic!("{other}"),
    };
    for how in [Prefetch::Read, Prefetch::Write, Prefetch::NoFault] {
        for wait in [false, true] {
            assert_eq!(ask(sge(&region, 8192), how, wait), Ok(()));
        }
    }
    assert!(matches!(ask(sge(&region, 8193), Prefetch::Read, false), Err(MemoryFault::OutOfRange { .. })));
    assert!(matches!(ask(sge(&read_only, 8), Prefetch::Write, false), Err(MemoryFault::Denied { .. })));
    assert!(matches!(ask(s.buffer.sge(0, 8), Prefetch::Read, false), Err(MemoryFault::NotOnDemand { .. })));
    let stale = Sge { lkey: ferroce_proto::LKey(1), ..sge(&region, 8) };
    assert!(matches!(ask(stale, Prefetch::Read, false), Err(MemoryFault::NoSuchKey { .. })));
    let other = s.nic.alloc_pd().unwrap();
    let refused = other.prefetch(&[sge(&region, 8)], Prefetch::Read, false);
    assert!(matches!(refused, Err(Error::Memory(MemoryFault::WrongPd { .. }))));
    pages.unmap(4096, 4096);
    assert_eq!(ask(sge(&region, 8192), Prefetch::Read, false), Ok(()), "advice, nobody waits");
    assert!(matches!(ask(sge(&region, 8192), Prefetch::Read, true), Err(MemoryFault::NotPresent { .. })));
}

#[test]
fn device_memory_is_reached_by_copies_and_through_regions() {
    let s = setup("127.91.3.7");
    let memory = s.nic.alloc_device_memory(1000, 6).unwrap();
    memory.copy_to(4, &[5; 8]).unwrap();
    let mut out = [0; 16];
    memory.copy_from(0, &mut out).unwrap();
    assert_eq!(out, [0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 0, 0, 0, 0]);
    for (offset, len) in [(3, 4), (4, 3), (1004, 4), (0, 1004), (u64::MAX - 3, 4)] {
        let mut out = vec![0; len];
        assert!(memory.copy_from(offset, &mut out).is_err(), "{len} at {offset}");
        assert!(memory.copy_to(offset, &out).is_err(), "{len} at {offset}");
    }
    let zero_based = OPEN | Access::ZERO_BASED;
    let region = s.pd.register_device_memory(&memory, 96, 900, zero_based).unwrap();
    assert_eq!(s.write(32, region.rkey(), 100), WcStatus::Success);
    memory.copy_from(124, &mut out).unwrap();
    assert_eq!(
        out,
        [0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9],
        "offset 32 of the region is 128 of the memory"
    );
    let op = AtomicOp::FetchAdd { add: 1 };
    let at = SendOp::Atomic { addr: 32, rkey: region.rkey(), op };
    assert_eq!(
        s.status(at, s.buffer.sge(0, 8)),
        WcStatus::Success,
        "128 is a multiple of 8, as was asked for"
    );
    let sge = Sge { addr: 32, len: 8, lkey: region.lkey() };
    assert_eq!(
        s.status(SendOp::Write { addr: s.buffer.addr(0), rkey: s.buffer.mr.rkey() }, sge),
        WcStatus::Success
    );
    assert_eq!(s.buffer.read(0, 8), [10, 9, 9, 9, 9, 9, 9, 9]);
    let register = |offset, len, access| s.pd.register_device_memory(&memory, offset, len, access).map(drop);
    assert!(register(0, 0, zero_based).is_ok());
    assert!(register(0, 1001, zero_based).is_err() && register(1001, 0, zero_based).is_err());
    assert!(register(0, 10, OPEN).is_err(), "not zero-based");
    let (memory, error) = memory.free().unwrap_err();
    assert!(matches!(error, Error::Busy { .. }));
    drop(region);
    assert!(memory.free().is_ok());
}

#[test]
fn a_peer_stores_words_and_flushes() {
    let mut s = setup("127.91.3.9");
    let flushed = Buffer::new(&s.pd, 4096, OPEN | Access::FLUSH_GLOBAL);
    let (addr, rkey) = (flushed.addr(64), flushed.mr.rkey());
    post(&s.a, 1, SendOp::AtomicWrite { addr, rkey, value: [1, 2, 3, 4, 5, 6, 7, 8] }, &[]);
    let what = FlushWhat { global: true, ..FlushWhat::default() };
    post(&s.a, 2, SendOp::Flush { addr, rkey, len: 8, what }, &[]);
    let whole = FlushWhat { whole_region: true, ..what };
    post(&s.a, 3, SendOp::Flush { addr: 0, rkey, len: 0, what: whole }, &[]);
    let done: Vec<_> = completions(&s.cq, 3).iter().map(|c| (c.status, c.opcode)).collect();
    let ok = WcStatus::Success;
    assert_eq!(done, [(ok, WcOpcode::AtomicWrite), (ok, WcOpcode::Flush), (ok, WcOpcode::Flush)]);
    assert_eq!(flushed.read(63, 10), [0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
    let refused = [
        (SendOp::AtomicWrite { addr: addr + 4, rkey, value: [0; 8] }, WcStatus::RemInvReqErr),
        (SendOp::Flush { addr, rkey, len: 4096, what }, WcStatus::RemAccessErr),
        (
            SendOp::Flush { addr, rkey, len: 8, what: FlushWhat { persistent: true, ..what } },
            WcStatus::RemAccessErr,
        ),
        (
            SendOp::Flush { addr: s.buffer.addr(0), rkey: s.buffer.mr.rkey(), len: 8, what },
            WcStatus::RemAccessErr,
        ),
    ];
    for (op, status) in refused {
        s.reconnect();
        post(&s.a, 4, op, &[]);
        assert_eq!(completions(&s.cq, 1)[0].status, status, "{op:?}");
    }
}

#[test]
fn device_memory_is_finite() {
    let s = setup("127.91.3.8");
    assert!(matches!(s.nic.alloc_device_memory(MAX_DM + 1, 0), Err(Error::Limit { .. })));
    assert!(s.nic.alloc_device_memory(0, 0).is_err() && s.nic.alloc_device_memory(8, 31).is_err());
    let half = s.nic.alloc_device_memory(MAX_DM / 2, 12).unwrap();
    let rest = s.nic.alloc_device_memory(MAX_DM / 2, 0).unwrap();
    assert!(matches!(s.nic.alloc_device_memory(1, 0), Err(Error::Exhausted { .. })));
    drop((half, rest));
    assert!(s.nic.alloc_device_memory(MAX_DM, 0).is_ok());
}

/// A peer in another program, known by its packets only.
struct ForeignPeer {
    socket: UdpSocket,
    /// A READ request with PSN 0.
    request: Vec<u8>,
    nic: &'static str,
}

impl ForeignPeer {
    /// Connects a queue pair to it.
    fn connect(s: &Setup, nic: &'static str, peer: &str, region: &MemoryRegion, len: u32) -> (Self, Qp) {
        let qp = create(&s.pd, &s.cq, Transport::Rc);
        connect_at(gid(peer), &qp, Qpn::new(0x11));
        let bth = Bth {
            ack_req: true,
            ..Bth::new(Opcode::new(Service::Rc, Operation::ReadRequest), qp.qpn(), Psn::new(0))
        };
        let reth = Some(Reth { addr: region.addr() as u64, rkey: region.rkey(), len });
        let mut request = vec![0; Headers::MAX_LEN];
        let head_len = Headers { reth, ..Headers::new(bth) }.write(&mut request);
        request.truncate(head_len);
        request.extend(icrc(&FlowAddrs::new(gid(peer), gid(nic), ROCE_UDP_PORT), 0, &request));
        let socket = UdpSocket::bind((peer, ROCE_UDP_PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (ForeignPeer { socket, request, nic }, qp)
    }

    fn read(&self) {
        let sent = self.socket.send_to(&self.request, (self.nic, ROCE_UDP_PORT));
        assert_eq!(sent.unwrap(), self.request.len());
    }

    /// The operation and PSN of the next packet, and what follows its BTH.
    fn answer(&self) -> (Operation, u32, Vec<u8>) {
        let mut packet = vec![0; 2048];
        let len = self.socket.recv(&mut packet).unwrap();
        let bth = Bth::parse(&packet[..len]).unwrap();
        (bth.opcode.operation, bth.psn.value(), packet[Bth::LEN..len].to_vec())
    }

    /// The operations and PSNs of the next `count` packets.
    fn answers(&self, count: u32) -> Vec<(Operation, u32)> {
        (0..count).map(|_| self.answer()).map(|(operation, psn, _)| (operation, psn)).collect()
    }
}

/// The middle of a response leaves as a run of packets. It ends at the first packet that cannot be read, and the NAK has that packet's PSN.
#[test]
fn a_hole_in_the_middle_of_a_read_response() {
    use Operation::{Acknowledge, ReadResponseFirst as First, ReadResponseMiddle as Middle};
    let s = setup("127.91.3.15");
    let pages = Pages::map(4 * 4096);
    let region = pages.register(&s.pd, OPEN | Access::ON_DEMAND).unwrap();
    let (peer, _qp) = ForeignPeer::connect(&s, "127.91.3.15", "127.91.3.16", &region, 4 * 4096);
    pages.unmap(2 * 4096, 4096);
    peer.read();
    let data = (0..8).map(|psn| (if psn == 0 { First } else { Middle }, psn));
    assert_eq!(peer.answers(8), data.collect::<Vec<_>>());
    let (operation, psn, rest) = peer.answer();
    assert_eq!((operation, psn), (Acknowledge, 8));
    assert_eq!(Aeth::parse(&rest).unwrap().syndrome, Syndrome::Nak(NakCode::RemoteAccess));
}

/// The peer has the data and says so to the program, which unmaps the memory before it deregisters it, as UCX does. A late repetition of the READ
/// request must not end the process.
#[test]
fn a_repeated_read_finds_its_memory_unmapped() {
    let s = setup("127.91.3.13");
    let pages = Pages::map(4 * 4096);
    let region = pages.register(&s.pd, OPEN).unwrap();
    let (peer, qp) = ForeignPeer::connect(&s, "127.91.3.13", "127.91.3.14", &region, 4 * 4096);
    let mut whole = Vec::new();
    for _ in 0..2 {
        peer.read();
        whole = peer.answers(16);
        assert_eq!(whole[15], (Operation::ReadResponseLast, 15), "the data, also of a repeated request");
    }
    for (hole, left) in [(2 * 4096, 8), (0, 0)] {
        let dropped = s.nic.counters().drops["stale_duplicate"];
        pages.unmap(hole, 4096);
        peer.read();
        assert_eq!(peer.answers(left), whole[..left as usize]);
        let give_up = Instant::now() + Duration::from_secs(20);
        while s.nic.counters().drops["stale_duplicate"] == dropped {
            assert!(Instant::now() < give_up, "the repeated request was not noticed");
            std::thread::yield_now();
        }
    }
    assert_eq!(qp.query().state, QpState::Rts);
}

/// Programs register empty buffers, and name them in operations that move nothing.
#[test]
fn a_region_of_no_bytes_serves_operations_of_no_bytes() {
    let mut s = setup("127.91.3.20");
    let page = Pages::map(4096);
    for addr in [page.addr, page.addr + 100] {
        // SAFETY: nothing is registered.
        let empty = unsafe { s.pd.register(addr, 0, addr as u64, OPEN, None) }.unwrap();
        let nothing = empty.sge(0, 0);
        let (addr, rkey) = (addr as u64, empty.rkey());
        s.b.post_recv(&[RecvWr { wr_id: 7, sges: &[nothing] }]).unwrap();
        post(&s.a, 1, SendOp::Send, &[nothing]);
        assert!(completions(&s.cq, 2).iter().all(|c| c.status == WcStatus::Success));
        assert_eq!(s.status(SendOp::Write { addr, rkey }, nothing), WcStatus::Success);
        assert_eq!(s.status(SendOp::Read { addr, rkey }, nothing), WcStatus::Success);
        assert_eq!(s.write(addr, rkey, 1), WcStatus::RemAccessErr, "it has no byte");
        s.reconnect();
    }
}

/// The memory of receives belongs to the domain of their queue, that of WRITEs to the domain of the queue pair.
#[test]
fn a_queue_pair_uses_a_shared_receive_queue_of_another_domain() {
    let nic = open("127.91.3.21");
    let (pd, other) = (nic.alloc_pd().unwrap(), nic.alloc_pd().unwrap());
    let cq = nic.create_cq(64, None, 0).unwrap();
    let srq = other.create_srq(4, 1).unwrap();
    let init = QpInit {
        transport: Transport::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: Some(&srq),
        cap: CAP,
        signal_all: false,
    };
    let connected = || {
        let (a, b) = (create(&pd, &cq, Transport::Rc), pd.create_qp(&init).unwrap());
        connect(&nic, &a, b.qpn());
        connect(&nic, &b, a.qpn());
        (a, b)
    };
    let (from, to) = (Buffer::new(&pd, 64, OPEN), Buffer::new(&other, 64, OPEN));
    from.fill(0, 64, 5);
    let (a, _b) = connected();
    srq.post_recv(&[RecvWr { wr_id: 7, sges: &[to.sge(0, 64)] }]).unwrap();
    post(&a, 1, SendOp::Send, &[from.sge(0, 64)]);
    assert!(completions(&cq, 2).iter().all(|c| c.status == WcStatus::Success));
    assert_eq!(to.read(0, 64), vec![5; 64]);
    post(&a, 2, SendOp::Write { addr: to.addr(0), rkey: to.mr.rkey() }, &[from.sge(0, 8)]);
    assert_eq!(completions(&cq, 1)[0].status, WcStatus::RemAccessErr, "not the queue pair's domain");
    let (a, _b) = connected();
    srq.post_recv(&[RecvWr { wr_id: 8, sges: &[from.sge(0, 64)] }]).unwrap();
    post(&a, 3, SendOp::Send, &[from.sge(0, 64)]);
    let failed = completions(&cq, 2);
    let of = |wr_id| failed.iter().find(|c| c.wr_id == wr_id).unwrap().status;
    assert_eq!((of(8), of(3)), (WcStatus::LocProtErr, WcStatus::RemOpErr), "not the receive queue's domain");
}
