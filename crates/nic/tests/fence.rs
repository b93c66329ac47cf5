//! A local peer that is stopped in the middle of a direct WRITE: ERR, RESET and destruction of the target's queue pair wait for it. They do
//! not wait for a dead one, nor for ever.

mod child_support;
mod objects_support;

use child_support::Other;
use ferroce_nic::{Nic, Qp};
use ferroce_proto::verbs::{Access, AttrMask, QpAttr, QpState, SendOp, Transport, WcStatus};
use ferroce_proto::{Qpn, RKey};
use objects_support::{Buffer, completions, connect_at, connect_with, create, gid, open, post};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Set in the process that writes only: a part of both ends' addresses, another one for every test.
const ROLE: &str = "STOPPED_REQUESTER";
/// A copy of so many bytes takes far longer than what lies between two of them.
const LEN: usize = 16 << 20;
/// Bytes at either end of which some may not lie in whole pages.
const EDGE: usize = 4096;
const MAX_WAIT: Duration = Duration::from_secs(30);
/// What the target's memory holds once its queue pair has ended.
const OWN: u8 = 0xee;

fn addresses(test: &str) -> [String; 2] {
    [1, 2].map(|end| format!("127.91.{test}.{end}"))
}

/// Not a test: the process that is stopped. Writes to the whole region until its peer's queue pair has ended.
#[test]
fn requester() {
    let Ok(test) = std::env::var(ROLE) else { return };
    let [near, far] = addresses(&test);
    let nic = open(&far);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(16, None, 0).unwrap());
    let qp = create(&pd, &cq, Transport::Rc);
    let memory = [1, 2].map(|value| {
        let buffer = Buffer::new(&pd, LEN, Access::LOCAL_WRITE);
        buffer.fill(0, LEN, value);
        buffer
    });
    println!("@has {}", qp.qpn().value());
    let told = std::io::stdin().lines().next().unwrap().unwrap();
    let told: Vec<u64> = told.split_whitespace().map(|n| n.parse().unwrap()).collect();
    connect_with(gid(&near), &qp, Qpn::new(told[0] as u32), 8);
    let (addr, rkey) = (told[1], RKey(told[2] as u32));
    let write = |from: &Buffer| {
        post(&qp, 1, SendOp::Write { addr, rkey }, &[from.sge(0, LEN as u32)]);
        completions(&cq, 1)[0].status
    };
    let _ = memory.iter().cycle().find(|from| write(from) != WcStatus::Success);
    println!("@has ended");
    std::io::stdin().lines().next();
}

/// The target, and the requester that is stopped in the middle of a WRITE to its memory.
struct Stopped {
    requester: Other,
    memory: Buffer,
    qp: Qp,
    _nic: Nic,
}

fn stop_in_the_middle(test: &str) -> Stopped {
    let [near, far] = addresses(test);
    let mut requester = Other::start(Other::command("requester").env(ROLE, test));
    let peer: u32 = requester.line("@has ").parse().unwrap();
    let nic = open(&near);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(16, None, 0).unwrap());
    let qp = create(&pd, &cq, Transport::Rc);
    let memory = Buffer::new(&pd, LEN, Access::LOCAL_WRITE | Access::REMOTE);
    connect_at(gid(&far), &qp, Qpn::new(peer));
    requester.tell(&format!("{} {} {}", qp.qpn().value(), memory.addr(0), memory.mr.rkey().0));
    let start = Instant::now();
    loop {
        while memory.read(EDGE, 1) == [0] {
            assert!(start.elapsed() < MAX_WAIT, "it never wrote");
        }
        requester.stop();
        // Bytes of whole pages are copied in their order. The kernel copies the others.
        let [first, last] = [EDGE, LEN - EDGE].map(|at| memory.read(at, 1)[0]);
        if first != last {
            break;
        }
        requester.signal("CONT");
        assert!(start.elapsed() < MAX_WAIT, "never stopped in the middle of a WRITE");
    }
    Stopped { requester, memory, qp, _nic: nic }
}

fn to(state: QpState) -> impl FnOnce(Qp) {
    move |qp| {
        qp.modify(&QpAttr { state, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    }
}

/// Ends the target's queue pair while the requester is stopped, which gets a signal meanwhile. The memory is the target's afterwards.
fn nothing_is_written_behind(test: &str, end: impl FnOnce(Qp), signal: &str) {
    let Stopped { _nic, memory, qp, mut requester } = stop_in_the_middle(test);
    // Started before, because the end waits for one second only.
    let mut sender = Command::new("sh");
    sender.args(["-c", "read line; kill -s $0 $1", signal, &requester.process.id().to_string()]);
    let mut sender = sender.stdin(Stdio::piped()).spawn().unwrap();
    sender.stdin.take().unwrap().write_all(b"now\n").unwrap();
    end(qp);
    memory.fill(0, LEN, OWN);
    assert!(sender.wait().unwrap().success());
    match signal {
        "CONT" => drop(requester.line("@has ended")),
        _ => assert!(!requester.process.wait().unwrap().success()),
    }
    assert!(memory.read(0, LEN).iter().all(|&byte| byte == OWN), "written after the end of the queue pair");
}

/// Only mapped memory is written in the middle of this process's life; the kernel copies in one call.
fn has_no_direct_path() -> bool {
    let is_off = |name: &str, off: &str| std::env::var(name).is_ok_and(|value| value == off);
    is_off("FERROCE_LINK", "udp") || is_off("FERROCE_MEMFD", "0")
}

#[test]
fn the_end_of_a_queue_pair_waits_for_a_requester_that_continues() {
    if has_no_direct_path() {
        return println!("SKIPPED: no memory is mapped");
    }
    nothing_is_written_behind("20", to(QpState::Err), "CONT");
    nothing_is_written_behind("20", drop, "CONT");
}

#[test]
fn the_end_of_a_queue_pair_does_not_wait_for_a_dead_requester() {
    if has_no_direct_path() {
        return println!("SKIPPED: no memory is mapped");
    }
    nothing_is_written_behind("21", to(QpState::Reset), "KILL");
}

#[test]
fn the_end_of_a_queue_pair_waits_a_while_for_a_stopped_requester() {
    if has_no_direct_path() {
        return println!("SKIPPED: no memory is mapped");
    }
    // The requester goes first: deregistration waits for it.
    let Stopped { _nic, memory: _memory, qp, requester: _requester } = stop_in_the_middle("22");
    let start = Instant::now();
    drop(qp);
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(900) && waited < MAX_WAIT, "{waited:?}");
}
