//! A peer that is killed at each step of the handshake: the documented event comes, nothing hangs, nothing is left.
//!
//! Once with an address of its own, where nobody answers for the dead, and once with the address of the other process,
//! which then answers for it at once.

mod child_support;
mod cm_support;

use child_support::{Other, stop_process};
use cm_support::{End, MAX_WAIT, advance, param, wait_until};
use ferroce_nic::{CmEventKind, CmId, CmTransport, PortSpace, Qp, RejectReason};
use ferroce_proto::verbs::QpState;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::Duration;

/// Step at which the process that is going to be killed stops; set in that process only.
const STEP: &str = "CM_KILLED_STEP";
const ADDRESS: &str = "CM_KILLED_ADDRESS";
const PEER: &str = "CM_KILLED_PEER";

/// Sixteen retries of 67 ms: a dead peer is given up after a second.
fn impatient(id: &CmId) {
    id.set_options(|options| (options.response_timeout, options.max_retries) = (Some(14), Some(15)));
}

/// Requests a connection to `to`.
fn request(end: &End, to: SocketAddr) -> (Arc<CmId>, Qp) {
    let (id, qp) = (end.routed(PortSpace::Tcp, to), end.qp());
    impatient(&id);
    request_with(id, qp)
}

/// The same with the retries of ordinary programs: more than a minute.
fn request_patiently(end: &End, to: SocketAddr) -> (Arc<CmId>, Qp) {
    request_with(end.routed(PortSpace::Tcp, to), end.qp())
}

fn request_with(id: Arc<CmId>, qp: Qp) -> (Arc<CmId>, Qp) {
    advance(&id, &qp, &[QpState::Init]);
    id.connect(CmTransport::Rc, &param(&qp, b"")).unwrap();
    (id, qp)
}

