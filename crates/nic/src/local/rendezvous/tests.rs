//! Invalid records: the receiver requests packets or drops the record, and continues.

use crate::link::{Link, TxBatch};
use crate::objects::{Cq, Pd, Qp, QpInit};
use crate::{Config, LinkChoice, MemoryRegion, Nic};
use ferroce_proto::qp::DropReason;
use ferroce_proto::verbs::{
    Access, AddressVector, AttrMask, Completion, Mtu, Payload, QpAttr, QpCap, QpState, RecvWr, SendFlags,
    SendOp, SendWr, Transport, WcStatus,
};
use ferroce_proto::wire::{RendezvousSend, SourcePiece, SourceRef};
use ferroce_proto::{PKey, Psn, Qpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

const LEN: u32 = 100_000;
const PACKETS: u32 = LEN.div_ceil(ferroce_proto::qp::LARGE_SEGMENT);
const PSN: Psn = Psn::new(0x1234);
/// An address at which nothing is ever mapped.
const NOWHERE: u64 = 0x1000;

/// A NIC with a queue pair and some memory.
struct End {
    nic: Nic,
    cq: Cq,
    qp: Qp,
    bytes: Arc<[AtomicU8]>,
    mr: MemoryRegion,
    pd: Arc<Pd>,
}

fn end(address: &str, link: LinkChoice) -> End {
    let addresses = Some(vec![address.parse().unwrap()]);
    let nic = Nic::open(Config { addresses, link, ..Config::default() }).unwrap();
    let pd: Arc<Pd> = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(64, None, 0).unwrap();
    let cap =
        QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 0 };
    let init =
        QpInit { transport: Transport::Rc, send_cq: &cq, recv_cq: &cq, srq: None, cap, signal_all: true };
    let qp = pd.create_qp(&init).unwrap();
    let bytes: Arc<[AtomicU8]> = (0..LEN).map(|n| AtomicU8::new((n % 251) as u8)).collect();
    let addr = bytes.as_ptr() as usize;
    let keep = Some(Arc::new(bytes.clone()) as Arc<_>);
    // SAFETY: the region holds the bytes until it is dropped, and they are only accessed atomically.
    let mr = unsafe { pd.register(addr, LEN as usize, addr as u64, Access::LOCAL_WRITE, keep) }.unwrap();
    End { nic, cq, qp, bytes, mr, pd }
}

fn connect(end: &End, peer: &End) {
    use AttrMask as M;
    let attr = QpAttr {
        port: 1,
        path_mtu: Mtu::B1024,
        dest_qpn: peer.qp.qpn(),
        rq_psn: PSN,
        sq_psn: PSN,
        min_rnr_timer: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        av: AddressVector { dgid: peer.nic.gids()[0].gid, port: 1, ..AddressVector::default() },
        ..QpAttr::default()
    };
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        end.qp.modify(&QpAttr { state, ..attr }, mask | M::STATE).unwrap();
    }
}

fn record(to: Qpn, psn: Psn, packets: u32, source: impl IntoIterator<Item = SourcePiece>) -> Vec<u8> {
    record_of(to, psn, packets, SourceRef::new(source).unwrap())
}

fn record_of(to: Qpn, psn: Psn, packets: u32, source: SourceRef) -> Vec<u8> {
    let head = RendezvousSend {
        dest_qpn: to,
        pkey: PKey::DEFAULT,
        psn,
        packets,
        solicited: false,
        reth: None,
        imm: None,
        piggybacked_ack: None,
    };
    let (bytes, len) = head.to_bytes(&source);
    bytes[..len].to_vec()
}

/// Sends bytes as if they came from the queue pair of `from`.
fn inject(from: &End, bytes: &[u8]) {
    inject_by(&*from.nic.inner().engine.link, from, bytes);
}

/// The same on another link.
fn inject_by(link: &dyn Link, from: &End, bytes: &[u8]) {
    let route = *from.qp.core.machine.lock().route();
    let mut batch = TxBatch::new();
    batch.reserve(&route, bytes.len()).copy_from_slice(bytes);
    link.send(&mut batch);
}

/// Polls, which drives the NIC, until something is true.
#[track_caller]
fn until(end: &End, what: &str, mut is_true: impl FnMut() -> bool) -> Vec<Completion> {
    let give_up = Instant::now() + Duration::from_secs(20);
    let mut all = Vec::new();
    while !is_true() {
        let mut some = [Completion::default(); 4];
        let n = end.cq.poll(&mut some).unwrap();
        all.extend_from_slice(&some[..n]);
        assert!(Instant::now() < give_up, "waited in vain until {what}: {:?}", end.nic.counters());
    }
    all
}

fn drops(end: &End, reason: DropReason) -> u64 {
    end.nic.counters().drops[reason.name()]
}

fn naks(end: &End) -> u64 {
    end.nic.counters().queue_pairs[0].naks_sent
}

fn post_recv(end: &End) {
    end.qp.post_recv(&[RecvWr { wr_id: 1, sges: &[end.mr.sge(0, LEN)] }]).unwrap();
}

