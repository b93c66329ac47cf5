//! One-sided operations over reliable connections, one to each process.

use super::{Op, Transport, poll_until};
use crate::error::Error;
use crate::map::Mapping;
use crate::meet::Meeting;
use ferroce::{
    Access, Completion, Cq, Device, Endpoint, Outcome, QpBuilder, Rc, RcQp, RecvWr, Region, RemoteRegion,
    SendFlags, SendOp, SendWr, Sge, Srq, WcOpcode, WcStatus, wr,
};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of work requests in flight to one process.
const DEPTH: usize = 1024;
/// Maximum number of work requests per doorbell.
const CHUNK: usize = 256;
/// Receives for [`Op::WriteAndWake`]; they have no buffers.
const RECEIVES: usize = 4096;
/// Receives that are reposted together.
const REFILL: usize = 64;
/// The longest sleep.
const MAX_SLEEP: Duration = Duration::from_millis(5);
/// 4.096 us * 2^17 = 537 ms, eight times: a process that does not answer for four seconds is lost.
const TIMEOUT: u8 = 17;

pub(crate) struct Rdma {
    cq: Cq,
    region: Region,
    peers: Vec<Option<Peer>>,
    srq: Srq,
    queues: Mutex<SendQueues>,
    /// How long to poll for completions before sleeping.
    spin: Duration,
}

/// The send queues of all peers.
struct SendQueues {
    to: Vec<SendQueue>,
    /// Consumed receives that are not reposted yet.
    consumed_receives: usize,
}

struct Peer {
    qp: RcQp,
    mapping: RemoteRegion,
}

/// Work requests in flight to one process.
#[derive(Default)]
struct SendQueue {
    in_flight: usize,
    /// Number of work requests that each outstanding completion covers.
    groups: VecDeque<usize>,
}

pub(super) fn failed(error: ferroce::Error) -> Error {
    Error::Transport(error.to_string())
}

impl Rdma {
    /// Connects every process with every other.
    pub(crate) fn open(
        rank: u32,
        size: u32,
        mapping: &Arc<Mapping>,
        meeting: &Meeting,
        spin: Duration,
    ) -> Result<Self, Error> {
        let device = Device::open().map_err(failed)?;
        let pd = device.alloc_pd().map_err(failed)?;
        let cq = device.create_cq(size * DEPTH as u32 / 4 + RECEIVES as u32 + 16).map_err(failed)?;
        let srq = pd.srq(RECEIVES as u32, 1).map_err(failed)?;
        let builder = pd.region(mapping.len()).access(Access::LOCAL_WRITE | Access::REMOTE);
        let region = mapping.register(builder).map_err(failed)?;
        let builder = || pd.rc(&cq).srq(&srq).depth(DEPTH as u32, 1).signal_all(false);
        let (qps, endpoints) = queue_pairs(rank, size, &device, meeting, builder)?;
        receive(&srq, RECEIVES)?;
        let lines = meeting.gather(&format!("{} {endpoints}", hex(&region.remote().to_bytes())))?;
        let mut peers = Vec::new();
        for (qp, line) in qps.into_iter().zip(&lines) {
            peers.push(qp.map(|qp| Peer::connect(qp, line, rank)).transpose()?);
        }
        // The program computes between two waits, and the NIC cannot distinguish that from a pause of polling: its thread must wake for
        // requests of peers at any time.
        cq.set_interrupt_driven().map_err(failed)?;
        // All processes must be able to receive before any sends.
        meeting.gather("connected")?;
        let queues =
            SendQueues { to: (0..size).map(|_| SendQueue::default()).collect(), consumed_receives: 0 };
        Ok(Self { cq, region, peers, srq, queues: Mutex::new(queues), spin })
    }

    /// Posts operations for one process. `signal` requests a completion for the last.
    fn start(&self, queues: &mut SendQueues, to: u32, ops: &[Op], signal: bool) -> Result<(), Error> {
        let Some(peer) = self.peers.get(to as usize).and_then(Option::as_ref) else { return Ok(()) };
        for (at, chunk) in ops.chunks(CHUNK).enumerate() {
            while queues.to[to as usize].in_flight + chunk.len() > DEPTH - CHUNK {
                self.reap(queues)?;
            }
            let last = (at + 1) * CHUNK >= ops.len();
            self.post_chunk(&mut queues.to[to as usize], peer, to, chunk, signal || !last)?;
        }
        Ok(())
    }

