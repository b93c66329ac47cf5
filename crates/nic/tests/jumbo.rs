//! Jumbo packets over UDP: on loopback, which carries datagrams of 64 KiB, two ferroce ends exchange packets that are longer than the path
//! MTU, unless the program or the user chose what a real network has.

mod objects_support;

use ferroce_nic::{Config, Cq, LinkChoice, Nic, Pd, Qp, Strict};
use ferroce_proto::qp::JUMBO_SEGMENT;
use ferroce_proto::verbs::{Access, Mtu, QpAttr, RecvWr, SendOp, Transport, WcStatus};
use objects_support::{Buffer, completions, connect_as, create, gid, post};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MEMORY: usize = 1 << 20;
const LEN: u32 = MEMORY as u32 - 3;

/// Two ends on NICs of their own, each with memory that the other may access.
struct Ends {
    nics: [Nic; 2],
    _pds: [Arc<Pd>; 2],
    cqs: [Cq; 2],
    qps: [Qp; 2],
    memory: [Buffer; 2],
}

impl Ends {
    fn new(addresses: [&str; 2], path_mtu: Mtu, change: impl Fn(&mut Config, usize)) -> Ends {
        let nics = [0, 1].map(|n| {
            let own = Some(vec![addresses[n].parse().unwrap()]);
            let config = Config::from_env().unwrap().with(|config| {
                (config.addresses, config.link) = (own, LinkChoice::Udp);
                change(config, n);
            });
            Nic::open(config).unwrap()
        });
        let pds = [0, 1].map(|n| nics[n].alloc_pd().unwrap());
        let cqs = [0, 1].map(|n| nics[n].create_cq(64, None, 0).unwrap());
        let qps = [0, 1].map(|n| create(&pds[n], &cqs[n], Transport::Rc));
        for (n, peer) in [(0, 1), (1, 0)] {
            let like = QpAttr { timeout: 14, path_mtu, ..QpAttr::default() };
            connect_as(gid(addresses[peer]), &qps[n], qps[peer].qpn(), like);
        }
        let memory = [0, 1].map(|n| Buffer::new(&pds[n], MEMORY, Access::LOCAL_WRITE | Access::REMOTE));
        Ends { nics, _pds: pds, cqs, qps, memory }
    }

    /// One SEND, WRITE and READ of the first end after its first message. Returns how many packets each took, READ counted at its responder.
    fn exchange(&self) -> [u64; 3] {
        let [near, far] = &self.memory;
        let (addr, rkey) = (far.addr(0), far.mr.rkey());
        let all = |memory: &Buffer| memory.sge(0, LEN);
        post(&self.qps[0], 0, SendOp::Write { addr, rkey }, &[near.sge(0, 8)]);
        assert_eq!(completions(&self.cqs[0], 1)[0].status, WcStatus::Success);
        let operations = [SendOp::Send, SendOp::Write { addr, rkey }, SendOp::Read { addr, rkey }];
        let mut value = 0;
        operations.map(|op| {
            value += 2;
            near.fill(0, MEMORY, value);
            far.fill(0, MEMORY, value + 1);
            let (is_read, is_send) = (matches!(op, SendOp::Read { .. }), op == SendOp::Send);
            if is_send {
                self.qps[1].post_recv(&[RecvWr { wr_id: 0, sges: &[all(far)] }]).unwrap();
            }
            let sender = &self.qps[usize::from(is_read)];
            let before = sender.counters().tx_packets;
            post(&self.qps[0], value.into(), op, &[all(near)]);
            assert_eq!(completions(&self.cqs[0], 1)[0].status, WcStatus::Success);
            if is_send {
                assert_eq!(completions(&self.cqs[1], 1)[0].status, WcStatus::Success);
            }
            assert!(near.read(0, MEMORY - 3) == far.read(0, MEMORY - 3), "{op:?}");
            let changed = if is_read { near } else { far };
            let kept = if is_read { value } else { value + 1 };
            assert_eq!(changed.read(MEMORY - 3, 3), [kept; 3], "bytes behind the message");
            sender.counters().tx_packets - before
        })
    }
}

const JUMBO: [u64; 3] = [LEN.div_ceil(JUMBO_SEGMENT) as u64; 3];

/// Checks that the packets keep to a path MTU. More are sent if the machine is so busy that some are retransmitted.
#[track_caller]
fn assert_mtu(packets: [u64; 3], mtu: u32) {
    let expected = u64::from(LEN.div_ceil(mtu));
    assert!(packets.iter().all(|sent| *sent >= expected), "{packets:?}, at least {expected} each");
}

#[test]
fn loopback_carries_jumbo_packets() {
    for (n, (a, b)) in [("127.0.77.1", "127.0.77.2"), ("127.0.77.3", "127.0.77.4")].into_iter().enumerate() {
        let ends = Ends::new([a, b], Mtu::B4096, |config, _| config.offload = n == 0);
        let packets = ends.exchange();
        let expected = u64::from(LEN.div_ceil(4096));
        assert!(
            packets.iter().zip(JUMBO).all(|(sent, least)| (least..expected).contains(sent)),
            "{packets:?}"
        );
    }
}

/// Ends the other thread of a test also if this one panics.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Packets point to registered memory, which programs may change at any time. Their ICRC leaves it out, so none is dropped for that.
#[test]
fn memory_that_changes_meanwhile_damages_no_packet() {
    let ends = Ends::new(["127.0.77.9", "127.0.77.10"], Mtu::B4096, |_, _| {});
    let [near, far] = &ends.memory;
    let (addr, rkey) = (far.addr(0), far.mr.rkey());
    // The packets of the first message keep to the path MTU and have an ordinary ICRC.
    post(&ends.qps[0], 0, SendOp::Write { addr, rkey }, &[near.sge(0, 8)]);
    assert_eq!(completions(&ends.cqs[0], 1)[0].status, WcStatus::Success);
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u8;
            while !has_ended.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                [near, far].iter().for_each(|memory| memory.fill(0, MEMORY, value));
            }
        });
        let _end = EndOnDrop(&has_ended);
        for round in 0..100 {
            for op in [SendOp::Write { addr, rkey }, SendOp::Read { addr, rkey }] {
                post(&ends.qps[0], round, op, &[near.sge(0, LEN)]);
                assert_eq!(completions(&ends.cqs[0], 1)[0].status, WcStatus::Success);
            }
        }
    });
    assert_eq!([0, 1].map(|n| ends.nics[n].counters().link.bad_icrc), [0, 0]);
}

#[test]
fn a_path_mtu_below_the_ports_holds() {
    assert_mtu(Ends::new(["127.0.77.5", "127.0.77.6"], Mtu::B2048, |_, _| {}).exchange(), 2048);
}

#[test]
fn a_real_network_has_its_own_mtu() {
    // Either end alone decides for both.
    for who in 0..2 {
        let capture = std::env::temp_dir().join(format!("ferroce-jumbo-{}-{who}.pcapng", std::process::id()));
        let changes: [&dyn Fn(&mut Config); 5] = [
            &|config| config.mtu = Some(Mtu::B4096),
            &|config| config.faults = Some("delay=1us".parse().unwrap()),
            &|config| config.capture = Some(capture.clone()),
            &|config| config.congestion = Some("dctcp".parse().unwrap()),
            &|config| config.strict = Some(Strict::AnyNic),
        ];
        for change in changes {
            let ends = Ends::new(["127.0.77.7", "127.0.77.8"], Mtu::B4096, |config, n| {
                if n == who {
                    change(config);
                }
            });
            assert_mtu(ends.exchange(), 4096);
        }
        std::fs::remove_file(capture).unwrap();
    }
}
