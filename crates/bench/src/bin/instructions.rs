//! The workload whose instructions `cargo xtask instructions` counts.
//!
//! Both ends of a connection are in one process, on two NICs. One thread serves both, and the background threads of the
//! NICs are parked, so that every run executes the same instructions. Callgrind collects only inside [`callgrind_collects`]
//! and dumps its counters after each call of [`callgrind_dumps`]. A row is measured in several batches, one dump each; the
//! reader takes the median. Standard output has one line per dump: the name of the row, a tab, the number of operations in
//! the batch.
//!
//! `instructions ROW` runs the rows whose name contains the word. Without valgrind the program only checks itself.

use ferroce::{
    Completion, Config, Cq, Device, LinkChoice, Mtu, Pd, RcQp, Region, RemoteRegion, WcStatus, wr,
};
use std::hint::black_box;
use std::io::PipeWriter;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

/// Dumps per row. A timer or an address change may disturb some of them, but not the median.
const BATCHES: usize = 15;
/// Operations in a batch: a multiple of every period in the engine (the clock is read each 16th time), so that batches are alike.
const OPERATIONS: u64 = 128;
/// Long messages in a batch.
const LONG_OPERATIONS: u64 = 4;
/// Operations before the first batch, until queues have their size and caches are filled.
const WARM_UP: u64 = 256;
const LONG_WARM_UP: u64 = 8;

const SHORT: u64 = 8;
const LONG: u64 = 1 << 20;
const PACKET: u64 = 4096;
const RECEIVES: u64 = 16;
/// Identifiers of work requests.
const REQUEST: u64 = 1;
const RECEIVE: u64 = 2;
/// The transport timer of a queue pair for short messages: 4.096 µs times two to this power.
const TIMEOUT: u8 = 14;
/// Number of polls without a completion that counts as a failure.
const MAX_EMPTY_POLLS: u64 = 1_000_000;

/// Callgrind collects inside this function and nowhere else (`--toggle-collect`).
#[inline(never)]
fn callgrind_collects(work: &mut dyn FnMut() -> bool) -> bool {
    // `black_box` prevents a tail call, after which callgrind would miss the return from this function.
    black_box(work())
}

/// Callgrind writes its counters out and clears them when this function returns (`--dump-after`).
#[inline(never)]
fn callgrind_dumps() {
    black_box(0_u8);
}

/// The pipe from which parked threads read.
static PARKED_AT: AtomicI32 = AtomicI32::new(-1);
/// Threads that were parked.
static PARKED: AtomicUsize = AtomicUsize::new(0);

/// Parks every other thread of the process until the pipe is closed. Under valgrind this thread polls less often than on a
/// processor, so the background threads would start to poll.
struct Parked(#[allow(dead_code, reason = "dropping it releases the threads")] PipeWriter);

impl Parked {
    fn park() -> Self {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        PARKED_AT.store(reader.into_raw_fd(), Ordering::SeqCst);
        PARKED.store(0, Ordering::SeqCst);
        // SAFETY: the handler makes one system call and accesses atomics.
        unsafe {
            libc::signal(libc::SIGTRAP, wait_for_the_end_of_the_pipe as *const () as libc::sighandler_t)
        };
        let process = std::process::id() as libc::pid_t;
        let tasks = std::fs::read_dir("/proc/self/task").expect("the list of threads");
        let tasks = tasks
            .map(|task| task.expect("a thread").file_name().to_string_lossy().parse().expect("a number"));
        let others: Vec<libc::pid_t> = tasks.filter(|task| *task != process).collect();
        for &thread in &others {
            until(|| sleeps_in_poll(thread));
            // SAFETY: sends a signal to a thread of this process.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGTRAP) };
        }
        until(|| PARKED.load(Ordering::SeqCst) == others.len());
        Parked(writer)
    }
}

extern "C" fn wait_for_the_end_of_the_pipe(_: libc::c_int) {
    PARKED.fetch_add(1, Ordering::SeqCst);
    let mut byte = 0_u8;
    // SAFETY: reads at most one byte into a variable of that size.
    unsafe { libc::read(PARKED_AT.load(Ordering::SeqCst), (&raw mut byte).cast(), 1) };
}

/// Whether a thread is in a system call in which background threads wait without a lock.
fn sleeps_in_poll(thread: libc::pid_t) -> bool {
    let waits = [libc::SYS_poll, libc::SYS_ppoll, libc::SYS_epoll_wait, libc::SYS_epoll_pwait];
    let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
    call.split(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .is_some_and(|number| waits.contains(&number))
}

fn until(mut is_true: impl FnMut() -> bool) {
    let looks = 0..10_000;
    let reached = looks.into_iter().any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        is_true()
    });
    assert!(reached, "the background threads cannot be parked");
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Requester,
    Responder,
}

