//! Scripts that several tests run under different faults. Each defines the posted work and the expected result.
#![allow(dead_code, reason = "every test binary uses another part")]
#![allow(unreachable_pub, reason = "a test binary has no outside")]

use ferroce_proto::verbs::{Completion, Mtu, QpState, WcFlags, WcOpcode, WcStatus};
use ferroce_sim::{Pair, PairSetup, Wr};
use std::ops::Range;

/// Where in `b`'s memory the peer reads, writes and receives; `a` uses its own memory from 0 on.
pub const FAR: u64 = 128 * 1024;

/// Sizes at which something changes.
pub fn size_classes(mtu: Mtu) -> [u32; 8] {
    let mtu = mtu.bytes();
    [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 1, 7 * mtu + 5]
}

/// One way to use a connection.
pub struct Script {
    pub name: &'static str,
    /// Posts the work.
    pub start: fn(&Pair, u32),
    /// Panics unless everything has happened, once.
    pub check: fn(&Pair, u32),
}

pub const SEND: Script = Script {
    name: "SEND",
    start: |p, len| {
        p.b.post_recv(9, FAR, len);
        p.a.qp.post(Wr::send(1).sge(p.a.sge(0, len)));
    },
    check: |p, len| {
        sent(p, WcOpcode::Send, 0);
        let c = received(p, WcOpcode::Recv, len);
        assert_eq!(c.flags, WcFlags::empty());
        copied_to_b(p, len);
    },
};

pub const SEND_IMM: Script = Script {
    name: "SEND with immediate",
    start: |p, len| {
        p.b.post_recv(9, FAR, len);
        p.a.qp.post(Wr::send_imm(1, 0xdead_beef).sge(p.a.sge(0, len)));
    },
    check: |p, len| {
        sent(p, WcOpcode::Send, 0);
        let c = received(p, WcOpcode::Recv, len);
        assert_eq!((c.flags, c.imm), (WcFlags::WITH_IMM, 0xdead_beef));
        copied_to_b(p, len);
    },
};

pub const WRITE: Script = Script {
    name: "WRITE",
    start: |p, len| p.a.qp.post(Wr::write(1, &p.b.mr, FAR).sge(p.a.sge(0, len))),
    check: |p, len| {
        sent(p, WcOpcode::RdmaWrite, 0);
        assert_eq!(p.b.recv_cq.drain(), []);
        copied_to_b(p, len);
    },
};

pub const WRITE_IMM: Script = Script {
    name: "WRITE with immediate",
    start: |p, len| {
        p.b.post_recv(9, 0, 0);
        p.a.qp.post(Wr::write_imm(1, &p.b.mr, FAR, 77).sge(p.a.sge(0, len)));
    },
    check: |p, len| {
        sent(p, WcOpcode::RdmaWrite, 0);
        let c = received(p, WcOpcode::RecvRdmaWithImm, len);
        assert_eq!((c.flags, c.imm), (WcFlags::WITH_IMM, 77));
        copied_to_b(p, len);
    },
};

pub const READ: Script = Script {
    name: "READ",
    start: |p, len| p.a.qp.post(Wr::read(1, &p.b.mr, FAR).sge(p.a.sge(0, len))),
    check: |p, len| {
        sent(p, WcOpcode::RdmaRead, len);
        assert_eq!(p.a.mr.read(0, len as usize), p.b.mr.read(FAR as usize, len as usize));
    },
};

/// The one operation with a fixed size; `len` only determines how many are posted.
pub const FETCH_ADD: Script = Script {
    name: "FETCH AND ADD",
    start: |p, len| {
        p.b.mr.write(FAR as usize, &100u64.to_ne_bytes());
        for i in 0..atomics(len) {
            p.a.qp.post(Wr::fetch_add(i, &p.b.mr, FAR, 1 << i).sge(p.a.sge(8 * i, 8)));
        }
    },
    check: |p, len| {
        let count = atomics(len);
        let mut expected = 100;
        let done = p.a.send_cq.drain();
        assert_eq!(done.len() as u64, count);
        for (i, c) in done.iter().enumerate() {
            assert_eq!((c.wr_id, c.status, c.opcode), (i as u64, WcStatus::Success, WcOpcode::FetchAdd));
            assert_eq!(c.byte_len, 8);
            assert_eq!(p.a.mr.read_u64(8 * i), expected, "the value before atomic {i}");
            expected += 1 << i;
        }
        assert_eq!(p.b.mr.read_u64(FAR as usize), expected);
        assert_eq!(p.b.node.atomics_run(), count, "each atomic runs exactly once");
        both_ready(p);
    },
};

pub const COMPARE_SWAP: Script = Script {
    name: "COMPARE AND SWAP",
    start: |p, len| {
        p.b.mr.write(FAR as usize, &0u64.to_ne_bytes());
        for i in 0..atomics(len) {
            p.a.qp.post(Wr::compare_swap(i, &p.b.mr, FAR, i, i + 1).sge(p.a.sge(8 * i, 8)));
        }
    },
    check: |p, len| {
        let count = atomics(len);
        let done = p.a.send_cq.drain();
        assert_eq!(done.len() as u64, count);
        for (i, c) in done.iter().enumerate() {
            assert_eq!((c.wr_id, c.status, c.opcode), (i as u64, WcStatus::Success, WcOpcode::CompSwap));
            assert_eq!(p.a.mr.read_u64(8 * i), i as u64);
        }
        assert_eq!(p.b.mr.read_u64(FAR as usize), count);
        assert_eq!(p.b.node.atomics_run(), count, "each atomic runs exactly once");
        both_ready(p);
    },
};

