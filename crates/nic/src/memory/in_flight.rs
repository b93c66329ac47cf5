//! Detects misuse of buffers in flight, which belong to requests whose completions the program has not polled. The program must not change
//! buffers that are sent, and must not give the same memory to two requests that fill it.
//!
//! Only with `Config::watch`. Pages that lie wholly inside a sent buffer are write-protected. The first write raises SIGSEGV; the handler
//! (`freed`) reports it, makes the pages writable and returns, so the program continues as on hardware. The bytes around these pages
//! may share a page with other data: their checksums are compared when the completion is polled. The same holds for memory that cannot be
//! protected, up to `MAX_SUMMED` bytes per entry.
//!
//! Writes of the NIC itself into a watched buffer are not misuse. Every such write calls [`before_nic_write`] first.

#![expect(
    unsafe_code,
    reason = "releases a lock that was taken before fork, and asks for the number of a thread"
)]

use super::freed;
use super::protected::{self, Owner, Protected, Write};
use super::region::Span;
use super::table::RegionTable;
use super::watched_sge::{HeldRegions, SUMMED_TOGETHER, WatchedSge};
use ferroce_os::lock::Mutex;
use ferroce_os::log;
use ferroce_proto::qp::PostError;
use ferroce_proto::verbs::{Completion, Payload, RecvWr, SendOp, SendWr, WcOpcode, WcStatus};
use ferroce_proto::{LKey, PdId, Qpn};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Most checksums of all requests together, 4 bytes each. Further requests are not summed.
const MAX_SUMS: usize = 1 << 22;
/// Most reports of the signal handler; it does not report further requests.
const MAX_FAULTS_REPORTED: u32 = 5;

/// A NIC whose requests are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WatchedNic(u32);

impl WatchedNic {
    pub(crate) fn new() -> WatchedNic {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        freed::install();
        IS_ON.store(true, Ordering::Relaxed);
        WatchedNic(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Ends the watch on all requests of a queue that was reset or destroyed, also on those that queue pairs have taken from it.
    pub(crate) fn forget(self, queue: PostedTo) {
        let mut table = TABLE.lock();
        let Queue { sends, receives, .. } = table.queues.remove(&(self, queue)).unwrap_or_default();
        sends.iter().chain(&receives).for_each(|request| table.release(request));
        let Table { queues, scatter_targets, .. } = &mut *table;
        let is_shared = matches!(queue, PostedTo::Srq(_));
        for (_, other) in queues.iter_mut().filter(|((nic, _), _)| is_shared && *nic == self) {
            let taken = other.receives.iter_mut().filter(|request| request.taken_from == Some(queue));
            taken.flat_map(|request| &mut request.parts).for_each(|part| unlist(scatter_targets, part));
        }
    }

    /// The program polls a completion: its request and all sends before it are complete.
    pub(crate) fn polled(self, completion: &Completion) {
        let done = TABLE.lock().complete(self, completion);
        // Without the lock: this reads memory of the program.
        done.iter().for_each(|request| request.compare(completion.qpn));
    }
}

/// The queue of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PostedTo {
    Qp(Qpn),
    Srq(u32),
}

impl fmt::Display for PostedTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostedTo::Qp(qpn) => write!(f, "QP {qpn}"),
            PostedTo::Srq(id) => write!(f, "SRQ {id}"),
        }
    }
}

/// The requests of one queue pair, or of one shared receive queue, until [`WatchedNic::forget`].
pub(crate) struct InFlight {
    watch: WatchedNic,
    queue: PostedTo,
    pd: PdId,
}

impl InFlight {
    pub(crate) fn new(watch: WatchedNic, queue: PostedTo, pd: PdId) -> InFlight {
        InFlight { watch, queue, pd }
    }

    /// Posts a send with `post`. Its buffers are watched before: another thread may poll its completion before `post` returns.
    pub(crate) fn send(
        &self,
        regions: &RegionTable,
        wr: &SendWr<'_>,
        is_signaled: bool,
        post: impl FnOnce() -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let report = self.add_send(regions, wr, is_signaled);
        let posted = post();
        self.settle(posted.is_ok(), report, |queue| &mut queue.sends);
        posted
    }