/// The end whose calls are counted.
#[derive(Clone, Copy)]
struct Meter(Option<Role>);

impl Meter {
    fn run(self, role: Role, mut work: impl FnMut() -> bool) -> bool {
        if self.0 == Some(role) { callgrind_collects(&mut work) } else { work() }
    }
}

/// One end of the connection.
struct End {
    role: Role,
    device: Device,
    cq: Cq,
    qp: RcQp,
    region: Region,
    _pd: Pd,
}

impl End {
    fn new(role: Role, link: LinkChoice, timeout: u8) -> Self {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        // With jumbo packets, the rows of 4 KiB packets would count how glibc copies 58 KiB.
        let config = Config::default()
            .with(|c| (c.addresses, c.link, c.mtu) = (Some(vec![address]), link, Some(Mtu::B4096)));
        let device = Device::open_with(config).expect("the device opens");
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = device.create_cq(64).expect("a completion queue");
        let qp = pd.rc(&cq).address(address).mtu(Mtu::B4096).timeout(timeout).create().expect("a queue pair");
        let region = pd.region(LONG as usize).remote_read().remote_write().remote_atomic();
        let region = region.register().expect("a region");
        End { role, device, cq, qp, region, _pd: pd }
    }

    fn post_recv(&self) -> bool {
        let sge = self.region.sge(..SHORT).expect("in the region");
        self.qp.post_recv(&[wr::recv(RECEIVE, &[sge])]).is_ok()
    }

    fn post_send(&self) -> bool {
        let sge = self.region.sge(..SHORT).expect("in the region");
        self.qp.send_from(REQUEST, &[sge]).is_ok()
    }

    /// Polls once. Returns whether it found a completion with this identifier.
    fn poll(&self, wr_id: u64) -> bool {
        let mut found = [Completion::default(); 4];
        let count = self.cq.poll(&mut found).expect("the queue is polled");
        let found = &found[..count];
        assert!(found.iter().all(|one| one.status == WcStatus::Success), "{found:?}");
        found.iter().any(|one| one.wr_id == wr_id)
    }

    /// Polls until there is a completion with this identifier. Every poll is counted.
    fn complete(&self, meter: Meter, wr_id: u64) {
        let done = (0..MAX_EMPTY_POLLS).any(|_| meter.run(self.role, || self.poll(wr_id)));
        assert!(done, "no completion; {:?}", self.device.counters());
    }
}

struct Pair {
    requester: End,
    responder: End,
    remote: RemoteRegion,
}

impl Pair {
    fn new(link: LinkChoice, operation: Operation) -> Self {
        // Under valgrind the timer would expire before a long message is sent. Without it, no packet is retransmitted.
        let timeout = if operation == Operation::LongWrite { 0 } else { TIMEOUT };
        let new = |role| End::new(role, link, timeout);
        let (requester, responder) = (new(Role::Requester), new(Role::Responder));
        requester.qp.connect(&responder.qp.endpoint().expect("an endpoint")).expect("connected");
        responder.qp.connect(&requester.qp.endpoint().expect("an endpoint")).expect("connected");
        for end in [&requester, &responder] {
            assert!((0..RECEIVES).all(|_| end.post_recv()));
        }
        let remote = responder.region.remote();
        Pair { requester, responder, remote }
    }

    /// One operation from the post to its completion.
    fn execute(&self, meter: Meter, operation: Operation) {
        let Pair { requester, remote, .. } = self;
        let (short, long) = (requester.region.sge(..SHORT), requester.region.sge(..LONG));
        let (short, long) = (short.expect("in the region"), long.expect("in the region"));
        let post = || match operation {
            Operation::Send | Operation::PingPong => requester.qp.send_from(REQUEST, &[short]),
            Operation::Write => requester.qp.write(REQUEST, &[short], *remote),
            Operation::LongWrite => requester.qp.write(REQUEST, &[long], *remote),
            Operation::Read => requester.qp.read(REQUEST, &[short], *remote),
            Operation::FetchAdd => requester.qp.fetch_add(REQUEST, short, *remote, 1),
        };
        assert!(meter.run(Role::Requester, || post().is_ok()), "the request was refused");
        match operation {
            Operation::Send => self.receive(meter),
            Operation::PingPong => return self.answer(meter),
            Operation::LongWrite => return self.alternate(meter),
            Operation::Write | Operation::Read | Operation::FetchAdd => {}
        }
        requester.complete(meter, REQUEST);
    }

