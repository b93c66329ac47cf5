//! The interface of a process of a job for programs.

use crate::backend::Backend;
use crate::error::Error;
use crate::heap::{Allocator, Placement, PlacementState};
use crate::heat::PageTraffic;
use crate::local::Local;
use crate::map::anonymous_file;
use crate::meet::{Hosts, Keeper, Kept, Meeting, arrange, host_id};
use crate::paged::Paged;
use crate::record::Record;
use crate::settings::{Settings, TransportKind};
use crate::statistics::{Counters, Statistics, add, timed};
use parking_lot::{Mutex, RwLock};
use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Number of locks.
pub const LOCKS: u32 = 4096;
/// Number of flags.
pub const FLAGS: u32 = 1024;

/// Optimisations that a program may turn on or off. They do not change results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tuning {
    /// A page with a single writer moves to that process.
    HomeMigration,
    /// A page that its home writes in every interval counts as written, without a fault.
    AdaptiveWriteDetection,
    /// Barriers over a tree.
    BroadcastTree,
    /// Fetch only the changed blocks of a page.
    ChangedBlocks,
    /// Scattered changes of a page are sent home together. On by default.
    Parcels,
    /// Likely next pages are fetched with a page. On by default.
    Prefetch,
    /// In a job over several hosts, newly allocated pages of a co-located home are used in place. On by default. A
    /// process that joins with it off cannot turn it on.
    Colocated,
}

impl Tuning {
    /// The name in `FERROCE_DSM_SWITCHES`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "home-migration" => Self::HomeMigration,
            "write-detection" => Self::AdaptiveWriteDetection,
            "tree" => Self::BroadcastTree,
            "changed-blocks" => Self::ChangedBlocks,
            "parcels" => Self::Parcels,
            "prefetch" => Self::Prefetch,
            "colocated" => Self::Colocated,
            _ => return None,
        })
    }
}

