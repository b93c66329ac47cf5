//! Short messages over UDP: which of them take the fast path, and that all of them arrive.

use crate::engine::drive::Driver;
use crate::objects::{Cq, Qp, QpInit};
use crate::{Config, LinkChoice, MemoryRegion, Nic};
use ferroce_proto::verbs::{
    Access, AddressVector, AttrMask, Completion, Mtu, Payload, QpAttr, QpCap, QpState, RecvWr, SendFlags,
    SendOp, SendWr, Sge, Transport, WcOpcode, WcStatus,
};
use ferroce_proto::{LKey, Qpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

const LEN: usize = 4096;
/// Received bytes are stored from this offset on.
const RECV_AT: usize = 2048;

/// A NIC with two queue pairs that talk to each other, and memory whose byte n is n modulo 251.
struct Pair {
    nic: Nic,
    cq: Cq,
    near: Qp,
    far: Qp,
    bytes: Arc<[AtomicU8]>,
    mr: MemoryRegion,
}

fn pair(address: &str) -> Pair {
    let addresses = Some(vec![address.parse().unwrap()]);
    let nic = Nic::open(Config { addresses, link: LinkChoice::Udp, ..Config::default() }).unwrap();
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(64, None, 0).unwrap();
    let cap =
        QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
    let init =
        QpInit { transport: Transport::Rc, send_cq: &cq, recv_cq: &cq, srq: None, cap, signal_all: true };
    let (near, far) = (pd.create_qp(&init).unwrap(), pd.create_qp(&init).unwrap());
    connect(&nic, &near, far.qpn());
    connect(&nic, &far, near.qpn());
    let bytes: Arc<[AtomicU8]> = (0..LEN).map(|n| AtomicU8::new((n % 251) as u8)).collect();
    let addr = bytes.as_ptr() as usize;
    let keep = Some(Arc::new(bytes.clone()) as Arc<_>);
    // SAFETY: the region holds the bytes until it is dropped, and they are only accessed atomically.
    let mr = unsafe { pd.register(addr, LEN, addr as u64, Access::LOCAL_WRITE | Access::REMOTE_WRITE, keep) };
    let mr = mr.unwrap();
    Pair { nic, cq, near, far, bytes, mr }
}

fn connect(nic: &Nic, qp: &Qp, to: Qpn) {
    use AttrMask as M;
    let attr = QpAttr {
        port: 1,
        access: Access::REMOTE_WRITE,
        path_mtu: Mtu::B1024,
        dest_qpn: to,
        min_rnr_timer: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        av: AddressVector { dgid: nic.gids()[0].gid, port: 1, ..AddressVector::default() },
        ..QpAttr::default()
    };
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        qp.modify(&QpAttr { state, ..attr }, mask | M::STATE).unwrap();
    }
}

impl Pair {
    /// Whether a message took the fast path since the queue pair was modified.
    fn took_fast_path(&self) -> bool {
        let _held = self.near.core.machine.lock();
        // SAFETY: the lock is held, and this test has no other reference to the field.
        unsafe { self.near.core.short.get() }.has_tx_cache()
    }