    /// Posts a receive with `post`, while the queue is locked.
    pub(crate) fn receive(
        &self,
        regions: &RegionTable,
        wr: &RecvWr<'_>,
        post: impl FnOnce() -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let (held, parts): (HeldRegions<'_>, _) = regions.watched(self.pd, wr.sges).unzip();
        let request =
            Request { name: "receive", wr_id: wr.wr_id, is_signaled: true, parts, ..Request::default() };
        let report = self.add_filled(request, |queue| &mut queue.receives);
        drop(held);
        let posted = post();
        self.settle(posted.is_ok(), report, |queue| &mut queue.receives);
        posted
    }

    /// A queue pair takes the oldest receive of this shared receive queue. The completion names only the queue pair.
    pub(crate) fn taken_by(&self, qpn: Qpn) {
        let mut table = TABLE.lock();
        let oldest = table.queues.get_mut(&self.key()).and_then(|queue| queue.receives.pop_front());
        let Some(request) = oldest else { return };
        let queue = table.queues.entry((self.watch, PostedTo::Qp(qpn))).or_default();
        queue.receives.push_back(Request { taken_from: Some(self.queue), ..request });
    }

    /// Watches the buffers of a request that is about to be posted. Returns what to report if it is.
    fn add_send(&self, regions: &RegionTable, wr: &SendWr<'_>, is_signaled: bool) -> Option<String> {
        let (name, is_sent) = match wr.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => ("SEND", true),
            SendOp::Write { .. } | SendOp::WriteImm { .. } => ("WRITE", true),
            SendOp::Read { .. } => ("READ", false),
            SendOp::Atomic { .. } => ("atomic", false),
            _ => ("request", false),
        };
        let sges = match wr.payload {
            Payload::Sges(sges) => sges,
            Payload::Inline(_) => &[],
        };
        let mut request = Request { name, wr_id: wr.wr_id, is_signaled, ..Request::default() };
        // Hold the regions until the request is in the table. Otherwise they could be deregistered, and their memory mapped again.
        let (held, parts): (HeldRegions<'_>, _) = regions.watched(self.pd, sges).unzip();
        request.parts = parts;
        if !is_sent {
            return self.add_filled(request, |queue| &mut queue.sends);
        }
        let protects = freed::is_installed();
        let mut table = TABLE.lock();
        request
            .parts
            .iter_mut()
            .filter(|_| protects)
            .for_each(|part| part.protect(self.queue, name, wr.wr_id));
        let queue = table.queues.entry(self.key()).or_default();
        // Read the bytes for the checksums without the lock. The request cannot complete meanwhile: it is posted afterwards.
        let parts: SmallVec<[WatchedSge; 1]> = request.parts.iter().map(WatchedSge::without_sums).collect();
        queue.sends.push_back(request);
        let mut sums_left = MAX_SUMS.saturating_sub(table.sums);
        drop((table, held));
        let mut sum = |part: &WatchedSge| {
            let count: usize = part.summed().map(|range| range.len().div_ceil(SUMMED_TOGETHER)).sum();
            let sums = if count <= sums_left { part.sums_now() } else { None }.unwrap_or_default();
            sums_left -= sums.len();
            sums
        };
        let sums: SmallVec<[Vec<u32>; 1]> = parts.iter().map(&mut sum).collect();
        let mut table = TABLE.lock();
        table.sums += sums.iter().map(Vec::len).sum::<usize>();
        let last = table.queues.get_mut(&self.key()).and_then(|queue| queue.sends.back_mut());
        last.into_iter()
            .flat_map(|request| &mut request.parts)
            .zip(sums)
            .for_each(|(part, sums)| part.sums = sums);
        None
    }

    /// Adds a request that is about to be posted and fills its buffers. Returns what to report if it is.
    fn add_filled(&self, mut request: Request, list: List) -> Option<String> {
        let mut table = TABLE.lock();
        let shared = table.fill(&mut request, self.queue);
        let queue = table.queues.entry(self.key()).or_default();
        let report = shared.filter(|_| !queue.has_shared).map(|(range, other)| {
            let (name, wr_id, len, start) = (request.name, request.wr_id, range.len(), range.start);
            format!(
                "{}: the {name} with wr_id {wr_id:#x} fills {len} bytes at {start:#x}, and so does the {} with wr_id {:#x} on {}, which is not \
                 completed: one overwrites the other. Give each outstanding receive and READ memory of its own",
                self.queue, other.name, other.wr_id, other.queue
            )
        });
        list(queue).push_back(request);
        report
    }

    /// After the post: removes the request if it was refused.
    fn settle(&self, is_posted: bool, report: Option<String>, list: List) {
        if !is_posted {
            let mut table = TABLE.lock();
            let refused = table.queues.get_mut(&self.key()).and_then(|queue| list(queue).pop_back());
            refused.iter().for_each(|request| table.release(request));
        } else if let Some(report) = report {
            TABLE.lock().queues.entry(self.key()).or_default().has_shared = true;
            log::misuse(format_args!("{report}"));
        }
    }

    fn key(&self) -> (WatchedNic, PostedTo) {
        (self.watch, self.queue)
    }
}

#[derive(Debug, Default)]
struct Request {
    name: &'static str,
    wr_id: u64,
    is_signaled: bool,
    parts: SmallVec<[WatchedSge; 1]>,
    /// The NIC wrote to its buffers, or the watch on its memory ended.
    is_exempt: bool,
    /// The shared receive queue that it was posted to, once a queue pair has taken it.
    taken_from: Option<PostedTo>,
}

impl Request {
    /// Whether to skip the comparison of its buffers, for example because a change was already reported.
    fn is_exempt(&self) -> bool {
        self.is_exempt || self.parts.iter().filter_map(|part| part.pages.as_ref()).any(Protected::is_exempt)
    }