    fn post_chunk(
        &self,
        queue: &mut SendQueue,
        peer: &Peer,
        to: u32,
        ops: &[Op],
        signal: bool,
    ) -> Result<(), Error> {
        let sges: Vec<[Sge; 1]> = ops.iter().map(|op| self.local(*op)).collect::<Result<_, _>>()?;
        let words: Vec<[u8; 8]> = ops.iter().map(|op| word(*op)).collect();
        queue.in_flight += ops.len();
        // An unsignalled request is done when a later one completes. Some must be signalled, or the queue would fill
        // up.
        let unsignalled = queue.in_flight - queue.groups.iter().sum::<usize>();
        let signal = signal || unsignalled > CHUNK;
        let mut requests: Vec<SendWr<'_>> = Vec::with_capacity(ops.len());
        for ((op, sges), word) in ops.iter().zip(&sges).zip(&words) {
            requests.push(request(*op, peer.mapping, sges, word, u64::from(to))?);
        }
        if signal {
            if let Some(last) = requests.last_mut() {
                last.flags |= SendFlags::SIGNALED;
            }
            queue.groups.push_back(unsignalled);
        }
        peer.qp.post_send(&requests).map_err(failed)
    }

    fn local(&self, op: Op) -> Result<[Sge; 1], Error> {
        let (at, len) = match op {
            Op::Read { local, len, .. } | Op::Write { local, len, .. } => (local, len),
            Op::FetchAdd { old, .. } => (old, 8),
            Op::WriteWord { .. } | Op::WriteAndWake { .. } => return Ok([Sge::default()]),
        };
        Ok([self.region.sge(at as u64..(at + len) as u64).map_err(failed)?])
    }

    /// Takes completions while requests are outstanding: polls for a while, then sleeps.
    fn complete(&self, queues: &mut SendQueues, is_busy: impl Fn(&SendQueues) -> bool) -> Result<(), Error> {
        let queues = RefCell::new(queues);
        let is_done = || !is_busy(&queues.borrow());
        let reap = || self.reap(&mut queues.borrow_mut());
        if poll_until(self.spin, is_done, reap)? {
            return Ok(());
        }
        while !is_done() {
            self.cq.arm(false).map_err(failed)?;
            reap()?;
            if !is_done() {
                self.cq.sleep(MAX_SLEEP).map_err(failed)?;
                reap()?;
            }
        }
        Ok(())
    }

    /// Takes completions, if there are any.
    fn reap(&self, queues: &mut SendQueues) -> Result<(), Error> {
        let mut done = [Completion::default(); 16];
        let count = self.cq.poll(&mut done).map_err(failed)?;
        for completion in &done[..count] {
            let peer = completion.wr_id;
            if completion.opcode == WcOpcode::RecvRdmaWithImm && completion.status == WcStatus::Success {
                queues.consumed_receives += 1;
                continue;
            }
            if let Err(error) = completion.ok() {
                return Err(Error::Transport(format!(
                    "process {peer} cannot be reached: {}",
                    error.explain()
                )));
            }
            let queue = &mut queues.to[peer as usize];
            queue.in_flight -= queue.groups.pop_front().unwrap_or(0);
        }
        if queues.consumed_receives >= REFILL {
            receive(&self.srq, std::mem::take(&mut queues.consumed_receives))?;
        }
        Ok(())
    }
}

/// Posts receives without buffers.
fn receive(srq: &Srq, count: usize) -> Result<(), Error> {
    let none = RecvWr { wr_id: 0, sges: &[] };
    srq.post_recv(&vec![none; count]).map_err(failed)
}

/// A queue pair to each other process, and their endpoints as words, by rank.
pub(super) fn queue_pairs(
    rank: u32,
    size: u32,
    device: &Device,
    meeting: &Meeting,
    builder: impl Fn() -> QpBuilder<Rc>,
) -> Result<(Vec<Option<RcQp>>, String), Error> {
    let address = meeting.local_address().filter(|address| device.gid_index(*address).is_ok());
    let (mut qps, mut words) = (Vec::new(), Vec::new());
    for peer in 0..size {
        let qp = (peer != rank).then(|| {
            let builder = builder().timeout(TIMEOUT);
            address.into_iter().fold(builder, QpBuilder::address).create()
        });
        let qp: Option<RcQp> = qp.transpose().map_err(failed)?;
        let endpoint = qp.as_ref().map(RcQp::endpoint).transpose().map_err(failed)?;
        words.push(endpoint.map_or("-".to_owned(), |endpoint| endpoint.to_string()));
        qps.push(qp);
    }
    Ok((qps, words.join(" ")))
}

/// The line of a process is malformed.
fn malformed(line: &str) -> Error {
    Error::Disagree(format!("{line:?} is not the address of a process"))
}

/// Connects a queue pair to the one that the process of this line has for us.
pub(super) fn connect(qp: &RcQp, line: &str, endpoints: &str, rank: u32) -> Result<(), Error> {
    let endpoint = endpoints.split(' ').nth(rank as usize).and_then(|word| word.parse::<Endpoint>().ok());
    qp.connect(&endpoint.ok_or_else(|| malformed(line))?).map_err(failed)
}

