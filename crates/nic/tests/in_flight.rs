//! Buffers of requests in flight: a program that leaves them alone is not reported, and one that changes them goes on.

#![expect(unsafe_code, reason = "registers mapped memory, and writes to pages that are protected")]

mod cm_support;
mod objects_support;

use cm_support::{End, advance, param};
use ferroce_nic::{
    CmEventKind, CmId, CmTransport, Config, Cq, MemoryRegion, Nic, Pd, PortSpace, Qp, QpInit, Srq, Wire,
};
use ferroce_proto::verbs::{
    Access, AttrMask, Completion, Payload, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, Transport,
};
use objects_support::{completions, create, post, post_to};
use std::net::SocketAddr;
use std::process::{Command, Output};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the other process does; set in that process only.
const ROLE: &str = "IN_FLIGHT_ROLE";
const PAGE: usize = 4096;

/// Two connected queue pairs, and two pages of memory.
struct Ends {
    pd: Arc<Pd>,
    a: Qp,
    b: Qp,
    cq: Cq,
    region: MemoryRegion,
    _connection: Connection,
}

impl Ends {
    fn open(wire: Wire) -> Ends {
        let nic = open("127.91.66.1", wire);
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
        let [a, b] = [(); 2].map(|()| create(&pd, &cq, Transport::Rc));
        let _connection = connect(&nic, &a, &b);
        let region = register(&pd, map(libc::PROT_READ | libc::PROT_WRITE));
        Ends { pd, a, b, cq, region, _connection }
    }

    fn post(&self, qp: &Qp, op: SendOp, page: usize, flags: SendFlags) {
        let sges = [self.region.sge(page * PAGE, PAGE as u32)];
        let wr = SendWr { wr_id: 7, op, payload: Payload::Sges(&sges), flags, ud: None, srq: None };
        qp.post_send(&[wr]).unwrap();
    }

    /// A WRITE of one page into the other.
    fn write(&self, from: usize, flags: SendFlags) {
        let addr = self.region.iova() + ((1 - from) * PAGE) as u64;
        self.post(&self.a, SendOp::Write { addr, rkey: self.region.rkey() }, from, flags);
    }

    fn receive(&self, qp: &Qp, page: usize) {
        qp.post_recv(&[RecvWr { wr_id: 8, sges: &[self.region.sge(page * PAGE, PAGE as u32)] }]).unwrap();
    }

    fn touch(&self, page: usize) {
        touch(self.region.addr() + page * PAGE);
    }
}

/// A NIC that is watched.
fn open(address: &str, wire: Wire) -> Nic {
    let addresses = Some(vec![address.parse().unwrap()]);
    let config = Config::default().with(|c| (c.addresses, c.watch, c.wire) = (addresses, true, wire));
    let nic = Nic::open(config).unwrap();
    assert!(nic.is_watched());
    nic
}

/// What a connection of iWARP needs while it lasts.
type Connection = Vec<(End, Arc<CmId>)>;

/// Connects two queue pairs of a NIC.
fn connect(nic: &Nic, a: &Qp, b: &Qp) -> Connection {
    if nic.wire() == Wire::Roce {
        objects_support::connect(nic, a, b.qpn());
        objects_support::connect(nic, b, a.qpn());
        return Vec::new();
    }
    let [client, server] = [(); 2].map(|()| End {
        nic: nic.clone(),
        channel: nic.create_cm_channel().unwrap(),
        pd: nic.alloc_pd().unwrap(),
        cq: nic.create_cq(1, None, 0).unwrap(),
        refused: None,
    });
    let address = SocketAddr::new(nic.gids()[0].gid.to_ip(), 0);
    let listener = server.listener(&address.to_string(), 1);
    let id = client.routed(PortSpace::Tcp, listener.local_addr().unwrap());
    advance(&id, a, &[QpState::Init]);
    id.connect(CmTransport::Rc, &param(a, b"")).unwrap();
    let request = server.next(CmEventKind::ConnectRequest);
    advance(&request.id, b, &[QpState::Init]);
    request.id.accept(&param(b, b"")).unwrap();
    client.next(CmEventKind::Established);
    server.next(CmEventKind::Established);
    vec![(client, id), (server, request.id)]
}