    /// The responder's side of a message that the program does not answer.
    fn receive(&self, meter: Meter) {
        let responder = &self.responder;
        responder.complete(meter, RECEIVE);
        assert!(meter.run(Role::Responder, || responder.post_recv()), "the receive was refused");
        // The acknowledgement waits for an answer of the program; the next poll sends it.
        meter.run(Role::Responder, || responder.poll(REQUEST));
    }

    /// The responder answers each message, and the answer acknowledges it.
    fn answer(&self, meter: Meter) {
        let Pair { requester, responder, .. } = self;
        responder.complete(meter, RECEIVE);
        let answer = || responder.post_recv() && responder.post_send();
        assert!(meter.run(Role::Responder, answer), "the answer was refused");
        requester.complete(meter, RECEIVE);
        assert!(meter.run(Role::Requester, || requester.post_recv()), "the receive was refused");
    }

    /// Polls both ends alternately until the requester has a completion.
    fn alternate(&self, meter: Meter) {
        let Pair { requester, responder, .. } = self;
        let done = (0..MAX_EMPTY_POLLS).any(|_| {
            meter.run(Role::Responder, || responder.poll(REQUEST));
            meter.run(Role::Requester, || requester.poll(REQUEST))
        });
        assert!(done, "no completion; {:?}", requester.device.counters());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Send,
    PingPong,
    Write,
    Read,
    FetchAdd,
    LongWrite,
}

struct Row {
    name: &'static str,
    link: LinkChoice,
    operation: Operation,
    counted: Role,
}

#[rustfmt::skip]
const ROWS: [Row; 11] = [
    Row { name: "memory write 8 B", link: LinkChoice::Auto, operation: Operation::Write, counted: Role::Requester },
    Row { name: "memory read 8 B", link: LinkChoice::Auto, operation: Operation::Read, counted: Role::Requester },
    Row { name: "memory fetch-add", link: LinkChoice::Auto, operation: Operation::FetchAdd, counted: Role::Requester },
    Row { name: "memory send 8 B, sender", link: LinkChoice::Auto, operation: Operation::Send, counted: Role::Requester },
    Row { name: "memory send 8 B, receiver", link: LinkChoice::Auto, operation: Operation::Send, counted: Role::Responder },
    Row { name: "memory ping-pong 8 B, one end", link: LinkChoice::Auto, operation: Operation::PingPong, counted: Role::Requester },
    Row { name: "udp send 8 B, sender", link: LinkChoice::Udp, operation: Operation::Send, counted: Role::Requester },
    Row { name: "udp send 8 B, receiver", link: LinkChoice::Udp, operation: Operation::Send, counted: Role::Responder },
    Row { name: "udp ping-pong 8 B, one end", link: LinkChoice::Udp, operation: Operation::PingPong, counted: Role::Requester },
    Row { name: "udp write 4 KiB packet, sender", link: LinkChoice::Udp, operation: Operation::LongWrite, counted: Role::Requester },
    Row { name: "udp write 4 KiB packet, receiver", link: LinkChoice::Udp, operation: Operation::LongWrite, counted: Role::Responder },
];

impl Row {
    /// Runs the row on a new pair of queue pairs, so that it does not depend on earlier rows.
    fn run(&self) {
        let pair = Pair::new(self.link, self.operation);
        let _parked = Parked::park();
        let (operations, warm_up, units) = match self.operation {
            Operation::LongWrite => (LONG_OPERATIONS, LONG_WARM_UP, LONG / PACKET),
            _ => (OPERATIONS, WARM_UP, 1),
        };
        let batch = |meter, count| (0..count).for_each(|_| pair.execute(meter, self.operation));
        batch(Meter(None), warm_up);
        for _ in 0..BATCHES {
            batch(Meter(Some(self.counted)), operations);
            callgrind_dumps();
            println!("{}\t{}", self.name, operations * units);
        }
    }
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    ROWS.iter().filter(|row| row.name.contains(&wanted)).for_each(Row::run);
}
