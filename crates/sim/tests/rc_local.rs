//! Local requests complete in posting order with those that go to the peer.

use ferroce_proto::qp::{PostError, Reason};
use ferroce_proto::verbs::{Access, Mtu, MwBind, QpState, SendOp, Transport, WcOpcode, WcStatus};
use ferroce_proto::{LKey, RKey};
use ferroce_sim::filter::{is_ack, is_request};
use ferroce_sim::{LATENCY_NS, Pair, PairSetup, Rule, Wr};

const FAR: u64 = 128 * 1024;

fn bind(window: u32) -> MwBind {
    MwBind { window, rkey: RKey(1), lkey: LKey(2), addr: 3, len: 4, access: Access::REMOTE }
}

fn bind_wr(wr_id: u64, window: u32) -> Wr {
    Wr::new(wr_id, SendOp::BindMw(bind(window)))
}

#[test]
fn a_bind_waits_for_earlier_requests_and_later_ones_wait_for_it() {
    let pair = Pair::rc(Mtu::B256);
    pair.b.post_recv(7, FAR, 1000);
    pair.a.qp.post(Wr::read(1, &pair.b.mr, 0).sge(pair.a.sge(FAR, 1000)));
    pair.a.qp.post(bind_wr(2, 5));
    pair.a.qp.post(Wr::send(3).sge(pair.a.sge(0, 1000)));
    pair.world.run_for(LATENCY_NS);
    assert_eq!(pair.a.node.binds(), [], "the READ is not answered yet");
    pair.run();
    assert_eq!(pair.a.node.binds(), [bind(5)]);
    let done: Vec<_> = pair.a.send_cq.drain().iter().map(|c| (c.wr_id, c.opcode, c.byte_len)).collect();
    assert_eq!(done, [(1, WcOpcode::RdmaRead, 1000), (2, WcOpcode::BindMw, 0), (3, WcOpcode::Send, 0)]);
    assert_eq!(pair.b.recv_cq.only().wr_id, 7);
}

#[test]
fn an_unsignalled_request_before_it_asks_for_its_acknowledgement() {
    let pair = Pair::rc(Mtu::B256);
    let acks = pair.world.rule(Rule::on(is_ack));
    pair.b.post_recv(7, FAR, 1000);
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)).unsignaled());
    pair.a.qp.post(bind_wr(2, 5));
    pair.world.run_for(3 * LATENCY_NS);
    acks.once();
    assert_eq!(pair.a.send_cq.statuses(), [(2, WcStatus::Success)]);
    assert_eq!(pair.a.qp.counters().retransmitted, 0);
}

#[test]
fn a_refused_bind_fails_after_earlier_requests_and_ends_the_queue_pair() {
    for (transport, end) in [(Transport::Rc, QpState::Err), (Transport::Uc, QpState::Sqe)] {
        let pair = PairSetup { transport, ..PairSetup::rc() }.connect();
        pair.b.post_recv(7, FAR, 1000);
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)));
        pair.a.qp.post(bind_wr(2, 0));
        pair.a.qp.post(Wr::send(3).sge(pair.a.sge(0, 100)));
        pair.run();
        let done = pair.a.send_cq.drain();
        let statuses: Vec<_> = done.iter().map(|c| (c.wr_id, c.status)).collect();
        let expected = [(1, WcStatus::Success), (2, WcStatus::MwBindErr), (3, WcStatus::WrFlushErr)];
        assert_eq!(statuses, expected, "{transport:?}");
        assert_eq!(Reason::from_code(done[1].vendor_err), Some(Reason::BindRefused));
        assert_eq!(pair.a.qp.state(), end);
    }
}

#[test]
fn a_bind_is_executed_once_despite_retransmissions() {
    let pair = Pair::rc(Mtu::B256);
    for id in 0..3 {
        pair.b.post_recv(id, FAR, 1000);
    }
    pair.world.rule(Rule::on(is_request).times(3).drop());
    pair.world.rule(Rule::on(is_ack).times(2).drop());
    for id in 0..3u64 {
        pair.a.qp.post(Wr::send(2 * id).sge(pair.a.sge(0, 700)));
        pair.a.qp.post(bind_wr(2 * id + 1, 5 + id as u32));
    }
    pair.run();
    assert_eq!(pair.a.node.binds(), [bind(5), bind(6), bind(7)]);
    let ids: Vec<_> = pair.a.send_cq.statuses();
    assert_eq!(ids, (0..6).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
}

#[test]
fn datagrams_bind_nothing() {
    let pair = Pair::ud(Mtu::B256);
    let refused = pair.a.qp.post_send(&bind_wr(1, 5).to(pair.b.target(&pair.a.node)));
    assert_eq!(refused, Err(PostError::NotOnThisTransport(Transport::Ud)));
    let pair = Pair::rc(Mtu::B256);
    assert_eq!(pair.a.qp.post_send(&bind_wr(1, 5).inline(&[1])), Err(PostError::InlineNotAllowed));
}
