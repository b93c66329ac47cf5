//! A receiver that does not run for a moment: an unreliable connection waits for it instead of running over its buffers.

mod child_support;
mod objects_support;

use child_support::Other;
use ferroce_nic::Qp;
use ferroce_proto::Qpn;
use ferroce_proto::verbs::{Access, RecvWr, SendOp, Transport, WcStatus};
use objects_support::{Buffer, completions, connect_at, create, gid, init, open, post};
use std::time::Duration;

const NEAR: &str = "127.91.10.1";
const FAR: &str = "127.91.10.2";
/// Set in the process that is stopped only.
const ROLE: &str = "PACED_RECEIVER";
/// Together several times what any buffer between the two holds.
const MESSAGES: usize = 60;
const MESSAGE_LEN: u32 = 1 << 20;
/// Less than the sender's timeout, and time to send everything several times.
const A_MOMENT: Duration = Duration::from_millis(50);

fn recv(qp: &Qp, memory: &Buffer) {
    qp.post_recv(&[RecvWr { wr_id: 1, sges: &[memory.sge(0, MESSAGE_LEN)] }]).unwrap();
}

/// Not a test: the process that is stopped. It takes one message, and then all others.
#[test]
fn receiver() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let nic = open(FAR);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(128, None, 0).unwrap());
    let qp = create(&pd, &cq, Transport::Uc);
    let memory = Buffer::new(&pd, MESSAGE_LEN as usize, Access::LOCAL_WRITE);
    println!("@has {}", qp.qpn().value());
    let mut lines = std::io::stdin().lines().map(Result::unwrap);
    let peer = Qpn::new(lines.next().unwrap().parse().unwrap());
    init(&qp);
    recv(&qp, &memory);
    connect_at(gid(NEAR), &qp, peer);
    println!("@is connected");
    assert_eq!(completions(&cq, 1)[0].status, WcStatus::Success);
    (0..MESSAGES).for_each(|_| recv(&qp, &memory));
    println!("@has taken the first");
    let all = completions(&cq, MESSAGES);
    assert!(all.iter().all(|one| one.status == WcStatus::Success && one.byte_len == MESSAGE_LEN), "{all:?}");
    println!("@has taken all");
    lines.next();
}

#[test]
fn a_receiver_that_stops_for_a_moment_misses_nothing() {
    let mut receiver = Other::start(Other::command("receiver").env(ROLE, "1"));
    let peer = Qpn::new(receiver.line("@has ").parse().unwrap());
    let nic = open(NEAR);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(128, None, 0).unwrap());
    let qp = create(&pd, &cq, Transport::Uc);
    connect_at(gid(FAR), &qp, peer);
    let memory = Buffer::new(&pd, MESSAGE_LEN as usize, Access::LOCAL_WRITE);
    receiver.tell(&qp.qpn().value().to_string());
    receiver.line("@is connected");
    let send = |id: usize| post(&qp, id as u64, SendOp::Send, &[memory.sge(0, MESSAGE_LEN)]);
    // From this the sender learns that it is answered.
    send(0);
    receiver.line("@has taken the first");
    receiver.stop();
    (1..=MESSAGES).for_each(send);
    std::thread::sleep(A_MOMENT);
    receiver.signal("CONT");
    assert_eq!(completions(&cq, MESSAGES + 1).len(), MESSAGES + 1);
    receiver.line("@has taken all");
    receiver.tell("go");
    receiver.finish();
}