/// Accepts the next request.
fn take(end: &End) -> (Arc<CmId>, Qp) {
    let (request, qp) = (end.next(CmEventKind::ConnectRequest), end.qp());
    advance(&request.id, &qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
    request.id.accept(&param(&qp, b"")).unwrap();
    (request.id, qp)
}

fn confirm(end: &End, (id, qp): &(Arc<CmId>, Qp)) {
    end.next(CmEventKind::ConnectResponse);
    advance(id, qp, &[QpState::Rtr, QpState::Rts]);
    id.establish().unwrap();
}

/// Not a test: the process that is going to be killed, up to its step.
#[test]
fn victim() {
    let Ok(step) = std::env::var(STEP) else { return };
    let end = End::new(&[&std::env::var(ADDRESS).unwrap()]);
    let to = std::env::var(PEER).ok().and_then(|peer| peer.parse().ok());
    let mut kept = Vec::new();
    let listener = end.listener(&format!("{}:0", std::env::var(ADDRESS).unwrap()), 8);
    println!("listens {}", listener.local_addr().unwrap());
    match step.as_str() {
        "got a request" => std::mem::forget(end.next(CmEventKind::ConnectRequest)),
        "accepted" => kept.push(take(&end)),
        "accepted a stopped peer" => {
            let (request, qp) = (end.next(CmEventKind::ConnectRequest), end.qp());
            stop_process(u32::from_ne_bytes(*request.conn.private_data.first_chunk().unwrap()));
            advance(&request.id, &qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
            request.id.accept(&param(&qp, b"")).unwrap();
            kept.push((request.id, qp));
        }
        "requests" => kept.push(request(&end, to.unwrap())),
        "was answered" => {
            kept.push(request(&end, to.unwrap()));
            end.next(CmEventKind::ConnectResponse);
        }
        "confirmed" | "ends" | "stops" | "is patient" => {
            let is_patient = step == "is patient";
            kept.push(if is_patient {
                request_patiently(&end, to.unwrap())
            } else {
                request(&end, to.unwrap())
            });
            confirm(&end, &kept[0]);
            if step == "stops" {
                println!("may be stopped");
                std::thread::sleep(MAX_WAIT);
            }
            if step == "ends" {
                kept[0].0.disconnect().unwrap();
            }
        }
        "hears the end" => {
            kept.push(request(&end, to.unwrap()));
            confirm(&end, &kept[0]);
            // Asleep, so that another thread handles the message and both have a processor when it is heard.
            while end.channel.wait().unwrap().kind != CmEventKind::Disconnected {}
        }
        other => panic!("no step {other}"),
    }
    // Immediately and by itself: a moment later it might answer a retried message with an MRA, which extends the time-out.
    // SAFETY: sends a signal to this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// Not a test: a process that is stopped while it waits for the answer to its request.
#[test]
fn stopped_requester() {
    let Some(to) = std::env::var(PEER).ok().filter(|_| std::env::var(STEP).is_err()) else { return };
    let end = End::new(&["127.45.10.1"]);
    let (id, qp) = (end.routed(PortSpace::Tcp, to.parse().unwrap()), end.qp());
    advance(&id, &qp, &[QpState::Init]);
    id.connect(CmTransport::Rc, &param(&qp, &std::process::id().to_ne_bytes())).unwrap();
    let connection = (id, qp);
    confirm(&end, &connection);
    peer_died(&end);
    println!("noticed");
}

fn victim_at(step: &str, address: &str, peer: Option<SocketAddr>) -> Other {
    let mut command = Other::command("victim");
    command.env(STEP, step).env(ADDRESS, address);
    if let Some(peer) = peer {
        command.env(PEER, peer.to_string());
    }
    Other::start(&mut command)
}

fn await_death(mut victim: Other) {
    let status = victim.process.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
}

#[track_caller]
fn nothing_is_left(end: &End) {
    wait_until(|| {
        let cm = end.nic.counters().cm;
        (cm["connections_now"], cm["half_open_now"], cm["pending_requests_now"]) == (0, 0, 0)
    });
    while let Some(event) = end.channel.try_next() {
        assert_eq!(event.kind, CmEventKind::TimewaitExit);
    }
    assert_eq!(end.nic.counters().queue_pairs.len(), 0);
}

/// The event of an end that gets no confirmation: UNREACHABLE where nobody answers, or the REJ of a local peer.
#[track_caller]
fn given_up(end: &End, is_shared: bool, reason: RejectReason) {
    match is_shared {
        true => assert_eq!(end.next(CmEventKind::Rejected).status, i32::from(reason.0)),
        false => assert_eq!(end.next(CmEventKind::Unreachable).status, -libc::ETIMEDOUT),
    }
}

/// Gets the end of a connection whose other end is dead, although no message arrives.
#[track_caller]
fn peer_died(end: &End) {
    assert_eq!(end.next(CmEventKind::Disconnected).status, 0);
    assert_eq!(end.nic.counters().cm["peer_died"], 1);
}

/// Address of the one that lives and of the one that dies, per test.
fn addresses(number: u8) -> [(String, String, bool); 2] {
    let own = format!("127.45.{number}.1");
    [(own.clone(), format!("127.45.{number}.2"), false), (own.clone(), own, true)]
}

#[test]
fn killed_before_it_accepts() {
    for (own, its, is_shared) in addresses(1) {
        let end = End::new(&[&own]);
        let mut victim = victim_at("got a request", &its, None);
        let to = victim.line("listens ").parse().unwrap();
        let (id, qp) = request(&end, to);
        await_death(victim);
        match end.channel.wait().unwrap() {
            event if is_shared => assert_eq!(
                (event.kind, event.status),
                (CmEventKind::Rejected, RejectReason::INVALID_SERVICE_ID.0.into())
            ),
            event => assert_eq!((event.kind, event.status), (CmEventKind::Unreachable, -libc::ETIMEDOUT)),
        }
        drop((id, qp));
        nothing_is_left(&end);
    }
}

#[test]
fn killed_after_it_accepted() {
    for (own, its, _) in addresses(2) {
        let end = End::new(&[&own]);
        let mut victim = victim_at("accepted", &its, None);
        let to = victim.line("listens ").parse().unwrap();
        let connection = request(&end, to);
        await_death(victim);
        // Its answer is here; whom we confirm to is not, and that it died may be known by now.
        std::thread::sleep(Duration::from_millis(1_500));
        confirm(&end, &connection);
        peer_died(&end);
        drop(connection);
        nothing_is_left(&end);
    }
}

/// Its answer arrives when it is dead.
#[test]
fn killed_before_its_answer_arrives() {
    let mut victim = victim_at("accepted a stopped peer", "127.45.10.2", None);
    let mut requester = Other::start(Other::command("stopped_requester").env(PEER, victim.line("listens ")));
    await_death(victim);
    // The next process to open a device removes what the dead one left, its rings among it.
    drop(End::new(&["127.45.10.3"]));
    requester.signal("CONT");
    requester.line("noticed");
    requester.finish();
}

#[test]
fn killed_after_its_request() {
    for (own, its, is_shared) in addresses(3) {
        let end = End::new(&[&own]);
        let listener = end.listener(&format!("{own}:0"), 8);
        let victim = victim_at("requests", &its, listener.local_addr());
        let (request, qp) = (end.next(CmEventKind::ConnectRequest), end.qp());
        await_death(victim);
        advance(&request.id, &qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
        request.id.accept(&param(&qp, b"")).unwrap();
        given_up(&end, is_shared, RejectReason::INVALID_COMM_ID);
        drop((request, qp));
        nothing_is_left(&end);
    }
}

#[test]
fn killed_after_it_was_answered() {
    for (own, its, is_shared) in addresses(4) {
        let end = End::new(&[&own]);
        let listener = end.listener(&format!("{own}:0"), 8);
        let victim = victim_at("was answered", &its, listener.local_addr());
        let connection = take(&end);
        await_death(victim);
        given_up(&end, is_shared, RejectReason::INVALID_COMM_ID);
        drop(connection);
        nothing_is_left(&end);
    }
}

#[test]
fn killed_when_established() {
    for (own, its, _) in addresses(5) {
        let end = End::new(&[&own]);
        let listener = end.listener(&format!("{own}:0"), 8);
        let victim = victim_at("confirmed", &its, listener.local_addr());
        let connection = take(&end);
        end.next(CmEventKind::Established);
        await_death(victim);
        peer_died(&end);
        // There is nothing left to end, and that is no error.
        connection.0.disconnect().unwrap();
        drop(connection);
        nothing_is_left(&end);
    }
}

/// Who ends a connection does not wait for the dead, either.
#[test]
fn killed_and_then_told_of_the_end() {
    let (own, its) = ("127.45.8.1", "127.45.8.2");
    let end = End::new(&[own]);
    let listener = end.listener(&format!("{own}:0"), 8);
    let victim = victim_at("is patient", its, listener.local_addr());
    let connection = take(&end);
    end.next(CmEventKind::Established);
    await_death(victim);
    connection.0.disconnect().unwrap();
    peer_died(&end);
    drop(connection);
    nothing_is_left(&end);
}

/// A process that is stopped is not dead.
#[test]
fn stopped_when_established() {
    let (own, its) = ("127.45.9.1", "127.45.9.2");
    let end = End::new(&[own]);
    let listener = end.listener(&format!("{own}:0"), 8);
    let mut victim = victim_at("stops", its, listener.local_addr());
    let connection = take(&end);
    end.next(CmEventKind::Established);
    victim.line("may be stopped");
    victim.signal("STOP");
    std::thread::sleep(Duration::from_millis(2500));
    assert!(end.channel.try_next().is_none());
    victim.signal("KILL");
    peer_died(&end);
    drop(connection);
    nothing_is_left(&end);
}

#[test]
fn killed_while_it_ends() {
    for (own, its, _) in addresses(6) {
        let end = End::new(&[&own]);
        let listener = end.listener(&format!("{own}:0"), 8);
        let victim = victim_at("ends", &its, listener.local_addr());
        let connection = take(&end);
        await_death(victim);
        end.next(CmEventKind::Established);
        assert_eq!(end.next(CmEventKind::Disconnected).status, 0);
        drop(connection);
        nothing_is_left(&end);
    }
}

/// Whoever can hear of the end has answered it: programs leave right after.
#[test]
fn killed_when_it_hears_of_the_end() {
    let end = End::new(&["127.45.7.1"]);
    let listener = end.listener("127.45.7.1:0", 8);
    for _ in 0..40 {
        let victim = victim_at("hears the end", "127.45.7.2", listener.local_addr());
        let connection = take(&end);
        end.next(CmEventKind::Established);
        connection.0.disconnect().unwrap();
        await_death(victim);
        assert_eq!(end.next(CmEventKind::Disconnected).status, 0);
        connection.0.close();
    }
    nothing_is_left(&end);
}