    /// Reports a buffer that was changed.
    fn compare(&self, qpn: Qpn) {
        let Request { name, wr_id, .. } = self;
        let Some((part, change)) = self.parts.iter().find_map(|part| Some((part, part.first_change()?)))
        else {
            return;
        };
        let (start, len) = (part.bytes.start, part.bytes.len());
        let (from, to) = (change.start - start, change.end - start);
        log::misuse(format_args!(
            "QP {qpn}: bytes {from}..{to} of the buffer of {len} bytes at {start:#x} were changed between the post of the {name} with wr_id \
             {wr_id:#x} and the poll of its completion. The NIC may have sent the old bytes, the new ones or a mixture; change a buffer only \
             after its completion was polled"
        ));
    }
}

#[derive(Debug, Default)]
struct Queue {
    sends: VecDeque<Request>,
    /// The receives posted to it, and those that it has taken from shared receive queues.
    receives: VecDeque<Request>,
    /// A receive or READ that shares memory with another request was reported.
    has_shared: bool,
}

/// The sends or the receives of a queue.
type List = fn(&mut Queue) -> &mut VecDeque<Request>;

/// A request that fills memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScatterTarget {
    end: usize,
    queue: PostedTo,
    name: &'static str,
    wr_id: u64,
}

#[derive(Debug)]
struct Table {
    queues: BTreeMap<(WatchedNic, PostedTo), Queue>,
    /// Memory that outstanding requests fill, by first byte. The entries do not overlap.
    scatter_targets: BTreeMap<usize, ScatterTarget>,
    /// Number of stored checksums.
    sums: usize,
}

static TABLE: Mutex<Table> =
    Mutex::new(Table { queues: BTreeMap::new(), scatter_targets: BTreeMap::new(), sums: 0 });

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The parts of `range` that none of `others` covers.
fn uncovered(range: Range<usize>, others: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut left = vec![range];
    for other in others {
        left = left
            .into_iter()
            .flat_map(|part| {
                let (before, behind) =
                    (part.start..part.end.min(other.start), part.start.max(other.end)..part.end);
                let kept = if overlap(&part, &other) { [before, behind] } else { [part, 0..0] };
                kept.into_iter().filter(|part| !part.is_empty())
            })
            .collect();
    }
    left
}

/// Removes an entry of a request from the scatter targets.
fn unlist(targets: &mut BTreeMap<usize, ScatterTarget>, part: &mut WatchedSge) {
    if mem::take(&mut part.is_listed) {
        targets.remove(&part.bytes.start);
    }
}

