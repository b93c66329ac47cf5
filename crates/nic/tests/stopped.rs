//! A target that is stopped: one-sided operations of unreliable and extended reliable connections are done without it, and none overtakes a message
//! that it has not taken. (Reliable connections: `local.rs` of the safe API.)

mod child_support;
mod objects_support;

use child_support::Other;
use ferroce_nic::{Cq, Nic, Qp};
use ferroce_proto::verbs::{Access, AtomicOp, RecvWr, SendOp, Transport, WcStatus};
use ferroce_proto::{Qpn, RKey, Srqn};
use objects_support::{Buffer, completions, connect_at, create, gid, init, open, post_to};
use std::time::{Duration, Instant};

const NEAR: &str = "127.91.9.1";
const FAR: &str = "127.91.9.2";
/// Set in the process that is stopped only.
const ROLE: &str = "STOPPED_TARGET";

/// Not a test: the process that is stopped. Says what it has, is told whom to connect to, and takes a message when it is told.
#[test]
fn target() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let nic = open(FAR);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
    let domain = nic.alloc_xrc_domain().unwrap();
    let srq = pd.create_xrc_srq(16, 1, &domain, &cq).unwrap();
    let uc = create(&pd, &cq, Transport::Uc);
    let xrc = domain.create_target(&nic).unwrap();
    let memory = Buffer::new(&pd, 4 * 4096, Access::LOCAL_WRITE | Access::REMOTE);
    let at = memory.addr(0).next_multiple_of(4096);
    let said = [uc.qpn().value(), xrc.qpn().value(), srq.number().unwrap().value(), memory.mr.rkey().0];
    init(&uc);
    uc.post_recv(&[RecvWr { wr_id: 1, sges: &[memory.sge(0, 8)] }]).unwrap();
    println!("@has {} {} {} {} {at}", said[0], said[1], said[2], said[3]);
    let told = |line: String| line.split_whitespace().map(|n| n.parse().unwrap()).collect::<Vec<u32>>();
    let mut lines = std::io::stdin().lines().map(Result::unwrap);
    let peers = told(lines.next().unwrap());
    connect_at(gid(NEAR), &uc, Qpn::new(peers[0]));
    connect_at(gid(NEAR), &xrc, Qpn::new(peers[1]));
    println!("@is connected");
    lines.next().unwrap();
    assert_eq!(completions(&cq, 1)[0].status, WcStatus::Success);
    println!("@has taken it");
    lines.next();
}

/// This end, and what it knows of the target.
struct Met {
    nic: Nic,
    cq: Cq,
    memory: Buffer,
    addr: u64,
    rkey: RKey,
}

impl Met {
    /// Does it and brings back what is in the first eight bytes of this end's memory.
    #[track_caller]
    fn done(&self, qp: &Qp, op: SendOp, srq: Option<Srqn>) -> u64 {
        post_to(qp, 1, op, &[self.memory.sge(0, 8)], srq);
        assert_eq!(completions(&self.cq, 1)[0].status, WcStatus::Success);
        u64::from_ne_bytes(self.memory.read(0, 8).try_into().unwrap())
    }

    fn write(&self) -> SendOp {
        SendOp::Write { addr: self.addr, rkey: self.rkey }
    }

    fn read(&self) -> SendOp {
        SendOp::Read { addr: self.addr, rkey: self.rkey }
    }

    fn atomic(&self, op: AtomicOp) -> SendOp {
        SendOp::Atomic { addr: self.addr, rkey: self.rkey, op }
    }
}

#[test]
fn a_stopped_target_is_read_and_written() {
    if std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp") {
        return println!("SKIPPED: over UDP the target has to run");
    }
    let mut target = Other::start(Other::command("target").env(ROLE, "1"));
    let has: Vec<u64> =
        target.line("@has ").split_whitespace().map(|number| number.parse().unwrap()).collect();
    let (rkey, addr, srq) = (RKey(has[3] as u32), has[4], Some(Srqn::new(has[2] as u32)));
    let nic = open(NEAR);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
    let (uc, xrc) = (create(&pd, &cq, Transport::Uc), create(&pd, &cq, Transport::XrcIni));
    connect_at(gid(FAR), &uc, Qpn::new(has[0] as u32));
    connect_at(gid(FAR), &xrc, Qpn::new(has[1] as u32));
    let memory = Buffer::new(&pd, 4096, Access::LOCAL_WRITE);
    let met = Met { nic, cq, memory, addr, rkey };
    target.tell(&format!("{} {}", uc.qpn().value(), xrc.qpn().value()));
    target.line("@is connected");
    target.stop();
    for round in 1..=20_u8 {
        let value = u64::from_ne_bytes([round; 8]);
        met.memory.fill(0, 8, round);
        met.done(&uc, met.write(), None);
        met.memory.fill(0, 8, 0);
        assert_eq!(met.done(&xrc, met.read(), srq), value);
        met.memory.fill(0, 8, round + 1);
        met.done(&xrc, met.write(), srq);
        let value = u64::from_ne_bytes([round + 1; 8]);
        assert_eq!(met.done(&xrc, met.atomic(AtomicOp::FetchAdd { add: 3 }), srq), value);
        let swap = AtomicOp::CompareSwap { compare: value + 3, swap: 9 };
        assert_eq!(met.done(&xrc, met.atomic(swap), srq), value + 3);
        assert_eq!(met.done(&xrc, met.read(), srq), 9);
    }
    assert_eq!((uc.counters().performed, xrc.counters().performed), (20, 100));
    let link = met.nic.counters().link;
    assert_eq!((link.direct_mapped, link.local_tx_packets), (120, 0), "{link:?}");
    // Behind a message that is not taken, a write is a packet and waits with it.
    met.memory.fill(0, 8, 77);
    met.done(&uc, SendOp::Send, None);
    met.done(&uc, met.write(), None);
    assert_eq!((uc.counters().performed, met.done(&xrc, met.read(), srq)), (20, 9));
    target.signal("CONT");
    target.tell("take it");
    target.line("@has taken it");
    let start = Instant::now();
    while met.done(&xrc, met.read(), srq) != u64::from_ne_bytes([77; 8]) || uc.counters().performed == 20 {
        met.memory.fill(0, 8, 77);
        met.done(&uc, met.write(), None);
        assert!(start.elapsed() < Duration::from_secs(20), "never at once again");
    }
}