/// Everything in one go: messages of several packets between READs and atomics, some of them unsignalled.
pub const MIX: Script = Script {
    name: "MIX",
    start: |p, len| {
        let (a, b) = (&p.a, &p.b);
        b.mr.write(0, &5u64.to_ne_bytes());
        b.post_recv(20, FAR, len);
        b.post_recv(21, FAR + 96 * 1024, len);
        b.post_recv(22, 0, 0);
        let near = |slot: u64| a.sge(slot * 32 * 1024, len);
        a.qp.post(Wr::send(1).sge(near(0)));
        a.qp.post(Wr::write(2, &b.mr, FAR + 32 * 1024).sge(near(0)).unsignaled());
        a.qp.post(Wr::read(3, &b.mr, FAR + 32 * 1024).sge(near(1)));
        a.qp.post(Wr::fetch_add(4, &b.mr, 0, 3).sge(a.sge(200 * 1024, 8)));
        a.qp.post(Wr::send_imm(5, 50).sge(near(0)));
        a.qp.post(Wr::read(6, &b.mr, FAR).sge(near(2)).unsignaled());
        a.qp.post(Wr::compare_swap(7, &b.mr, 0, 8, 99).sge(a.sge(200 * 1024 + 8, 8)));
        a.qp.post(Wr::write_imm(8, &b.mr, FAR + 64 * 1024, 80).sge(near(0)));
    },
    check: |p, len| {
        let (a, b) = (&p.a, &p.b);
        let success = |ids: &[u64]| ids.iter().map(|id| (*id, WcStatus::Success)).collect::<Vec<_>>();
        assert_eq!(a.send_cq.statuses(), success(&[1, 3, 4, 5, 7, 8]));
        let got = b.recv_cq.drain();
        let shape = |c: &Completion| (c.wr_id, c.status, c.opcode, c.byte_len, c.imm);
        let expected = [
            (20, WcStatus::Success, WcOpcode::Recv, len, 0),
            (21, WcStatus::Success, WcOpcode::Recv, len, 50),
            (22, WcStatus::Success, WcOpcode::RecvRdmaWithImm, len, 80),
        ];
        assert_eq!(got.iter().map(shape).collect::<Vec<_>>(), expected);
        let data = a.mr.read(0, len as usize);
        let at_b = |offset: u64| b.mr.read(offset as usize, len as usize);
        for offset in [FAR, FAR + 32 * 1024, FAR + 64 * 1024, FAR + 96 * 1024] {
            assert!(at_b(offset) == data, "b's memory at {offset}");
        }
        for slot in [1, 2] {
            assert!(a.mr.read(slot * 32 * 1024, len as usize) == data, "READ into slot {slot}");
        }
        assert_eq!((a.mr.read_u64(200 * 1024), a.mr.read_u64(200 * 1024 + 8)), (5, 8));
        assert_eq!((b.mr.read_u64(0), b.node.atomics_run()), (99, 2));
        both_ready(p);
    },
};

pub const ALL: [&Script; 8] = [&SEND, &SEND_IMM, &WRITE, &WRITE_IMM, &READ, &FETCH_ADD, &COMPARE_SWAP, &MIX];

fn atomics(len: u32) -> u64 {
    u64::from(len % 7 + 1)
}

fn copied_to_b(p: &Pair, len: u32) {
    let (near, far) = (p.a.mr.read(0, len as usize), p.b.mr.read(FAR as usize, len as usize));
    assert!(near == far, "{len} bytes differ");
}

/// The requester's only completion, and nothing wrong with either end.
fn sent(p: &Pair, opcode: WcOpcode, byte_len: u32) {
    let done = p.a.send_cq.drain();
    let [c] = done[..] else { panic!("one completion expected: {done:?}") };
    assert_eq!((c.wr_id, c.status, c.opcode), (1, WcStatus::Success, opcode));
    assert_eq!(c.byte_len, byte_len);
    assert_eq!(c.qpn, p.a.qp.qpn);
    both_ready(p);
}

fn received(p: &Pair, opcode: WcOpcode, len: u32) -> Completion {
    let done = p.b.recv_cq.drain();
    let [c] = done[..] else { panic!("one completion expected: {done:?}") };
    assert_eq!((c.wr_id, c.status, c.opcode, c.byte_len), (9, WcStatus::Success, opcode, len));
    assert_eq!(c.qpn, p.b.qp.qpn);
    c
}

pub fn both_ready(p: &Pair) {
    assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Rts, QpState::Rts));
    assert_eq!((p.a.node.events(), p.b.node.events()), (vec![], vec![]));
}

/// Runs a script to its end under `fault`, and checks it.
pub fn run(script: &Script, setup: &PairSetup, len: u32, fault: impl FnOnce(&Pair)) -> Pair {
    let pair = setup.connect();
    fault(&pair);
    (script.start)(&pair, len);
    pair.run();
    (script.check)(&pair, len);
    pair
}

/// The seeds of `FERROCE_SIM_SEEDS`: `FIRST..LAST`, or their number. Otherwise the usual ones.
pub fn seeds(usual: Range<u64>) -> Range<u64> {
    let number = |text: &str| text.parse().expect("FERROCE_SIM_SEEDS is a number or a range");
    match std::env::var("FERROCE_SIM_SEEDS") {
        Err(_) => usual,
        Ok(text) => text
            .split_once("..")
            .map_or_else(|| 0..number(&text), |(first, last)| number(first)..number(last)),
    }
}