thread_local! {
    /// Locks that this thread holds, oldest first.
    static HELD: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// A process of a job. Clones are the same process; all threads may use it.
#[derive(Clone)]
pub struct Job(Arc<Inner>);

struct Inner {
    settings: Settings,
    transport: TransportKind,
    backend: Box<dyn Backend>,
    /// Locked during every `alloc` and `free`, including their waits, so that they have one order.
    placing: Mutex<PlacementState>,
    /// Locked briefly.
    heap: RwLock<Allocator>,
    counters: Arc<Counters>,
    meeting: Arc<Meeting>,
    /// The record of this process, if the launcher requests it.
    record: Option<Record>,
    /// The rendezvous, if this process runs it.
    kept: Mutex<Option<Kept>>,
}

impl Job {
    /// Joins the other processes and sets up the heap. Returns when all have joined.
    pub fn join(settings: Settings) -> Result<Job, Error> {
        let mut settings = settings.checked()?;
        let keeper = settings.meet.map_or(Keeper::First, |at| Keeper::Launcher(at.ip()));
        let kept = arrange(&mut settings)?;
        let meeting = match settings.meet {
            Some(at) => Meeting::connect(at, keeper, &settings.key, settings.rank, settings.size)?,
            None => Meeting::alone(),
        };
        let meeting = Arc::new(meeting);
        let counters = Arc::new(Counters::default());
        let (transport, backend) = open(&settings, &meeting, &counters)?;
        settings.switches.iter().for_each(|&(tuning, on)| backend.configure(tuning, on));
        let placing = Mutex::new(PlacementState::default());
        let heap = RwLock::new(Allocator::new(settings.heap_bytes));
        kept.iter().for_each(Kept::met);
        let kept = Mutex::new(kept);
        let record = Record::begin();
        counters.heat.switch(record.is_some());
        let inner = Inner { settings, transport, backend, placing, heap, counters, meeting, record, kept };
        Ok(Job(Arc::new(inner)))
    }

    /// Runs a call that may wait, and records its duration.
    fn spanned<T>(&self, call: &'static str, work: impl FnOnce() -> T) -> T {
        let Some(record) = &self.0.record else { return work() };
        let started = Instant::now();
        let result = work();
        record.note(call, started);
        result
    }

    /// Like [`Self::spanned`], for a call that waits for all processes. It passes the counter of the waiting time to the call. With a record, it
    /// counts the whole call instead, so that the table and the timeline agree.
    fn spanned_barrier<T>(&self, call: &'static str, work: impl FnOnce(&AtomicU64) -> T) -> T {
        let waits = &self.0.counters.barrier_wait_ns;
        let Some(record) = &self.0.record else { return work(waits) };
        let started = Instant::now();
        let result = work(&AtomicU64::new(0));
        add(waits, record.note(call, started));
        result
    }

    /// Number of this process, from 0.
    pub fn rank(&self) -> u32 {
        self.0.settings.rank
    }

    /// Number of processes.
    pub fn size(&self) -> u32 {
        self.0.settings.size
    }

    /// How the processes reach each other.
    pub fn transport(&self) -> TransportKind {
        self.0.transport
    }

    /// Allocates `len` zeroed bytes at a page boundary, at the same address in every process. All processes must make
    /// the same calls of `alloc` and `free` in the same order; `alloc` does not wait for them.
    pub fn alloc(&self, len: usize, placement: &Placement) -> Result<*mut u8, Error> {
        let mut placing = self.0.placing.lock();
        // Allocates the range first: a list of homes for more pages than the heap has could exhaust memory.
        let at = self.0.heap.write().alloc(len)?;
        let pages = len.max(1).div_ceil(crate::PAGE);
        let homes =
            placing.homes(placement, pages, self.size()).inspect_err(|_| self.0.heap.write().free(at))?;
        self.0.backend.place(at, &homes)?;
        Ok(self.0.backend.heap().wrapping_add(at))
    }

    /// Frees an allocation. All processes call it, and it waits for all; afterwards the memory must not be used.
    pub fn free(&self, at: *mut u8) -> Result<(), Error> {
        let offset = (at as usize).wrapping_sub(self.0.backend.heap() as usize);
        let _placing = self.0.placing.lock();
        let len = self.0.heap.read().len_at(offset).ok_or(Error::NotAllocated(at as usize))?;
        self.spanned_barrier("free", |waits| {
            self.0.backend.wait_all(waits)?;
            self.0.backend.discard(offset, len)?;
            self.0.heap.write().free(offset);
            self.0.backend.wait_all(waits)
        })
    }

    /// Acquires lock `id` for this thread. Earlier writes under the lock are visible afterwards.
    pub fn lock(&self, id: u32) -> Result<(), Error> {
        check_id("lock", id, LOCKS)?;
        if HELD.with_borrow(|held| held.contains(&id)) {
            return Err(Error::HeldAlready(id));
        }
        add(&self.0.counters.locks, 1);
        self.spanned("lock", || timed(&self.0.counters.lock_wait_ns, || self.0.backend.lock(id)))?;
        HELD.with_borrow_mut(|held| held.push(id));
        Ok(())
    }

    /// Releases lock `id`, which must be the one that this thread acquired last.
    pub fn unlock(&self, id: u32) -> Result<(), Error> {
        let youngest = HELD.with_borrow(|held| held.last().copied());
        if youngest != Some(id) {
            let why = match youngest {
                Some(other) => format!("this thread acquired lock {other} after it, or never acquired it"),
                None => "this thread holds no lock".to_owned(),
            };
            return Err(Error::NotYoungest { id, why });
        }
        self.spanned("unlock", || self.0.backend.unlock(id))?;
        HELD.with_borrow_mut(|held| held.pop());
        Ok(())
    }

    /// Waits for all processes. Afterwards all earlier writes are visible to all processes. One thread per process calls it.
    pub fn barrier(&self) -> Result<(), Error> {
        if let Some(id) = HELD.with_borrow(|held| held.last().copied()) {
            return Err(Error::BarrierInLock(id));
        }
        add(&self.0.counters.barriers, 1);
        self.spanned_barrier("barrier", |waits| self.0.backend.barrier(waits))
    }

    /// Waits for all processes, without making writes visible.
    pub fn wait_all(&self) -> Result<(), Error> {
        add(&self.0.counters.barriers, 1);
        self.spanned_barrier("wait_all", |waits| self.0.backend.wait_all(waits))
    }

    /// Sets a flag; it stays set until a process resets it.
    pub fn set_flag(&self, id: u32) -> Result<(), Error> {
        check_id("flag", id, FLAGS)?;
        self.spanned("set_flag", || self.0.backend.change_flag(id, true))
    }

    /// Resets a flag.
    pub fn reset_flag(&self, id: u32) -> Result<(), Error> {
        check_id("flag", id, FLAGS)?;
        self.spanned("reset_flag", || self.0.backend.change_flag(id, false))
    }

    /// Waits until a flag is set, without making writes visible.
    pub fn wait_flag(&self, id: u32) -> Result<(), Error> {
        check_id("flag", id, FLAGS)?;
        self.spanned("wait_flag", || self.0.backend.wait_flag(id))
    }

    /// Sends a message. The caller may reuse `bytes` when it returns, even if the message was not received yet.
    pub fn send(&self, to: u32, tag: i32, bytes: &[u8]) -> Result<(), Error> {
        check_id("process", to, self.size())?;
        add(&self.0.counters.messages, 1);
        add(&self.0.counters.message_bytes, bytes.len() as u64);
        self.spanned("send", || self.0.backend.send(to, tag, bytes))
    }

    /// Waits for a message. `from` `None` accepts any sender; `tag` `None` accepts any tag from 0 on. Negative tags are for
    /// layers above this one, and match only an explicit request. Copies as many bytes as fit into `into`, and returns the
    /// length of the message, its sender and its tag.
    pub fn recv(
        &self,
        from: Option<u32>,
        tag: Option<i32>,
        into: &mut [u8],
    ) -> Result<(usize, u32, i32), Error> {
        if let Some(from) = from {
            check_id("process", from, self.size())?;
        }
        let ((sender, tag), bytes) = self.spanned("recv", || self.0.backend.recv(from, tag))?;
        let fits = bytes.len().min(into.len());
        into[..fits].copy_from_slice(&bytes[..fits]);
        Ok((bytes.len(), sender, tag))
    }

    /// Copies out of shared memory; fetches several pages together.
    pub fn get(&self, into: &mut [u8], from_shared: *const u8) -> Result<(), Error> {
        let at = self.offset(from_shared as usize, into.len())?;
        self.spanned("get", || self.0.backend.get(into, at))
    }

    /// Copies into shared memory, with the visibility of any write.
    pub fn put(&self, to_shared: *mut u8, from: &[u8]) -> Result<(), Error> {
        let at = self.offset(to_shared as usize, from.len())?;
        self.spanned("put", || self.0.backend.put(at, from))
    }

    /// The offset of an address in the heap; one allocation must contain all `len` bytes.
    fn offset(&self, at: usize, len: usize) -> Result<usize, Error> {
        let offset = at.checked_sub(self.0.backend.heap() as usize);
        let inside = offset.filter(|&offset| self.0.heap.read().holds(offset, len));
        inside.ok_or(Error::NotInAllocation { at, len })
    }

    /// Turns an optimisation on or off. All processes must do so between the same two barriers.
    pub fn configure(&self, tuning: Tuning, on: bool) {
        self.0.backend.configure(tuning, on);
    }

    /// The counters of this process so far.
    pub fn statistics(&self) -> Statistics {
        self.0.counters.snapshot()
    }

    /// Starts the section that `ferroce dsm run --stat` counts. By default it starts when the process joins.
    pub fn begin_statistics(&self) {
        self.0.record.iter().for_each(|record| record.first(self.statistics()));
    }

    /// Ends that section. By default it ends when the process leaves.
    pub fn end_statistics(&self) {
        self.0.record.iter().for_each(|record| record.last(self.statistics()));
    }

    /// How page faults are caught: `none`, `userfaultfd` or `SIGSEGV`, with the reason for a fallback.
    pub fn faults(&self) -> &str {
        self.0.backend.faults()
    }

    /// Turns counting of transfers per page on or off.
    pub fn count_pages(&self, on: bool) {
        self.0.counters.heat.switch(on);
    }

    /// The pages that were transferred while counting was on, in order.
    pub fn pages(&self) -> Vec<PageTraffic> {
        self.0.counters.heat.pages()
    }

    /// Waits for all processes and leaves the job. The memory stays mapped while a clone of this job exists, but is not
    /// shared any more.
    pub fn leave(self) -> Result<(), Error> {
        if let Some(id) = HELD.with_borrow(|held| held.last().copied()) {
            return Err(Error::LeaveInLock(id));
        }
        if let Some(record) = &self.0.record {
            let (transport, faults) = (self.transport().name(), self.faults());
            let shared = self.0.backend.shared_pages();
            let who = serde_json::json!({
                "rank": self.rank(), "transport": transport, "faults": faults, "shared": shared,
            });
            record.report(who, &self.statistics(), self.pages());
        }
        self.0.backend.wait_all(&self.0.counters.barrier_wait_ns)?;
        self.0.backend.leave()?;
        self.0.meeting.leave();
        self.0.kept.lock().iter_mut().for_each(Kept::finish);
        Ok(())
    }
}

fn check_id(what: &'static str, id: u32, count: u32) -> Result<(), Error> {
    if id < count { Ok(()) } else { Err(Error::NoSuch { what, id, count }) }
}

/// Agrees with the others on a transport, and opens it.
fn open(
    settings: &Settings,
    meeting: &Arc<Meeting>,
    counters: &Arc<Counters>,
) -> Result<(TransportKind, Box<dyn Backend>), Error> {
    let memory = (settings.rank == 0)
        .then(|| anonymous_file(c"ferroce-dsm", Local::file_len(settings.size, settings.heap_bytes)))
        .transpose()?;
    let requested = settings.transport.map_or("any", TransportKind::name);
    let fd = memory.as_ref().map_or(-1, |file| file.as_raw_fd());
    let host = format!("{}/{}", host_id(), settings.host.map_or(String::new(), |host| host.to_string()));
    let colocated =
        if settings.switches.contains(&(Tuning::Colocated, false)) { "apart" } else { "colocated" };
    let mine = format!("{requested} {} {host} {} {fd} {colocated}", settings.heap_bytes, std::process::id());
    let lines = meeting.gather(&mine)?;
    let word = |line: &str, at: usize| line.split(' ').nth(at).unwrap_or_default().to_owned();
    for (rank, line) in lines.iter().enumerate() {
        for (at, what) in [(0, "FERROCE_DSM_TRANSPORT"), (1, "FERROCE_DSM_HEAP")] {
            let (theirs, ours) = (word(line, at), word(&mine, at));
            if theirs != ours {
                let why =
                    format!("{what} is {theirs} at process {rank} and {ours} at process {}", settings.rank);
                return Err(Error::Disagree(why));
            }
        }
    }
    let hosts = Hosts::of(&lines.iter().map(|line| word(line, 2)).collect::<Vec<_>>());
    let local_processes = hosts.colocated(settings.rank).count();
    let one_host = local_processes == lines.len();
    // A requested transport is used between all processes.
    let sharing = match settings.transport {
        None => hosts.sharing(|rank| word(&lines[rank as usize], 5) == "colocated"),
        Some(_) => Hosts::apart(settings.size),
    };
    let transport =
        settings.transport.unwrap_or(if one_host { TransportKind::Local } else { TransportKind::Rdma });
    let backend: Box<dyn Backend> = match transport {
        TransportKind::Local if !one_host => {
            return Err(Error::Disagree("transport local needs all processes on one host".into()));
        }
        TransportKind::Local => {
            let place = format!("/proc/{}/fd/{}", word(&lines[0], 3), word(&lines[0], 4));
            Box::new(Local::open(settings, memory, &place, meeting)?)
        }
        paged => Box::new(Paged::open(settings, paged, meeting, local_processes, &sharing, counters)?),
    };
    Ok((transport, backend))
}
