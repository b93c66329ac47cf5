//! The interface of the device's only address goes down and comes up again, in a network namespace of its own: the port's events, and traffic after
//! them. And destinations that no route leads to, or whose next hop is silent.
//!
//! Needs `unshare` and `ip` and the right to make user namespaces; says so loudly where it cannot run.

mod namespace_support;
mod objects_support;

use ferroce_nic::{Config, Cq, Error, EventSource, Nic, Pd, Strict};
use ferroce_proto::verbs::{
    AddressVector, AttrMask, EventKind, QpAttr, QpState, RecvWr, SendOp, Transport, WcStatus,
};
use namespace_support::{UNSHARE, can_make_namespace};
use objects_support::{completions, create, gid, init, open, pair, post};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Set in the process that is in the namespace only.
const INSIDE: &str = "PORT_EVENTS_INSIDE";

#[test]
fn a_port_goes_down_and_comes_up() {
    if std::env::var(INSIDE).is_ok() {
        return inside();
    }
    if !can_make_namespace() {
        return;
    }
    let mut command = Command::new("unshare");
    command.args(UNSHARE).arg(std::env::current_exe().unwrap());
    let test = ["a_port_goes_down_and_comes_up", "--exact", "--nocapture"];
    let output = command.args(test).env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The next events of the device, which come in this order, all from its port.
#[track_caller]
fn expect(nic: &Nic, kinds: &[EventKind]) {
    let start = Instant::now();
    for &kind in kinds {
        let event = loop {
            match nic.try_event() {
                Some(event) => break event,
                None => assert!(start.elapsed() < Duration::from_secs(10), "waited in vain for {kind:?}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!((event.kind, event.source), (kind, EventSource::Port(1)));
    }
}

/// Nobody leads to the GID: the system's reason, when a queue pair is connected and when an address handle is created.
fn unreachable(pd: &Arc<Pd>, cq: &Cq) {
    let av = AddressVector { dgid: gid("192.0.2.9"), hop_limit: 64, ..AddressVector::default() };
    let qp = create(pd, cq, Transport::Rc);
    init(&qp);
    let attr = QpAttr { state: QpState::Rtr, av, ..QpAttr::default() };
    use AttrMask as M;
    let mask =
        M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    for refused in [qp.modify(&attr, mask), pd.create_address_handle(&av).map(drop)] {
        let Err(Error::NoRoute { from, to, source }) = refused else { panic!("{refused:?}") };
        assert_eq!((from, to), ("10.98.0.1".parse().unwrap(), "192.0.2.9".parse().unwrap()));
        assert_eq!(source.raw_os_error(), Some(libc::ENETUNREACH));
    }
}

/// A next hop that does not answer, and one that does, in strict mode only.
fn silent_next_hop() {
    ip("addr add 10.97.0.1/24 dev left");
    ip("ntable change name arp_cache dev left retrans 50");
    ip("route add 192.0.2.0/24 via 10.97.0.9");
    ip("route add 198.51.100.0/24 via 10.97.0.8");
    ip("neigh add 10.97.0.8 lladdr 02:00:00:00:00:08 dev left nud permanent");
    for strict in [None, Some(Strict::AnyNic)] {
        let addresses = Some(vec!["10.97.0.1".parse().unwrap()]);
        let nic =
            Nic::open(Config::default().with(|c| (c.addresses, c.strict) = (addresses, strict))).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let ah = |address: &str| {
            let av = AddressVector { dgid: gid(address), hop_limit: 64, ..AddressVector::default() };
            pd.create_address_handle(&av).map(drop)
        };
        ah("198.51.100.7").unwrap();
        match (strict, ah("192.0.2.9")) {
            (None, Ok(())) => {}
            (Some(_), Err(error @ Error::NextHopSilent { .. })) => {
                let text = error.to_string();
                let expected = "the next hop 10.97.0.9 on left, through which 192.0.2.9 is reached, did not answer ARP for ";
                assert!(text.starts_with(expected), "{text}");
            }
            (_, outcome) => panic!("{outcome:?}"),
        }
    }
}

fn inside() {
    ip("link set lo up");
    ip("link add left type veth peer name right");
    ip("addr add 10.98.0.1/24 dev left");
    ip("link set left up");
    ip("link set right up");
    let nic = open("10.98.0.1");
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(16, None, 0).unwrap());
    let (a, b) = pair(&nic, &pd, &cq, Transport::Rc);
    let is_up = || nic.gids().iter().any(|gid| gid.up);
    for _ in 0..3 {
        assert!(is_up() && nic.try_event().is_none());
        ip("link set left down");
        expect(&nic, &[EventKind::GidChange, EventKind::PortErr]);
        assert!(!is_up());
        ip("link set left up");
        expect(&nic, &[EventKind::GidChange, EventKind::PortActive]);
        b.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
        post(&a, 2, SendOp::Send, &[]);
        assert!(completions(&cq, 2).iter().all(|completion| completion.status == WcStatus::Success));
    }
    unreachable(&pd, &cq);
    // What happens to an interface that no address of the device is on is none of its business.
    ip("link set right down");
    ip("link set right up");
    ip("addr add 10.98.0.2/24 dev right");
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_up() && nic.try_event().is_none());
    drop((a, b, cq, pd, nic));
    silent_next_hop();
    // Registries are per namespace; that of one which ends with the test would stay for ever.
    let inode = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
    let _ = std::fs::remove_dir_all(format!("/dev/shm/ferroce-0-{inode}"));
}
