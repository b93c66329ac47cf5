//! When a message is acknowledged: before it is answered, if the program sleeps on a completion channel; and in any case if it arrived
//! before its queue pair stops.

mod objects_support;

use ferroce_nic::{Cq, Nic, Qp};
use ferroce_proto::verbs::{
    AttrMask, Completion, QpAttr, QpState, RecvWr, SendOp, Transport, WcOpcode, WcStatus,
};
use objects_support::{completions, connect, create, open, post};

const ROUNDS: u64 = 300;

fn endpoint(nic: &Nic) -> (Cq, Qp) {
    let cq = nic.create_cq(64, None, 0).unwrap();
    let pd = nic.alloc_pd().unwrap();
    let qp = create(&pd, &cq, Transport::Rc);
    (cq, qp)
}

/// Answers every message at once, as a program does that polls.
fn serve(cq: &Cq, qp: &Qp) {
    for round in 0..ROUNDS {
        let done = completions(cq, if round == 0 { 1 } else { 2 });
        assert!(done.iter().any(|c| c.opcode == WcOpcode::Recv), "{done:?}");
        qp.post_recv(&[RecvWr { wr_id: round, sges: &[] }]).unwrap();
        post(qp, round, SendOp::Send, &[]);
    }
    completions(cq, 1);
}

#[test]
fn with_an_armed_queue_acknowledgements_come_before_answers() {
    let nics = [open("127.91.7.1"), open("127.91.7.1")];
    let [(client_cq, client), (server_cq, server)] = [&nics[0], &nics[1]].map(endpoint);
    connect(&nics[0], &client, server.qpn());
    connect(&nics[1], &server, client.qpn());
    // Another queue of the server's process waits for something that never comes.
    let channel = nics[1].create_channel().unwrap();
    let sleeping = nics[1].create_cq(1, Some(&channel), 0).unwrap();
    sleeping.request_notify(false).unwrap();
    for qp in [&client, &server] {
        qp.post_recv(&[RecvWr { wr_id: 0, sges: &[] }]).unwrap();
    }
    std::thread::scope(|s| {
        s.spawn(|| serve(&server_cq, &server));
        for round in 0..ROUNDS {
            client.post_recv(&[RecvWr { wr_id: round, sges: &[] }]).unwrap();
            post(&client, round, SendOp::Send, &[]);
            let order: Vec<_> = completions(&client_cq, 2).iter().map(|c| c.opcode).collect();
            assert_eq!(order, [WcOpcode::Send, WcOpcode::Recv], "round {round}");
        }
    });
}

/// Hardware acknowledges what arrived, whether or not the program polls once more before it stops the queue pair.
#[test]
fn what_arrived_before_a_queue_pair_stops_is_acknowledged() {
    let nics = [open("127.91.7.2"), open("127.91.7.2")];
    for round in 0..60 {
        let [(client_cq, client), (server_cq, server)] = [&nics[0], &nics[1]].map(endpoint);
        connect(&nics[0], &client, server.qpn());
        connect(&nics[1], &server, client.qpn());
        server.post_recv(&[RecvWr { wr_id: 0, sges: &[] }]).unwrap();
        // The server's background thread leaves packets to a program that polls.
        for _ in 0..100 {
            assert_eq!(server_cq.poll(&mut [Completion::default()]).unwrap(), 0);
        }
        post(&client, round, SendOp::Send, &[]);
        match round % 3 {
            0 => {
                server.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap()
            }
            1 => server
                .modify(&QpAttr { state: QpState::Reset, ..QpAttr::default() }, AttrMask::STATE)
                .unwrap(),
            _ => drop(server),
        }
        let done = completions(&client_cq, 1);
        assert_eq!(done[0].status, WcStatus::Success, "round {round}: {done:?}");
    }
}
