//! Attacks of docs/security.md that the protocol does not prevent, so that the page stays true: each name begins with its verdict.

use ferroce_proto::Psn;
use ferroce_proto::verbs::{Mtu, QpState, Route, WcStatus};
use ferroce_proto::wire::{Bth, Headers, Opcode, Operation, Reth, Service};
use ferroce_sim::{Endpoint, Pair, Rule, Wr};

const FAR: u64 = 128 * 1024;
const SECRET: &[u8] = b"secret bytes of the application";

/// A WRITE of no bytes with a forbidden length in its RETH, from the address of `a`.
fn forge_invalid_write(pair: &Pair, psn: Psn) {
    let (from, to) = (&pair.a, &pair.b);
    let route = Route { sgid: from.node.gid(), dgid: to.node.gid(), hop_limit: 64, ..Route::default() };
    let bth = Bth::new(Opcode::new(Service::Rc, Operation::WriteOnly), to.qp.qpn, psn);
    let reth = Some(Reth { addr: to.mr.addr(FAR), rkey: to.mr.rkey, len: 8 });
    pair.world.inject(&route, &Headers { reth, ..Headers::new(bth) }, &[]);
    pair.run();
}

fn exchange(from: &Endpoint, to: &Endpoint, id: u64) {
    to.post_recv(id, FAR, 64);
    from.qp.post(Wr::send(id).sge(from.sge(0, 64)));
}

/// A2: the guess must be exact, and then the responder answers with a NAK that ends both ends.
#[test]
fn as_hardware_a_forged_request_with_the_exact_psn_ends_the_connection() {
    let next = Psn::new(1);
    for wrong in [next.plus(300), next.plus(1 << 22), next.minus(1), next.minus(1 << 22)] {
        let pair = Pair::rc(Mtu::B1024);
        exchange(&pair.a, &pair.b, 1);
        pair.run();
        forge_invalid_write(&pair, wrong);
        assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Rts, QpState::Rts), "{wrong:?}");
        exchange(&pair.a, &pair.b, 2);
        pair.run();
        assert_eq!(pair.b.recv_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    }
    let pair = Pair::rc(Mtu::B1024);
    exchange(&pair.a, &pair.b, 1);
    pair.run();
    forge_invalid_write(&pair, next);
    assert_eq!(pair.b.qp.state(), QpState::Err);
}

/// V8, and A1 on the path: bytes are not encrypted, and whoever can change them can make the checksum right again.
#[test]
fn documented_whoever_is_on_the_path_reads_and_changes_data() {
    let pair = Pair::rc(Mtu::B1024);
    pair.a.mr.write(0, SECRET);
    let is_secret = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|window| window == SECRET);
    let changed = pair.world.rule(Rule::on(move |seen| is_secret(seen.packet.payload)).rewrite(|bytes| {
        let at = bytes.windows(SECRET.len()).position(|window| window == SECRET).expect("read on the path");
        bytes[at..at + 6].copy_from_slice(b"FORGED");
    }));
    exchange(&pair.a, &pair.b, 1);
    pair.run();
    changed.once();
    assert_eq!(pair.b.recv_cq.only().status, WcStatus::Success);
    assert_eq!(pair.b.mr.read(FAR as usize, 6), b"FORGED");
}

/// A6: the target's program gets neither completion nor event; only the counters show the access.
#[test]
fn as_hardware_a_peer_reads_a_granted_region_unnoticed() {
    let pair = Pair::rc(Mtu::B1024);
    pair.b.mr.write(FAR as usize, SECRET);
    let before = pair.b.qp.counters();
    pair.a.qp.post(Wr::read(1, &pair.b.mr, FAR).sge(pair.a.sge(0, SECRET.len() as u32)));
    pair.run();
    assert_eq!(pair.a.mr.read(0, SECRET.len()), SECRET);
    assert_eq!((pair.b.recv_cq.drain().len(), pair.b.send_cq.drain().len()), (0, 0));
    assert_eq!(pair.b.node.events(), []);
    let after = pair.b.qp.counters();
    assert_eq!(after.rx_packets, before.rx_packets + 1);
    assert!(after.tx_bytes >= before.tx_bytes + SECRET.len() as u64);
}
