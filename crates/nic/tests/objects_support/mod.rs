//! A NIC of its own on a loopback address of its own, and two queue pairs of it that talk to each other.
#![allow(dead_code)] // each test binary uses its part

use ferroce_nic::{Config, Cq, MemoryRegion, Nic, Pd, Qp, QpInit};
use ferroce_proto::verbs::{
    Access, AddressVector, AttrMask, Completion, Mtu, Payload, QpAttr, QpCap, QpState, SendFlags, SendOp,
    SendWr, Sge, Transport,
};
use ferroce_proto::{Gid, Qpn, Srqn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Loopback has sixteen million addresses, so tests that run at once need not share one.
pub(crate) fn open(address: &str) -> Nic {
    let addresses = Some(vec![address.parse().unwrap()]);
    Nic::open(Config::from_env().unwrap().with(|c| c.addresses = addresses)).unwrap()
}

pub(crate) const CAP: QpCap =
    QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };

pub(crate) fn create(pd: &Arc<Pd>, cq: &Cq, transport: Transport) -> Qp {
    let init = QpInit { transport, send_cq: cq, recv_cq: cq, srq: None, cap: CAP, signal_all: false };
    pd.create_qp(&init).unwrap()
}

/// The GID of an address.
pub(crate) fn gid(address: &str) -> Gid {
    Gid::from_ip(address.parse().unwrap())
}

/// Takes a queue pair from RESET to INIT, where receives may be posted before anybody is connected.
pub(crate) fn init(qp: &Qp) {
    let attr = QpAttr { state: QpState::Init, port: 1, access: Access::REMOTE, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    qp.modify(&attr, mask).unwrap();
}

/// Takes a connected queue pair from RESET to RTS; its peer is on `nic`.
pub(crate) fn connect(nic: &Nic, qp: &Qp, to: Qpn) {
    connect_at(nic.gids()[0].gid, qp, to);
}

/// The same to a peer at an address.
pub(crate) fn connect_at(dgid: Gid, qp: &Qp, to: Qpn) {
    connect_with(dgid, qp, to, 14);
}

/// The same with a timeout of 4.096 us times two to the power of `timeout`.
pub(crate) fn connect_with(dgid: Gid, qp: &Qp, to: Qpn, timeout: u8) {
    connect_as(dgid, qp, to, QpAttr { timeout, path_mtu: Mtu::B1024, ..QpAttr::default() });
}

/// The same with the timeout and the path MTU of `like`.
pub(crate) fn connect_as(dgid: Gid, qp: &Qp, to: Qpn, like: QpAttr) {
    use AttrMask as M;
    let QpAttr { timeout, path_mtu, .. } = like;
    let attr = QpAttr {
        port: 1,
        access: Access::LOCAL_WRITE | Access::REMOTE | Access::FLUSH_GLOBAL,
        path_mtu,
        dest_qpn: to,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 1,
        timeout,
        retry_cnt: 7,
        rnr_retry: 7,
        av: AddressVector { dgid, port: 1, ..AddressVector::default() },
        ..QpAttr::default()
    };
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let (rtr, rts) = match qp.transport() {
        Transport::Uc => (rtr, M::SQ_PSN),
        _ => (
            rtr | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
        ),
    };
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        qp.modify(&QpAttr { state, ..attr }, mask | M::STATE).unwrap();
    }
}

/// Two connected queue pairs of one NIC.
pub(crate) fn pair(nic: &Nic, pd: &Arc<Pd>, cq: &Cq, transport: Transport) -> (Qp, Qp) {
    let (a, b) = (create(pd, cq, transport), create(pd, cq, transport));
    connect(nic, &a, b.qpn());
    connect(nic, &b, a.qpn());
    (a, b)
}

/// Posts one signalled send.
#[track_caller]
pub(crate) fn post(qp: &Qp, wr_id: u64, op: SendOp, sges: &[Sge]) {
    post_to(qp, wr_id, op, sges, None);
}

/// The same, to an XRC shared receive queue.
#[track_caller]
pub(crate) fn post_to(qp: &Qp, wr_id: u64, op: SendOp, sges: &[Sge], srq: Option<Srqn>) {
    let payload = Payload::Sges(sges);
    let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload, ud: None, srq };
    qp.post_send(&[wr]).unwrap();
}

/// Polls until `count` completions are there.
#[track_caller]
pub(crate) fn completions(cq: &Cq, count: usize) -> Vec<Completion> {
    let give_up = Instant::now() + Duration::from_secs(20);
    let mut all = Vec::new();
    while all.len() < count {
        let mut some = [Completion::default(); 16];
        let n = cq.poll(&mut some).unwrap();
        all.extend_from_slice(&some[..n]);
        assert!(Instant::now() < give_up, "only {} of {count} completions came: {all:?}", all.len());
    }
    assert_eq!(all.len(), count, "{all:?}");
    all
}

/// Registered memory that the region itself keeps alive.
pub(crate) struct Buffer {
    pub(crate) bytes: Arc<[AtomicU8]>,
    pub(crate) mr: MemoryRegion,
}

impl Buffer {
    /// `len` zero bytes whose addresses are multiples of eight.
    pub(crate) fn new(pd: &Arc<Pd>, len: usize, access: Access) -> Buffer {
        let bytes: Arc<[AtomicU8]> = (0..len).map(|_| AtomicU8::new(0)).collect();
        let addr = bytes.as_ptr() as usize;
        assert!(addr.is_multiple_of(8), "reference counts stand before the bytes");
        // SAFETY: the region holds the bytes until it is dropped, and they are only accessed atomically.
        let mr =
            unsafe { pd.register(addr, len, addr as u64, access, Some(Arc::new(bytes.clone()))) }.unwrap();
        Buffer { bytes, mr }
    }

    pub(crate) fn sge(&self, offset: usize, len: u32) -> Sge {
        self.mr.sge(offset, len)
    }

    pub(crate) fn addr(&self, offset: u64) -> u64 {
        self.mr.iova() + offset
    }

    pub(crate) fn fill(&self, offset: usize, len: usize, value: u8) {
        self.bytes[offset..offset + len].iter().for_each(|b| b.store(value, Ordering::Relaxed));
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        self.bytes[offset..offset + len].iter().map(|b| b.load(Ordering::Relaxed)).collect()
    }
}