/// A whole message from one end to the other, into the receive that is posted.
fn send(from: &End, to: &End) {
    to.bytes.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
    let sges = [from.mr.sge(0, LEN)];
    let (op, flags, payload) = (SendOp::Send, SendFlags::SIGNALED, Payload::Sges(&sges));
    from.qp.post_send(&[SendWr { wr_id: 2, op, flags, payload, ud: None, srq: None }]).unwrap();
    for (end, wr_id) in [(to, 1), (from, 2)] {
        let give_up = Instant::now() + Duration::from_secs(20);
        let mut one = [Completion::default()];
        while end.cq.poll(&mut one).unwrap() == 0 {
            // A poll drives only its own NIC, and the other one may have to send.
            [from, to].iter().for_each(|end| end.nic.inner().engine.drive_for_poller(false));
            assert!(Instant::now() < give_up, "no completion {wr_id}");
        }
        assert_eq!((one[0].wr_id, one[0].status), (wr_id, WcStatus::Success));
    }
    let is_same = from
        .bytes
        .iter()
        .zip(&*to.bytes)
        .all(|(a, b)| a.load(Ordering::Relaxed) == b.load(Ordering::Relaxed));
    assert!(is_same, "what came is what was sent");
}

#[test]
fn source_refs_that_lead_nowhere_are_asked_for_as_packets() {
    let [a, b] = ["127.43.1.1", "127.43.1.2"].map(|address| end(address, LinkChoice::Auto));
    connect(&a, &b);
    connect(&b, &a);
    post_recv(&b);
    for source in [
        vec![SourcePiece { addr: NOWHERE, len: LEN }],
        vec![
            SourcePiece { addr: a.bytes.as_ptr() as u64, len: LEN - 8 },
            SourcePiece { addr: NOWHERE, len: 8 },
        ],
        vec![SourcePiece { addr: u64::MAX - 4, len: LEN }],
    ] {
        let before = naks(&b);
        inject(&a, &record(b.qp.qpn(), PSN, PACKETS, source));
        assert_eq!(until(&b, "it refuses", || naks(&b) > before), []);
        assert!(!b.qp.core.fetches.load(Ordering::Relaxed), "no further rendezvous send shall be taken");
    }
    assert_eq!(b.qp.core.machine.lock().state(), QpState::Rts);
    send(&a, &b);
    assert_eq!(a.nic.counters().link.rendezvous_sends, 0, "the descriptor forbids it");
}

#[test]
fn records_that_cannot_be_are_dropped() {
    let [a, b, c] = ["127.43.2.1", "127.43.2.2", "127.43.2.1"].map(|address| end(address, LinkChoice::Auto));
    connect(&a, &b);
    connect(&b, &a);
    post_recv(&b);
    let good = [SourcePiece { addr: a.bytes.as_ptr() as u64, len: LEN }];
    let fitting = record(b.qp.qpn(), PSN, PACKETS, good);
    let mut empty = fitting.clone();
    let at = empty.len() - 4;
    empty[at..].fill(0);
    let mut huge = fitting.clone();
    huge[at..].fill(0xff);
    // The other NIC at its address pretends to be `a`.
    let [ring, ring_of_c] = [&a, &c].map(|end| &*end.nic.inner().engine.link);
    let by_udp = &*a.nic.inner().engine.wire;
    let malformed = [
        (ring, record(b.qp.qpn(), PSN, PACKETS + 1, good)),
        (ring, record(b.qp.qpn(), PSN, 0, good)),
        (ring, empty),
        (ring, huge),
        (ring, fitting[..at].to_vec()),
        (ring_of_c, fitting.clone()),
        (by_udp, fitting.clone()),
    ];
    for (number, (link, bytes)) in malformed.into_iter().enumerate() {
        let before = drops(&b, DropReason::Malformed);
        inject_by(link, &a, &bytes);
        let what = format!("record {number} is dropped");
        assert_eq!(until(&b, &what, || drops(&b, DropReason::Malformed) > before), []);
    }
    let (before, nobody) = (drops(&b, DropReason::NoSuchQp), Qpn::new(b.qp.qpn().value() ^ 1));
    inject(&a, &record(nobody, PSN, PACKETS, good));
    until(&b, "nobody is there", || drops(&b, DropReason::NoSuchQp) > before);
    // A record that comes too early is requested again. A repeated one is acknowledged.
    inject(&a, &record(b.qp.qpn(), PSN.plus(7), PACKETS, good));
    until(&b, "it asks for what is missing", || naks(&b) == 1);
    inject(&a, &record(b.qp.qpn(), PSN.minus(PACKETS), PACKETS, good));
    until(&b, "it knows that", || b.nic.counters().queue_pairs[0].duplicates == 1);
    send(&a, &b);
    assert_eq!(a.nic.counters().link.rendezvous_sends, 1);
}