impl Table {
    /// Enters the memory that a request fills. Returns the first part that another request fills too.
    fn fill(&mut self, request: &mut Request, queue: PostedTo) -> Option<(Range<usize>, ScatterTarget)> {
        let Request { name, wr_id, .. } = *request;
        let mut shared = None;
        for part in &mut request.parts {
            let Range { start, end } = part.bytes;
            match self.scatter_targets.range(..end).next_back() {
                Some((_, other)) if other.end > start => shared = shared.or(Some((start..end, *other))),
                _ => {
                    self.scatter_targets.insert(start, ScatterTarget { end, queue, name, wr_id });
                    part.is_listed = true;
                }
            }
        }
        shared
    }

    /// Ends the watch on a request that was removed from its queue.
    fn release(&mut self, request: &Request) {
        for part in &request.parts {
            if part.is_listed {
                self.scatter_targets.remove(&part.bytes.start);
            }
            if let Some(protected) = part.pages.clone() {
                self.make_writable(protected);
            }
            self.sums -= part.sums.len().min(self.sums);
        }
    }

    /// Makes pages writable, except those that another request protects.
    fn make_writable(&self, protected: Protected) {
        let pages = protected.pages.clone();
        let parts = self.queues.values().flat_map(|queue| &queue.sends).flat_map(|other| &other.parts);
        let others = parts
            .filter_map(|other| Some(other.pages.as_ref()?.pages.clone()))
            .filter(|other| overlap(&pages, other));
        protected.end(uncovered(pages.clone(), others));
    }

    /// Ends the watch on the memory of a region: the program may change it freely.
    fn forget_region(&mut self, lkey: u32, bytes: &Range<usize>) {
        let is_inside = |part: &WatchedSge| {
            part.lkey == lkey && bytes.start <= part.bytes.start && part.bytes.end <= bytes.end
        };
        let mut unprotected = Vec::new();
        for queue in self.queues.values_mut() {
            let requests = queue.sends.iter_mut().chain(&mut queue.receives);
            for request in requests.filter(|request| request.parts.iter().any(is_inside)) {
                request.is_exempt = true;
                for part in request.parts.iter_mut().filter(|part| is_inside(part)) {
                    unprotected.extend(part.pages.take());
                    unlist(&mut self.scatter_targets, part);
                }
            }
        }
        unprotected.into_iter().for_each(|protected| self.make_writable(protected));
    }

    /// Takes the requests that a polled completion ends. Returns those whose buffers must be compared.
    fn complete(&mut self, watch: WatchedNic, completion: &Completion) -> Vec<Request> {
        let key = (watch, PostedTo::Qp(completion.qpn));
        let Some(queue) = self.queues.get_mut(&key) else { return Vec::new() };
        let wr_id = completion.wr_id;
        let is_receive = completion.opcode as u32 & WcOpcode::Recv as u32 != 0;
        let done: Vec<Request> = if is_receive {
            // A message of the peer may answer unsignaled sends, so the program may treat them as complete.
            let unsignaled = queue.sends.iter().take_while(|request| !request.is_signaled).count();
            let mut done: Vec<Request> = queue.sends.drain(..unsignaled).collect();
            let receive = queue.receives.iter().position(|r| r.wr_id == wr_id);
            done.extend(receive.and_then(|at| queue.receives.remove(at)));
            done
        } else {
            // After an error, unsignaled requests make completions too.
            let ends =
                |r: &Request| r.wr_id == wr_id && (r.is_signaled || completion.status != WcStatus::Success);
            let count = queue.sends.iter().position(ends).map_or(0, |at| at + 1);
            queue.sends.drain(..count).collect()
        };
        let is_exempt: SmallVec<[bool; 4]> = done.iter().map(Request::is_exempt).collect();
        done.iter().for_each(|request| self.release(request));
        done.into_iter()
            .zip(is_exempt)
            .filter(|(_, is_exempt)| !is_exempt)
            .map(|(request, _)| request)
            .collect()
    }

