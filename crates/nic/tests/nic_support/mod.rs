//! Two NICs in one process, queue pairs between them, and memory with guards around it.

use ferroce_nic::{Config, Cq, MemoryRegion, Nic, Pd, Qp, QpInit};
use ferroce_proto::Gid;
use ferroce_proto::verbs::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far longer than any of these tests needs; reached only if something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A NIC on an address of the test's own.
pub(crate) struct End {
    pub(crate) nic: Nic,
    pub(crate) pd: Arc<Pd>,
    pub(crate) cq: Cq,
    gid: Gid,
    index: u8,
}

impl End {
    pub(crate) fn open(addr: &str, faults: Option<&str>) -> End {
        let faults = faults.map(|f| f.parse().unwrap());
        let addresses = Some(vec![addr.parse().unwrap()]);
        let nic = Nic::open(Config { addresses, faults, ..Config::default() }).expect("open a NIC");
        let gids = nic.gids();
        let index = gids.iter().position(|g| g.address.to_string() == addr).expect("the address is there");
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(4096, None, 0).unwrap());
        End { gid: gids[index].gid, index: index as u8, nic, pd, cq }
    }

    pub(crate) fn qp(&self, transport: Transport) -> Qp {
        let cap =
            QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 64 };
        let (send_cq, recv_cq) = (&self.cq, &self.cq);
        let init = QpInit { transport, send_cq, recv_cq, srq: None, cap, signal_all: true };
        self.pd.create_qp(&init).unwrap()
    }

    /// The next completion.
    pub(crate) fn complete(&self) -> Completion {
        let mut out = [Completion::default(); 1];
        let start = Instant::now();
        while self.cq.poll(&mut out).unwrap() == 0 {
            assert!(start.elapsed() < PATIENCE, "no completion; {:?}", self.nic.counters().link);
        }
        out[0]
    }

    pub(crate) fn success(&self) -> Completion {
        let completion = self.complete();
        assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
        completion
    }

    /// Packets put in place, and packets for which that was a mistake.
    pub(crate) fn placing(&self) -> (u64, u64) {
        let link = self.nic.counters().link;
        (link.placed, link.misplaced)
    }

    /// Waits until something has been put in place beyond `before`. The NICs drive themselves.
    pub(crate) fn wait_until_placed(&self, before: u64) {
        let start = Instant::now();
        while self.placing().0 == before {
            assert!(start.elapsed() < PATIENCE, "nothing was placed; {:?}", self.nic.counters().link);
            std::thread::yield_now();
        }
    }
}

/// Connects two queue pairs, both ways. `timeout` and `retry_cnt` as for `modify`.
pub(crate) fn connect((a, qa): (&End, &Qp), (b, qb): (&End, &Qp), timeout: u8, retry_cnt: u8) {
    for (near, qp, far, peer) in [(a, qa, b, qb), (b, qb, a, qa)] {
        let attr = QpAttr {
            port: 1,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            path_mtu: Mtu::B4096,
            dest_qpn: peer.qpn(),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout,
            retry_cnt,
            rnr_retry: 7,
            av: AddressVector { dgid: far.gid, sgid_index: near.index, port: 1, ..AddressVector::default() },
            ..QpAttr::default()
        };
        use AttrMask as M;
        let reliable = qp.transport() == Transport::Rc;
        let only_rc = |mask| if reliable { mask } else { M::empty() };
        let rtr =
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | only_rc(M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER);
        let rts = M::SQ_PSN | only_rc(M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC);
        let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            qp.modify(&QpAttr { state, ..attr }, mask | M::STATE).unwrap();
        }
    }
}

const GUARD: u8 = 0xa5;
/// Odd, so that nothing is aligned by chance.
const GUARD_LEN: usize = 8192 + 13;

/// Registered memory between guards. It is looked at only while nobody writes to it.
pub(crate) struct Area {
    memory: *mut [u8],
    pub(crate) mr: Option<MemoryRegion>,
}

impl Area {
    pub(crate) fn new(end: &End, len: usize) -> Area {
        let memory = Box::into_raw(vec![GUARD; len + 2 * GUARD_LEN].into_boxed_slice());
        let start = memory.cast::<u8>() as usize + GUARD_LEN;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // SAFETY: the memory is freed after the registration, see `drop`.
        let mr = unsafe { end.pd.register(start, len, start as u64, access, None) }.unwrap();
        Area { memory, mr: Some(mr) }
    }

    fn all(&self) -> &[u8] {
        // SAFETY: allocated in `new`, freed in `drop`; see the type for who writes when.
        unsafe { &*self.memory }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let all = self.all();
        assert!(all[..GUARD_LEN].iter().all(|b| *b == GUARD), "something was written before the area");
        assert!(all[all.len() - GUARD_LEN..].iter().all(|b| *b == GUARD), "something was written after it");
        &all[GUARD_LEN..all.len() - GUARD_LEN]
    }

    pub(crate) fn fill(&self, seed: u64) {
        // SAFETY: as in `all`.
        let all = unsafe { &mut *self.memory };
        let end = all.len() - GUARD_LEN;
        pattern(seed, &mut all[GUARD_LEN..end]);
    }

    /// Overwrites everything, from the start on and as fast as possible.
    pub(crate) fn blank(&self) {
        // SAFETY: as in `all`.
        let all = unsafe { &mut *self.memory };
        let end = all.len() - GUARD_LEN;
        all[GUARD_LEN..end].fill(0xee);
    }

    pub(crate) fn mr(&self) -> &MemoryRegion {
        self.mr.as_ref().expect("registered")
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        self.mr = None;
        // SAFETY: made by `Box::into_raw`, and no longer registered.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

/// Bytes in which no two places look alike.
pub(crate) fn pattern(seed: u64, out: &mut [u8]) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in out.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

pub(crate) fn post(qp: &Qp, wr_id: u64, op: SendOp, sges: &[Sge]) {
    let flags = SendFlags::SIGNALED;
    qp.post_send(&[SendWr { wr_id, op, flags, payload: Payload::Sges(sges), ud: None, srq: None }]).unwrap();
}

/// Posts a WRITE of all of `from` to `to` at `offset`.
pub(crate) fn post_write(qp: &Qp, wr_id: u64, from: &Area, to: (u64, ferroce_proto::RKey)) {
    let sge = from.mr().sge(0, from.mr().len() as u32);
    post(qp, wr_id, SendOp::Write { addr: to.0, rkey: to.1 }, &[sge]);
}