#[test]
fn what_its_sender_gave_up_is_not_taken() {
    let [a, b] = ["127.43.3.1", "127.43.3.2"].map(|address| end(address, LinkChoice::Auto));
    connect(&a, &b);
    connect(&b, &a);
    post_recv(&b);
    let record = record(b.qp.qpn(), PSN, PACKETS, [SourcePiece { addr: a.bytes.as_ptr() as u64, len: LEN }]);
    a.qp.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    inject(&a, &record);
    assert_eq!(until(&b, "it refuses", || naks(&b) == 1), []);
}

/// New pages, registered for messages only.
fn pages(end: &End, fill: u8) -> (MemoryRegion, usize) {
    const PAGES: usize = 1 << 16;
    let (rights, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: fresh pages, which stay until the process ends. They are filled before any other code has their address.
    let at = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), PAGES, rights, how, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        std::ptr::write_bytes(at.cast::<u8>(), fill, PAGES);
        at as usize
    };
    // SAFETY: they stay.
    let mr = unsafe { end.pd.register(at, PAGES, at as u64, Access::LOCAL_WRITE, None) }.unwrap();
    (mr, at)
}

#[test]
fn what_can_be_mapped_is_read_there_and_nowhere_else() {
    const LEN: u32 = 40_000;
    let packets = LEN.div_ceil(ferroce_proto::qp::LARGE_SEGMENT);
    let [a, b] = ["127.43.4.1", "127.43.4.2"].map(|address| end(address, LinkChoice::Auto));
    connect(&a, &b);
    connect(&b, &a);
    let (mr, at) = pages(&a, 0x77);
    let fetched = || b.nic.counters().link.messages_fetched;
    let mut psn = PSN;
    let mut rendezvous_send = |addr: usize, rkey| {
        post_recv(&b);
        b.bytes.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        let source = SourceRef::new([SourcePiece { addr: addr as u64, len: LEN }]).unwrap().of_region(rkey);
        inject(&a, &record_of(b.qp.qpn(), psn, packets, source));
        psn = psn.plus(packets);
        let mut came = Vec::new();
        let give_up = Instant::now() + Duration::from_secs(20);
        while came.is_empty() {
            let mut one = [Completion::default()];
            let n = b.cq.poll(&mut one).unwrap();
            came.extend_from_slice(&one[..n]);
            assert!(Instant::now() < give_up, "nothing came");
        }
        assert_eq!((came[0].status, came[0].byte_len), (WcStatus::Success, LEN));
        b.bytes[..LEN as usize].iter().map(|byte| byte.load(Ordering::Relaxed)).collect::<Vec<_>>()
    };
    let (inside, outside) = (at + 100, a.bytes.as_ptr() as usize);
    let there: Vec<u8> = a.bytes[..LEN as usize].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    assert!(rendezvous_send(inside, mr.rkey()).iter().all(|&byte| byte == 0x77));
    assert_eq!(fetched(), 1);
    // Bytes outside the region, and a key of no region: the kernel reads them, as without a key.
    assert!(rendezvous_send(outside, mr.rkey()) == there);
    assert!(
        rendezvous_send(inside, ferroce_proto::RKey(mr.rkey().0 ^ 0x100)).iter().all(|&byte| byte == 0x77)
    );
    assert_eq!(fetched(), 1);
    // A region whose pages are private again.
    let old = mr.rkey();
    drop(mr);
    assert!(rendezvous_send(inside, old).iter().all(|&byte| byte == 0x77));
    assert_eq!(fetched(), 1);
    let (mr, at) = pages(&a, 0x78);
    assert!(rendezvous_send(at, mr.rkey()).iter().all(|&byte| byte == 0x78));
    assert_eq!(fetched(), 2);
}

/// A program may register memory for every message and send none of them to a local peer. After a while its pages are no longer moved.
#[test]
fn pages_that_nobody_fetches_from_are_moved_into_memfds_for_a_while() {
    let [a, b] = ["127.43.5.1", "127.43.5.2"].map(|address| end(address, LinkChoice::Auto));
    connect(&a, &b);
    connect(&b, &a);
    let backed = || {
        let (mr, at) = pages(&a, 1);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut lines = maps.lines().filter(|line| line.starts_with(&format!("{at:x}-")));
        let is_memfd = lines.any(|line| line.ends_with("/memfd:ferroce (deleted)"));
        (mr, is_memfd)
    };
    let (kept, is_memfd) = backed();
    assert!(is_memfd);
    // A region that messages are sent from does not count.
    post_recv(&b);
    let sges = [kept.sge(0, 40_000)];
    let (op, flags, payload) = (SendOp::Send, SendFlags::SIGNALED, Payload::Sges(&sges));
    a.qp.post_send(&[SendWr { wr_id: 2, op, flags, payload, ud: None, srq: None }]).unwrap();
    until(&b, "it is fetched", || b.nic.counters().link.messages_fetched == 1);
    drop(kept);
    let count = (0..40).filter(|_| backed().1).count();
    assert_eq!(count, 16);
}