    fn send(&self, payloads: &[Payload<'_>]) {
        let wrs: Vec<SendWr<'_>> = payloads
            .iter()
            .enumerate()
            .map(|(n, &payload)| SendWr {
                wr_id: n as u64,
                op: SendOp::Send,
                flags: SendFlags::empty(),
                payload,
                ud: None,
                srq: None,
            })
            .collect();
        self.near.post_send(&wrs).unwrap();
    }

    /// Posts receives for `count` messages of 512 bytes each.
    fn expect(&self, count: usize) {
        for n in 0..count {
            let sges = [self.mr.sge(RECV_AT + n * 512, 512)];
            self.far.post_recv(&[RecvWr { wr_id: 100 + n as u64, sges: &sges }]).unwrap();
        }
    }

    fn completions_of_any_kind(&self, count: usize) -> Vec<Completion> {
        let give_up = Instant::now() + Duration::from_secs(20);
        let mut all = Vec::new();
        while all.len() < count {
            let mut some = [Completion::default(); 8];
            let n = self.cq.poll(&mut some).unwrap();
            all.extend_from_slice(&some[..n]);
            assert!(Instant::now() < give_up, "{all:?}");
        }
        all
    }

    /// The completions of one side, in order.
    fn completions(&self, count: usize, opcode: WcOpcode) -> Vec<Completion> {
        let mut all = self.completions_of_any_kind(2 * count);
        all.retain(|c| c.opcode == opcode && c.status == WcStatus::Success);
        all
    }

    fn arrived(&self, n: usize, len: usize) -> Vec<u8> {
        let at = RECV_AT + n * 512;
        self.bytes[at..at + len].iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    /// Writes 8 bytes from one of the queue pairs to the memory of the other.
    fn write(&self, from: &Qp) {
        let op = SendOp::Write { addr: self.mr.sge(RECV_AT, 8).addr, rkey: self.mr.rkey() };
        let (flags, payload) = (SendFlags::empty(), Payload::Sges(&[self.mr.sge(0, 8)]));
        from.post_send(&[SendWr { wr_id: 0, op, flags, payload, ud: None, srq: None }]).unwrap();
    }

    /// System calls and packets sent so far.
    fn sent(&self) -> (u64, u64) {
        let link = self.nic.counters().link;
        (link.tx_calls, link.tx_packets)
    }
}

fn expected(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|n| (n % 251) as u8).collect()
}

#[test]
fn one_short_message_takes_the_fast_path() {
    let pair = pair("127.49.1.1");
    for (len, inline) in [(8, false), (8, true), (5, false), (0, false), (200, false)] {
        pair.expect(1);
        let before = pair.sent();
        let sges = [pair.mr.sge(len, len as u32)];
        let bytes = expected(len, len);
        pair.send(&[if inline { Payload::Inline(&bytes) } else { Payload::Sges(&sges) }]);
        assert!(pair.took_fast_path(), "{len} bytes");
        let received = pair.completions(1, WcOpcode::Recv);
        assert_eq!((received[0].byte_len as usize, received[0].wr_id), (len, 100));
        assert_eq!(pair.arrived(0, len), bytes);
        // The acknowledgement may leave at any time, by any thread.
        let (calls, packets) = pair.sent();
        assert!(calls >= before.0 + 2 && packets >= before.1 + 2, "it is counted as its acknowledgement is");
    }
    pair.near.modify(&QpAttr { min_rnr_timer: 2, ..QpAttr::default() }, AttrMask::MIN_RNR_TIMER).unwrap();
    assert!(!pair.took_fast_path(), "modify clears the TX cache");
}

#[test]
fn lists_and_long_messages_take_the_batch() {
    let pair = pair("127.49.1.2");
    pair.expect(3);
    let sges: Vec<_> = (0..3).map(|n| [pair.mr.sge(n * 16, 16)]).collect();
    pair.send(&[Payload::Sges(&sges[0]), Payload::Sges(&sges[1]), Payload::Sges(&sges[2])]);
    assert!(!pair.took_fast_path(), "a list leaves as one batch");
    let received = pair.completions(3, WcOpcode::Recv);
    assert_eq!(received.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [100, 101, 102]);
    (0..3).for_each(|n| assert_eq!(pair.arrived(n, 16), expected(n * 16, 16)));
    pair.expect(1);
    pair.send(&[Payload::Sges(&[pair.mr.sge(0, 400)])]);
    assert!(!pair.took_fast_path(), "it is too long for the fast path");
    assert_eq!(pair.completions(1, WcOpcode::Recv)[0].byte_len, 400);
    assert_eq!(pair.arrived(0, 400), expected(0, 400));
}

#[test]
fn unreadable_memory_fails_as_on_the_batch_path() {
    let pair = pair("127.49.1.3");
    pair.expect(1);
    let sge = pair.mr.sge(0, 8);
    pair.send(&[Payload::Sges(&[Sge { lkey: LKey(sge.lkey.0 ^ 1), ..sge }])]);
    assert!(!pair.took_fast_path());
    let mut got = [Completion::default(); 1];
    let give_up = Instant::now() + Duration::from_secs(20);
    while pair.cq.poll(&mut got).unwrap() == 0 {
        assert!(Instant::now() < give_up);
    }
    assert_eq!((got[0].status, got[0].wr_id), (WcStatus::LocProtErr, 0));
    assert_eq!(pair.sent().1, 0, "nothing left");
}

/// The ACK of a WRITE that makes no completion waits only if the program watches its memory and may answer.
#[test]
fn only_the_answer_of_a_program_that_watches_its_memory_is_waited_for() {
    let pair = pair("127.49.1.4");
    let engine = pair.nic.engine();
    let arrived = || pair.arrived(0, 8) == expected(0, 8);
    // An acknowledgement shows each end that the other one accepts piggybacked ones.
    for qp in [&pair.near, &pair.far] {
        pair.write(qp);
        pair.completions_of_any_kind(1);
    }
    for (driver, waits) in [(Driver::Other, false), (Driver::Poller, false), (Driver::Watcher, true)] {
        // No other thread drives while this one holds the lock: the lock is only ever tried.
        let give_up = Instant::now() + Duration::from_secs(20);
        let mut progress = loop {
            match engine.polling.lock.try_lock() {
                Some(progress) => break progress,
                None => assert!(Instant::now() < give_up),
            }
        };
        pair.bytes[RECV_AT..RECV_AT + 8].iter().for_each(|byte| byte.store(255, Ordering::Relaxed));
        pair.write(&pair.near);
        while !arrived() {
            engine.run(&mut progress, driver, true);
            assert!(Instant::now() < give_up);
        }
        assert_eq!(pair.far.core.machine.lock().has_replies(), waits, "{driver:?}");
        if waits {
            let before = pair.sent().1;
            pair.write(&pair.far);
            assert!(!pair.far.core.machine.lock().has_replies());
            assert_eq!(pair.sent().1, before + 1, "the answer carried it");
        }
        drop(progress);
        pair.completions_of_any_kind(1 + usize::from(waits));
    }
    assert!(!engine.owes_acks());
}

/// A thread that drives may have read the socket before the message arrived. The queue pair does not stop until that thread is done.
#[test]
fn a_queue_pair_stops_after_what_arrived_while_another_thread_drives() {
    let pair = pair("127.49.1.5");
    pair.expect(1);
    let progress = pair.nic.inner().engine.polling.lock.lock();
    pair.send(&[Payload::Sges(&[pair.mr.sge(0, 8)])]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.far.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
        });
        // Without the wait, the queue pair stops in a fraction of this time.
        std::thread::sleep(Duration::from_millis(20));
        drop(progress);
    });
    assert_eq!(pair.completions(1, WcOpcode::Send).len(), 1);
}
