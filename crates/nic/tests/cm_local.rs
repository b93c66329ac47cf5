//! Connections between processes of one host need no wire, unless something stands in the way; then they use it, and nobody
//! notices.

mod child_support;
mod cm_support;

use child_support::Other;
use cm_support::{End, advance, completion, param, send, wait_until};
use ferroce_nic::registry::{Registry, default_base};
use ferroce_nic::{CmEventKind, CmId, CmTransport, Config, LinkChoice, PortSpace, Qp, RejectReason};
use ferroce_proto::verbs::{QpState, RecvWr};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// What the other process does; set in that process only.
const ROLE: &str = "CM_LOCAL_ROLE";
const ADDRESS: &str = "CM_LOCAL_ADDRESS";
const NOBODY: u32 = 65_534;

fn listener_at(role: &str, address: &str) -> Other {
    listener_of(&mut Other::command("other_process"), role, address)
}

fn listener_of(command: &mut Command, role: &str, address: &str) -> Other {
    Other::start(command.env(ROLE, role).env(ADDRESS, address))
}

/// The same as user nobody, who may not enter the directory that the tests lie in.
fn listener_of_nobody(role: &str, address: &str) -> Other {
    let copy = std::env::temp_dir().join(format!("ferroce-cm-local-{}-{address}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(["other_process", "--exact", "--nocapture"]).current_dir("/").uid(NOBODY).gid(NOBODY);
    let other = listener_of(&mut command, role, address);
    std::fs::remove_file(copy).unwrap();
    other
}

/// Not a test: the process that listens.
#[test]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let address = std::env::var(ADDRESS).unwrap();
    let end = End::new(&[&address]);
    let listener = end.listener(&format!("{address}:0"), 8);
    println!("@slot {}", end.nic.slot());
    println!("@listens {}", listener.local_addr().unwrap());
    let request = end.next(CmEventKind::ConnectRequest);
    match role.as_str() {
        "accepts" => {
            let qp = end.qp();
            advance(&request.id, &qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
            qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
            request.id.accept(&param(&qp, b"")).unwrap();
            end.next(CmEventKind::Established);
            assert_eq!(completion(&end.cq).wr_id, 1);
            assert_eq!(end.next(CmEventKind::Disconnected).status, 0);
            println!("@ways {}", ways(&end));
        }
        "rejects" => {
            request.id.reject(RejectReason::CONSUMER, b"no").unwrap();
            println!("@ways {}", ways(&end));
        }
        other => panic!("no role {other}"),
    }
}

/// Which ways messages took, in words: none of them by UDP that was not repeated, or all.
fn ways(end: &End) -> &'static str {
    let (cm, link) = (end.nic.counters().cm, end.nic.counters().link);
    let allowed = cm["repeated"] + cm["sent_mra"];
    match (link.local_tx_packets, link.tx_packets) {
        (0, 1..) => "UDP",
        (1.., udp) if udp <= allowed => "memory",
        (local, udp) => {
            panic!("{local} packets through memory and {udp} by UDP, {allowed} messages repeated")
        }
    }
}

/// What both ends of a connection on one host should say.
fn expected_ways() -> &'static str {
    if Config::from_env().unwrap().link == LinkChoice::Udp { "UDP" } else { "memory" }
}

fn request(end: &End, to: SocketAddr) -> (Arc<CmId>, Qp) {
    let (id, qp) = (end.routed(PortSpace::Tcp, to), end.qp());
    id.set_options(|options| (options.response_timeout, options.max_retries) = (Some(14), Some(7)));
    advance(&id, &qp, &[QpState::Init]);
    id.connect(CmTransport::Rc, &param(&qp, b"")).unwrap();
    (id, qp)
}

/// A whole connection to a process that accepts, which it outlives.
fn connect_send_disconnect(end: &End, to: SocketAddr) {
    let (id, qp) = request(end, to);
    end.next(CmEventKind::ConnectResponse);
    advance(&id, &qp, &[QpState::Rtr, QpState::Rts]);
    id.establish().unwrap();
    cm_support::post(&qp);
    assert_eq!(completion(&end.cq).wr_id, 2);
    id.disconnect().unwrap();
    assert_eq!(end.next(CmEventKind::Disconnected).status, 0);
}

#[test]
fn two_processes_connect_without_a_wire() {
    // With addresses of their own, and with one that they share.
    for its in ["127.47.1.2", "127.47.1.1"] {
        let end = End::new(&["127.47.1.1"]);
        let mut other = listener_at("accepts", its);
        connect_send_disconnect(&end, other.line("@listens ").parse().unwrap());
        assert_eq!(other.line("@ways "), expected_ways());
        assert_eq!(ways(&end), expected_ways());
        other.finish();
    }
}

#[test]
fn a_refusal_needs_no_wire() {
    let end = End::new(&["127.47.2.1"]);
    let mut other = listener_at("rejects", "127.47.2.2");
    let (_id, _qp) = request(&end, other.line("@listens ").parse().unwrap());
    let rejected = end.next(CmEventKind::Rejected);
    assert_eq!(rejected.status, i32::from(RejectReason::CONSUMER.0));
    assert_eq!(other.line("@ways "), expected_ways());
    assert_eq!(ways(&end), expected_ways());
    other.finish();
}