    /// Ends the watch on all requests with buffers that contain some of these bytes. A page that holds one of the bytes becomes writable:
    /// each request that protects it is among them.
    fn unprotect(&mut self, bytes: &Range<usize>) {
        let mut unprotected = Vec::new();
        for request in self.queues.values_mut().flat_map(|queue| &mut queue.sends) {
            if request.parts.iter().any(|part| overlap(&part.bytes, bytes)) {
                request.is_exempt = true;
                unprotected.extend(request.parts.iter_mut().filter_map(|part| part.pages.take()));
            }
        }
        unprotected.into_iter().for_each(|protected| self.make_writable(protected));
    }
}

/// Whether any NIC of this process is watched.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// The NIC is about to write these bytes, or to check whether they are writable: for a receive, a READ, an operation of a peer, or a
/// registration.
#[inline(never)]
pub(super) fn before_nic_write(span: Span) {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    TABLE.lock().unprotect(&(span.start..span.start + span.len));
}

/// The region with this key is deregistered, or gets other bytes or rights. The caller has waited for accesses in flight.
pub(super) fn forget_region(lkey: LKey, bytes: &Range<usize>) {
    TABLE.lock().forget_region(lkey.0, bytes);
}

/// The cause of a fault.
pub(super) enum Fault {
    /// A write into a watched buffer. Its pages are writable now.
    InFlight,
    /// No buffer is watched at this address.
    Other,
}

/// The program wrote to a write-protected page. Called by the signal handler, so it takes no lock and does not allocate.
pub(super) fn on_fault(address: usize) -> Fault {
    static REPORTED: AtomicU32 = AtomicU32::new(0);
    let Owner { queue, name, wr_id, bytes } = match protected::on_write(address) {
        Write::First(owner) => owner,
        Write::Again => return Fault::InFlight,
        Write::Other => return Fault::Other,
    };
    let number = REPORTED.fetch_add(1, Ordering::Relaxed);
    if number < MAX_FAULTS_REPORTED {
        let (start, len, offset) = (bytes.start, bytes.len(), address - bytes.start);
        // SAFETY: returns the ID of this thread; no pointers.
        let thread = unsafe { libc::gettid() };
        let last = if number + 1 == MAX_FAULTS_REPORTED { ". Further changes are not reported" } else { "" };
        log::misuse_in_handler(format_args!(
            "{queue}: thread {thread} writes to address {address:#x}, offset {offset} of the buffer of {len} bytes at {start:#x}, which the {name} with \
             wr_id {wr_id:#x} sends and whose completion was not polled. The NIC may send the old bytes, the new ones or a mixture; change a \
             buffer only after its completion was polled{last}"
        ));
    }
    Fault::InFlight
}

/// Before `fork`: no other thread may hold the table.
pub(super) fn before_fork() {
    mem::forget(TABLE.lock());
}

