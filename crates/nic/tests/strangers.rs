//! Another program of this host that sends from the peer's address and knows QPN, PSN and rkey. It owns another UDP port than the peer's
//! process, so nothing of what it sends has an effect.

mod objects_support;

use ferroce_nic::{Config, Cq, LinkChoice, Nic, Qp};
use ferroce_proto::verbs::{Access, QpState, RecvWr, SendOp, Transport, WcStatus};
use ferroce_proto::wire::{
    Aeth, AtomicEth, Bth, FlowAddrs, Headers, NakCode, Opcode, Operation, ROCE_UDP_PORT, Reth, Service,
    Syndrome, icrc,
};
use ferroce_proto::{Psn, Qpn, RKey};
use objects_support::{Buffer, completions, connect_at, create, gid, post};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const NEAR: &str = "127.92.20.1";
const FAR: &str = "127.92.20.2";
const MAX_WAIT: Duration = Duration::from_secs(30);

/// With shared memory, also where the tests run over UDP: only then does a NIC know the ports of its local peers.
fn open(address: &str) -> Nic {
    let addresses = Some(vec![address.parse().unwrap()]);
    let config = Config::from_env().unwrap().with(|c| (c.addresses, c.link) = (addresses, LinkChoice::Auto));
    Nic::open(config).unwrap()
}

struct End {
    nic: Nic,
    cq: Cq,
    qp: Qp,
    memory: Buffer,
}

impl End {
    fn open(address: &str) -> End {
        let nic = open(address);
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
        let qp = create(&pd, &cq, Transport::Rc);
        let memory = Buffer::new(&pd, 4096, Access::LOCAL_WRITE | Access::REMOTE);
        End { nic, cq, qp, memory }
    }

    fn expect(&self) {
        self.qp.post_recv(&[RecvWr { wr_id: 7, sges: &[self.memory.sge(0, 64)] }]).unwrap();
    }

    fn send(&self) {
        self.memory.fill(128, 8, 0x55);
        post(&self.qp, 1, SendOp::Send, &[self.memory.sge(128, 8)]);
    }

    fn forged(&self) -> u64 {
        self.nic.counters().drops["wrong_port"]
    }
}

/// A socket at the address of one end, which is not that end's.
struct Forger {
    socket: UdpSocket,
    from: &'static str,
}

impl Forger {
    fn at(from: &'static str) -> Forger {
        Forger { socket: UdpSocket::bind((from, 0)).unwrap(), from }
    }

    /// Sends a packet to an end, and waits until it has arrived. It changes nothing there.
    fn send(&self, to: &End, address: &str, headers: &Headers, payload: &[u8]) {
        let (before, state) = (to.forged(), to.qp.query().state);
        let mut bytes = vec![0; 256];
        let len = headers.write(&mut bytes);
        bytes.truncate(len);
        bytes.extend(payload);
        let flow = FlowAddrs::new(gid(self.from), gid(address), self.socket.local_addr().unwrap().port());
        bytes.extend(icrc(&flow, 0, &bytes));
        self.socket.send_to(&bytes, (address, ROCE_UDP_PORT)).unwrap();
        let start = Instant::now();
        while to.forged() == before {
            assert!(start.elapsed() < MAX_WAIT, "{:?} was not dropped", headers.bth.opcode);
            std::thread::yield_now();
        }
        assert_eq!((to.forged(), to.qp.query().state), (before + 1, state), "{:?}", headers.bth.opcode);
        assert!(to.cq.poll(&mut [Default::default()]).unwrap() == 0, "{:?}", headers.bth.opcode);
        assert!(to.memory.read(0, 128).iter().all(|&byte| byte == 0), "{:?}", headers.bth.opcode);
    }
}

fn packet(operation: Operation, to: Qpn, psn: u32) -> Headers {
    let opcode = Opcode::new(Service::Rc, operation);
    Headers::new(Bth { ack_req: true, ..Bth::new(opcode, to, Psn::new(psn)) })
}

#[test]
fn what_a_stranger_sends_from_the_peers_address_has_no_effect() {
    let (a, b) = (End::open(NEAR), End::open(FAR));
    connect_at(gid(FAR), &a.qp, b.qp.qpn());
    connect_at(gid(NEAR), &b.qp, a.qp.qpn());
    let take = || {
        for end in [&a, &b] {
            assert_eq!(completions(&end.cq, 1)[0].status, WcStatus::Success);
            end.memory.fill(0, 128, 0);
        }
    };
    b.expect();
    a.send();
    take();

    // The requests that the responder expects next.
    let as_a = Forger::at(NEAR);
    b.expect();
    let (addr, rkey) = (b.memory.addr(64), b.memory.mr.rkey());
    let to_b = |operation| packet(operation, b.qp.qpn(), 1);
    let reth = |rkey| Some(Reth { addr, rkey, len: 8 });
    let atomic = Some(AtomicEth { addr, rkey, swap_or_add: 1, compare: 0 });
    let requests = [
        to_b(Operation::SendOnly),
        Headers { reth: reth(rkey), ..to_b(Operation::WriteOnly) },
        Headers { atomic, ..to_b(Operation::FetchAdd) },
        // Would end the connection.
        Headers { reth: reth(RKey(rkey.0 ^ 1)), ..to_b(Operation::WriteOnly) },
    ];
    for headers in &requests {
        let payload = if headers.atomic.is_some() { &[][..] } else { &[0xaa; 8] };
        as_a.send(&b, FAR, headers, payload);
    }
    a.send();
    take();

    // The answers that the requester waits for: its peer has posted no receive.
    let as_b = Forger::at(FAR);
    a.send();
    let answers = [
        Syndrome::ACK_NO_CREDIT,
        Syndrome::Nak(NakCode::PsnSequence),
        // Would end the connection.
        Syndrome::Nak(NakCode::RemoteAccess),
    ];
    for syndrome in answers {
        let aeth = Some(Aeth { syndrome, msn: 3 });
        let headers = Headers { aeth, ..packet(Operation::Acknowledge, a.qp.qpn(), 2) };
        as_b.send(&a, NEAR, &headers, &[]);
    }
    b.expect();
    take();
    assert_eq!([&a, &b].map(|end| end.qp.query().state), [QpState::Rts; 2]);
    assert_eq!([&a, &b].map(End::forged), [3, 4]);
}