#[test]
fn three_on_one_address_find_each_other() {
    let end = End::new(&["127.47.3.1"]);
    let mut others = [(); 2].map(|()| listener_at("accepts", "127.47.3.1"));
    let to = others.each_mut().map(|other| other.line("@listens ").parse().unwrap());
    for (to, other) in to.into_iter().zip(others) {
        connect_send_disconnect(&end, to);
        other.finish();
    }
    assert_eq!(ways(&end), expected_ways());
}

#[test]
fn a_local_peer_without_shared_memory_is_reached_by_udp() {
    let end = End::new(&["127.47.4.1"]);
    let mut without = Other::command("other_process");
    let mut other = listener_of(without.env("FERROCE_LINK", "udp"), "accepts", "127.47.4.1");
    connect_send_disconnect(&end, other.line("@listens ").parse().unwrap());
    assert_eq!(other.line("@ways "), "UDP");
    assert_eq!(ways(&end), "UDP");
    other.finish();
}

#[test]
fn who_has_stopped_does_not_answer_and_nobody_waits_longer() {
    let end = End::new(&["127.47.5.1"]);
    let mut other = listener_at("accepts", "127.47.5.2");
    let to = other.line("@listens ").parse().unwrap();
    other.stop();
    let (_id, _qp) = request(&end, to);
    assert_eq!(end.next(CmEventKind::Unreachable).status, -libc::ETIMEDOUT);
    let repeats = end.nic.counters().cm["repeated"];
    assert!(repeats > 0 && end.nic.counters().link.tx_packets >= repeats, "repetitions take the other way");
}

/// Another user's processes count their slots anew, so one of ours may have the same.
#[test]
fn another_user_is_reached_by_udp_although_its_slot_is_one_of_ours() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return println!("SKIPPED: only root can be another user");
    }
    let end = End::new(&["127.47.6.1"]);
    let mut other = listener_of_nobody("accepts", "127.47.6.2");
    let slot: u8 = other.line("@slot ").parse().unwrap();
    let to = other.line("@listens ").parse().unwrap();
    let _namesake = (0..300).find_map(|_| {
        let next = Registry::open(&default_base()).unwrap().slot() % 254 + 1;
        (next == slot).then(|| End::new(&["127.47.6.3"])).filter(|end| end.nic.slot() == slot)
    });
    connect_send_disconnect(&end, to);
    assert_eq!(other.line("@ways "), "UDP");
    assert_eq!(ways(&end), "UDP");
    other.finish();
}

/// Nothing is concluded of another user's process from the death of one of ours that has the same slot.
#[test]
fn the_death_of_a_namesake_ends_nothing() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return println!("SKIPPED: only root can be another user");
    }
    let mut other = listener_of_nobody("accepts", "127.47.9.2");
    let slot: u8 = other.line("@slot ").parse().unwrap();
    let to = other.line("@listens ").parse().unwrap();
    let mut namesake = None;
    // Tests beside this one may have the slot for a while.
    wait_until(|| {
        let next = Registry::open(&default_base()).unwrap().slot() % 254 + 1;
        let found = (next == slot).then(|| End::new(&["127.47.9.3"])).filter(|end| end.nic.slot() == slot);
        namesake = found;
        namesake.is_some()
    });
    let end = End::new(&["127.47.9.1"]);
    let (id, qp) = request(&end, to);
    end.next(CmEventKind::ConnectResponse);
    advance(&id, &qp, &[QpState::Rtr, QpState::Rts]);
    id.establish().unwrap();
    drop(namesake);
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert!(end.channel.try_next().is_none());
    cm_support::post(&qp);
    completion(&end.cq);
    id.disconnect().unwrap();
    assert_eq!(end.next(CmEventKind::Disconnected).status, 0);
    assert_eq!(end.nic.counters().cm["peer_died"], 0);
    other.finish();
}

/// A process that goes while its last message lies in a ring is heard all the same.
#[test]
fn the_last_word_is_heard() {
    for _ in 0..20 {
        let end = End::new(&["127.47.7.1"]);
        let mut other = listener_at("rejects", "127.47.7.2");
        let (_id, _qp) = request(&end, other.line("@listens ").parse().unwrap());
        other.finish();
        assert_eq!(end.next(CmEventKind::Rejected).status, i32::from(RejectReason::CONSUMER.0));
    }
}

/// Messages and data take the same way, so that they cannot get in each other's.
#[test]
fn connections_come_and_go_under_traffic() {
    let (a, b) = (End::new(&["127.47.8.1"]), End::new(&["127.47.8.2"]));
    let listener = b.listener("127.47.8.2:0", 8);
    let to = listener.local_addr().unwrap();
    let [(_busy_id, busy), (_their_id, theirs)] = cm_support::connected(&a, &b, to);
    for _ in 0..50 {
        send((&a, &busy), (&b, &theirs));
        let [(id, qp), (their_id, their_qp)] = cm_support::connected(&a, &b, to);
        send((&b, &their_qp), (&a, &qp));
        id.disconnect().unwrap();
        assert_eq!(a.next(CmEventKind::Disconnected).status, 0);
        assert_eq!(b.next(CmEventKind::Disconnected).status, 0);
        drop((their_id, id));
    }
    wait_until(|| a.nic.counters().cm["connections_now"] == 1);
    assert_eq!(ways(&a), expected_ways());
}