impl Peer {
    fn connect(qp: RcQp, line: &str, rank: u32) -> Result<Peer, Error> {
        let (mapping, endpoints) = line.split_once(' ').ok_or_else(|| malformed(line))?;
        let mapping = unhex(mapping).and_then(|bytes| RemoteRegion::from_bytes(&bytes).ok());
        let mapping = mapping.ok_or_else(|| malformed(line))?;
        connect(&qp, line, endpoints, rank)?;
        Ok(Peer { qp, mapping })
    }
}

fn word(op: Op) -> [u8; 8] {
    match op {
        Op::WriteWord { value, .. } | Op::WriteAndWake { value, .. } => value.to_ne_bytes(),
        _ => [0; 8],
    }
}

fn request<'a>(
    op: Op,
    mapping: RemoteRegion,
    sges: &'a [Sge],
    word: &'a [u8],
    wr_id: u64,
) -> Result<SendWr<'a>, Error> {
    let at = |start: usize, len: usize| mapping.slice(start as u64..(start + len) as u64).map_err(failed);
    Ok(match op {
        Op::Read { remote, len, .. } => wr::read(wr_id, sges, at(remote, len)?),
        Op::Write { remote, len, .. } => wr::write(wr_id, sges, at(remote, len)?),
        Op::WriteWord { remote, .. } => wr::write_inline(wr_id, word, at(remote, 8)?),
        Op::WriteAndWake { remote, .. } => {
            let to = at(remote, 8)?;
            let op = SendOp::WriteImm { addr: to.addr, rkey: to.rkey, imm: 0 };
            SendWr { op, ..wr::write_inline(wr_id, word, to) }
        }
        Op::FetchAdd { remote, add, .. } => wr::fetch_add(wr_id, sges, at(remote, 8)?, add),
    })
}

impl Transport for Rdma {
    fn execute(&self, ops: &[(u32, Op)], meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        let mut queues = self.queues.lock();
        each_peer(ops, |to, ops| self.start(&mut queues, to, ops, true))?;
        meanwhile();
        let is_busy =
            |queues: &SendQueues| ops.iter().any(|(to, _)| !queues.to[*to as usize].groups.is_empty());
        self.complete(&mut queues, is_busy)
    }

    fn begin(&self, ops: &[(u32, Op)]) -> Result<(), Error> {
        let mut queues = self.queues.lock();
        each_peer(ops, |to, ops| self.start(&mut queues, to, ops, true))
    }

    fn finish(&self, to: &[u32]) -> Result<(), Error> {
        let is_busy = |queues: &SendQueues| to.iter().any(|to| !queues.to[*to as usize].groups.is_empty());
        self.complete(&mut self.queues.lock(), is_busy)
    }

    fn post(&self, ops: &[(u32, Op)]) -> Result<(), Error> {
        let mut queues = self.queues.lock();
        each_peer(ops, |to, ops| self.start(&mut queues, to, ops, false))
    }

    fn progress(&self) -> Result<(), Error> {
        // Polling also drives the NIC.
        self.queues.try_lock().map_or(Ok(()), |mut queues| self.reap(&mut queues))
    }

    fn sleep(&self, most: Duration, ready: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        self.cq.arm(false).map_err(failed)?;
        // Completions before the arming wake no one.
        self.progress()?;
        if !ready() {
            self.cq.sleep(most).map_err(failed)?;
        }
        self.progress()
    }
}

/// Sleeps on the channel of an armed queue.
pub(super) fn sleep_on_channel(cq: &Cq, most: Duration) {
    let mut fds = [PollFd::new(cq, PollFlags::IN)];
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    let _ = poll(&mut fds, Some(&most));
    cq.clear_events();
}

/// Calls `each` once per process, with all its operations in order.
pub(super) fn each_peer(
    ops: &[(u32, Op)],
    mut each: impl FnMut(u32, &[Op]) -> Result<(), Error>,
) -> Result<(), Error> {
    let Some(&(first, _)) = ops.first() else { return Ok(()) };
    if ops.iter().all(|(to, _)| *to == first) {
        let ops: Vec<Op> = ops.iter().map(|(_, op)| *op).collect();
        return each(first, &ops);
    }
    let mut peers: Vec<u32> = ops.iter().map(|(to, _)| *to).collect();
    peers.sort_unstable();
    peers.dedup();
    for peer in peers {
        let ops: Vec<Op> = ops.iter().filter(|(to, _)| *to == peer).map(|(_, op)| *op).collect();
        each(peer, &ops)?;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}