fn map(protection: libc::c_int) -> usize {
    map_at(0, protection)
}

/// Maps new memory, at an address unless that is 0.
fn map_at(at: usize, protection: libc::c_int) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if at == 0 { 0 } else { libc::MAP_FIXED };
    // SAFETY: new memory, or instead of memory of these tests that nobody uses.
    let mapped = unsafe { libc::mmap(at as *mut libc::c_void, 2 * PAGE, protection, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped as usize
}

fn register(pd: &Arc<Pd>, at: usize) -> MemoryRegion {
    // SAFETY: it is unmapped only after the region is gone.
    let region = unsafe { pd.register(at, 2 * PAGE, at as u64, Access::LOCAL_WRITE | Access::REMOTE, None) };
    region.unwrap()
}

fn touch(at: usize) {
    // SAFETY: a byte of `map`. If it is protected, the write raises a signal.
    unsafe { ptr::write_volatile(at as *mut u8, 1) };
}

/// Not a test: the process that is watched.
#[test]
fn other_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("clean") => be_clean(Wire::Roce),
        Ok("iwarp clean") => be_clean(Wire::Iwarp),
        Ok("iwarp misused") => misuse_on_iwarp(),
        Ok("deregistered") => deregister_in_flight(),
        Ok("srq") => share_receives(Wire::Roce, false),
        Ok("srq misused") => share_receives(Wire::Roce, true),
        Ok("iwarp srq") => share_receives(Wire::Iwarp, false),
        Ok("iwarp srq misused") => share_receives(Wire::Iwarp, true),
        Ok("xrc srq") => share_xrc_receives(false),
        Ok("xrc srq misused") => share_xrc_receives(true),
        Ok("threads") => write_from_threads(),
        Ok("illegal") => {
            let _ends = Ends::open(Wire::Roce);
            touch(map(libc::PROT_READ));
        }
        _ => {}
    }
}