/// After `fork`, in both processes. A child writes to its own copies of the pages, so its writes are not reported.
///
/// # Safety
/// The thread has called [`before_fork`], or is the copy of one that has.
pub(super) unsafe fn after_fork(is_child: bool) {
    // SAFETY: the thread holds it, by the contract.
    unsafe { TABLE.force_unlock() };
    if is_child {
        protected::forget_handlers();
        let mut table = TABLE.lock();
        for request in table.queues.values_mut().flat_map(|queue| &mut queue.sends) {
            request.is_exempt = true;
            request.parts.iter().filter_map(|part| part.pages.as_ref()).for_each(Protected::exempt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::watched_sge::MAX_SUMMED;
    use super::*;
    use ferroce_os::memory::page_len;

    #[test]
    fn pages_stay_protected_that_another_request_covers() {
        let left = |others: &[(usize, usize)]| {
            let others = others.iter().map(|(start, end)| *start..*end);
            uncovered(10..20, others).into_iter().map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(left(&[]), [(10, 20)]);
        assert_eq!(left(&[(0, 5), (25, 30)]), [(10, 20)]);
        assert_eq!(left(&[(0, 12), (15, 16)]), [(12, 15), (16, 20)]);
        assert_eq!(left(&[(5, 25)]), []);
        assert_eq!(left(&[(10, 15), (15, 20)]), []);
    }

    #[test]
    fn only_pages_that_lie_wholly_inside_are_protected_and_the_rest_is_summed() {
        let page = page_len();
        let part = |bytes: Range<usize>| WatchedSge { bytes, ..WatchedSge::default() };
        assert_eq!(part(100..page + 99).whole_pages(), None);
        assert_eq!(part(page..2 * page).whole_pages(), Some(page..2 * page));
        assert_eq!(part(1..4 * page - 1).whole_pages(), Some(page..3 * page));
        let memory = Pages::map(4);
        let (start, end) = (memory.0 + 1, memory.0 + 4 * page - 1);
        let mut protected = WatchedSge { is_writable: true, ..part(start..end) };
        let table = TABLE.lock();
        protected.protect(PostedTo::Qp(Qpn::new(7)), "SEND", 1);
        assert_eq!(
            protected.summed().collect::<Vec<_>>(),
            [start..memory.0 + page, memory.0 + 3 * page..end]
        );
        table.make_writable(protected.pages.take().expect("it can be protected"));
        drop(table);
        let long = part(7..7 + 2 * MAX_SUMMED);
        assert_eq!(long.summed().map(|range| range.len()).sum::<usize>(), MAX_SUMMED);
    }

    /// A private mapping.
    struct Pages(usize);

    impl Pages {
        fn map(count: usize) -> Pages {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: new memory, which stays.
            let mapped =
                unsafe { libc::mmap(std::ptr::null_mut(), count * page_len(), protection, flags, -1, 0) };
            assert_ne!(mapped, libc::MAP_FAILED);
            Pages(mapped as usize)
        }
    }

    #[test]
    fn a_write_of_the_nic_leaves_the_pages_of_other_requests_protected() {
        freed::install();
        let (memory, page) = (Pages::map(3), page_len());
        let at = |index: usize| memory.0 + index * page;
        // The static table stays locked: this test uses the protected pages.
        let locked = TABLE.lock();
        let mut sends = [at(0)..at(2), at(1)..at(3)].map(|bytes| {
            let mut part = WatchedSge { bytes, is_writable: true, ..WatchedSge::default() };
            part.protect(PostedTo::Qp(Qpn::new(7)), "SEND", 1);
            Request { parts: SmallVec::from([part]), ..Request::default() }
        });
        let second = sends[1].parts[0].pages.clone().expect("it can be protected");
        let queue = Queue { sends: sends.iter_mut().map(mem::take).collect(), ..Queue::default() };
        let key = (WatchedNic(u32::MAX), PostedTo::Qp(Qpn::new(7)));
        let (queues, scatter_targets) = (BTreeMap::from([(key, queue)]), BTreeMap::new());
        let mut table = Table { queues, scatter_targets, sums: 0 };
        let write = |index| {
            // SAFETY: a byte of the mapping above. The handler makes it writable if it is not.
            unsafe { std::ptr::write_volatile(at(index) as *mut u8, 1) };
        };
        table.unprotect(&(at(0)..at(0) + 8));
        let sends = &table.queues[&key].sends;
        assert_eq!([0, 1].map(|index| sends[index].is_exempt()), [true, false]);
        write(0);
        assert!(!second.is_exempt(), "the first page is writable");
        write(1);
        assert!(second.is_exempt(), "the write to the page that both send was noticed");
        table.make_writable(second);
        drop(locked);
    }

    /// The handler takes no lock. If it took the lock of the table, this test would deadlock.
    #[test]
    fn a_write_while_the_table_is_locked_is_handled() {
        freed::install();
        let memory = Pages::map(2);
        let mut part = WatchedSge {
            bytes: memory.0..memory.0 + 2 * page_len(),
            is_writable: true,
            ..WatchedSge::default()
        };
        let table = TABLE.lock();
        part.protect(PostedTo::Qp(Qpn::new(7)), "SEND", 1);
        let protected = part.pages.clone().expect("it can be protected");
        assert!(!protected.is_exempt());
        // SAFETY: a byte of the mapping above. The handler makes it writable.
        unsafe { std::ptr::write_volatile((memory.0 + page_len()) as *mut u8, 1) };
        assert!(protected.is_exempt());
        table.make_writable(protected);
    }
}