fn be_clean(wire: Wire) {
    let ends = Ends::open(wire);
    let Ends { a, b, cq, .. } = &ends;
    // The answer arrives in the buffer of the question, which nobody has polled.
    for _ in 0..50 {
        ends.receive(a, 0);
        ends.receive(b, 1);
        ends.post(a, SendOp::Send, 0, SendFlags::SIGNALED);
        ends.post(b, SendOp::Send, 1, SendFlags::SIGNALED);
        completions(cq, 4);
        ends.touch(0);
        ends.touch(1);
    }
    // One buffer is in flight several times.
    for _ in 0..8 {
        ends.write(0, SendFlags::SIGNALED);
    }
    completions(cq, 8);
    ends.touch(0);
    // A message of the peer may say that an unsignalled request is done.
    ends.receive(a, 1);
    ends.write(0, SendFlags::empty());
    ends.post(b, SendOp::Send, 0, SendFlags::SIGNALED);
    completions(cq, 2);
    ends.touch(0);
    // A child has its own copy.
    ends.write(0, SendFlags::SIGNALED);
    // SAFETY: the child writes to memory, and ends.
    match unsafe { libc::fork() } {
        0 => {
            ends.touch(0);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: fills the status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    // A request that is refused uses no memory.
    let receive =
        |n: usize| b.post_recv(&[RecvWr { wr_id: 8, sges: &[ends.region.sge(PAGE + n % 64 * 8, 8)] }]);
    (0..64).for_each(|n| receive(n).unwrap());
    assert!(receive(64).is_err());
    // RESET ends what was not polled, and so does the end of the queue pair. iWARP has no way back to RESET.
    if wire == Wire::Roce {
        a.modify(&QpAttr { state: QpState::Reset, ..QpAttr::default() }, AttrMask::STATE).unwrap();
        ends.touch(0);
    }
    ends.post(b, SendOp::Send, 1, SendFlags::SIGNALED);
    let Ends { a, b, region, cq, .. } = ends;
    drop((a, b));
    touch(region.addr());
    touch(region.addr() + PAGE);
    assert_eq!(cq.poll(&mut []).unwrap(), 0);
}

/// A buffer is changed before its completion is polled, and two receives have the same buffer.
fn misuse_on_iwarp() {
    let ends = Ends::open(Wire::Iwarp);
    ends.write(0, SendFlags::SIGNALED);
    ends.touch(0);
    completions(&ends.cq, 1);
    ends.receive(&ends.b, 1);
    ends.receive(&ends.b, 1);
}

/// A region is deregistered while requests on it are not completed: its memory is the program's again.
fn deregister_in_flight() {
    let mut ends = Ends::open(Wire::Roce);
    let at = ends.region.addr();
    ends.receive(&ends.a, 1);
    ends.write(0, SendFlags::SIGNALED);
    ends.region.deregister().unwrap();
    touch(at);
    // Nothing is left of the receive, either.
    ends.region = register(&ends.pd, at);
    ends.receive(&ends.b, 1);
    ends.write(0, SendFlags::SIGNALED);
    ends.region.deregister().unwrap();
    // The completions must not change the rights of memory that is mapped anew.
    map_at(at, libc::PROT_READ);
    let mut done = 0;
    while done < 2 {
        done += ends.cq.poll(&mut [Completion::default(); 2]).unwrap();
    }
    let mapped = format!("{at:x}-{:x} r--p", at + 2 * PAGE);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains(&mapped), "{mapped} is not in {maps}");
}

/// Receives of a shared queue use their buffers one after the other, or both at the same time.
fn share_receives(wire: Wire, is_misused: bool) {
    let nic = open("127.91.66.2", wire);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
    let region = register(&pd, map(libc::PROT_READ | libc::PROT_WRITE));
    let srq = pd.create_srq(16, 1).unwrap();
    let receive = |page: usize| {
        srq.post_recv(&[RecvWr { wr_id: 9, sges: &[region.sge(page * PAGE, PAGE as u32)] }]).unwrap();
    };
    let recv_cq = nic.create_cq(64, None, 0).unwrap();
    let init = QpInit {
        transport: Transport::Rc,
        send_cq: &cq,
        recv_cq: &recv_cq,
        srq: Some(&srq),
        cap: objects_support::CAP,
        signal_all: true,
    };
    let [a, b] = [(); 2].map(|()| pd.create_qp(&init).unwrap());
    let _connection = connect(&nic, &a, &b);
    for qp in [&a, &b, &a] {
        receive(1);
        post(qp, 1, SendOp::Send, &[region.sge(0, 8)]);
        completions(&cq, 1);
        completions(&recv_cq, 1);
    }
    // The completion of the receive is never polled: it goes with the queue pair. The READ ends after the SEND has taken the receive.
    receive(1);
    post(&a, 1, SendOp::Send, &[region.sge(0, 8)]);
    post(&a, 1, SendOp::Read { addr: region.iova(), rkey: region.rkey() }, &[region.sge(8, 8)]);
    completions(&cq, 2);
    drop((a, b));
    receive(1);
    if is_misused {
        receive(1);
    }
}

/// The same with XRC shared receive queues. They have one completion queue, and all their receives have the same `wr_id`.
fn share_xrc_receives(is_misused: bool) {
    let nic = open("127.91.66.3", Wire::Roce);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
    let (domain, recv_cq) = (nic.alloc_xrc_domain().unwrap(), nic.create_cq(64, None, 0).unwrap());
    let region = register(&pd, map(libc::PROT_READ | libc::PROT_WRITE));
    let create_queue = || pd.create_xrc_srq(16, 1, &domain, &recv_cq).unwrap();
    let receive = |srq: &Srq, piece: usize| {
        srq.post_recv(&[RecvWr { wr_id: 9, sges: &[region.sge(PAGE + piece * 64, 64)] }]).unwrap();
    };
    let send = |ini: &Qp, srq: &Srq| {
        post_to(ini, 1, SendOp::Send, &[region.sge(0, 8)], srq.number());
        completions(&cq, 1);
    };
    let connected = || {
        let (ini, target) = (create(&pd, &cq, Transport::XrcIni), domain.create_target(&nic).unwrap());
        connect(&nic, &ini, &target);
        (ini, target)
    };
    let (first, second) = (create_queue(), create_queue());
    let (ini, target) = connected();
    receive(&first, 0);
    for _ in 0..3 {
        receive(&second, 1);
        send(&ini, &second);
        completions(&recv_cq, 1);
    }
    send(&ini, &first);
    completions(&recv_cq, 1);
    // A message has taken the receive, and its completion is never polled: it ends with the queue pair.
    receive(&first, 0);
    send(&ini, &first);
    drop((ini, target));
    receive(&second, 0);
    // Or with the queue that it was posted to.
    let (ini, _target) = connected();
    receive(&first, 1);
    send(&ini, &first);
    drop(first);
    receive(&second, 1);
    if is_misused {
        receive(&create_queue(), 1);
    }
}

/// Threads change a buffer while it is protected and released again.
fn write_from_threads() {
    let ends = Ends::open(Wire::Roce);
    let (is_over, at) = (AtomicBool::new(false), ends.region.addr());
    std::thread::scope(|scope| {
        for n in 0..3 {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    touch(at + n);
                }
            });
        }
        for _ in 0..300 {
            ends.write(0, SendFlags::SIGNALED);
            // Each WRITE is changed, however the threads are scheduled.
            ends.touch(0);
            completions(&ends.cq, 1);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

fn run(role: &str) -> (Output, usize) {
    let mut command = Command::new("timeout");
    command.arg("100").arg(std::env::current_exe().unwrap());
    command.args(["other_process", "--exact", "--nocapture"]).env(ROLE, role).env("FERROCE_LOG", "explain");
    let output = command.output().unwrap();
    let sentences = String::from_utf8_lossy(&output.stderr).matches("misused: ").count();
    (output, sentences)
}

#[test]
fn a_program_that_leaves_its_buffers_alone_is_not_reported() {
    for role in ["clean", "iwarp clean"] {
        let (output, sentences) = run(role);
        assert!(output.status.success() && sentences == 0, "{role}: {output:?}");
    }
}

#[test]
fn requests_on_iwarp_are_watched() {
    let (output, sentences) = run("iwarp misused");
    assert!(output.status.success() && sentences == 2, "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("which the WRITE with wr_id 0x7 sends"), "{stderr}");
    assert!(stderr.contains("and so does the receive with wr_id 0x8 on QP "), "{stderr}");
}

#[test]
fn memory_that_was_deregistered_is_not_watched() {
    let (output, sentences) = run("deregistered");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(sentences, 0, "{output:?}");
}

#[test]
fn receives_of_a_shared_queue_are_watched() {
    for role in ["srq", "iwarp srq", "xrc srq"] {
        let (output, sentences) = run(role);
        assert!(output.status.success() && sentences == 0, "{role}: {output:?}");
        let (output, sentences) = run(&format!("{role} misused"));
        assert!(output.status.success() && sentences == 1, "{role}: {output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("the receive with wr_id 0x9 on SRQ "), "{stderr}");
    }
}

#[test]
fn a_program_whose_threads_change_a_buffer_goes_on() {
    let (output, sentences) = run("threads");
    assert!(output.status.success(), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(sentences == 5 && stderr.contains("Further changes are not reported"), "{output:?}");
}

#[test]
fn a_write_to_memory_that_is_read_only_still_ends_the_program() {
    let (output, sentences) = run("illegal");
    assert!(!output.status.success() && output.status.code() != Some(124), "{output:?}");
    assert_eq!(sentences, 0);
}
