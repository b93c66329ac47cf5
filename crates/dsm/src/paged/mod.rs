//! The heap as pages with homes, for processes that do not share memory.
//!
//! Each process has a *mapping*: one file with an area for locks, notices and messages, followed by the whole heap.
//! The file is mapped twice. The other processes and our own copies use the first mapping, which is always writable.
//! The program uses the second, at the heap's address, whose pages are closed until they are valid. So no thread ever
//! sees half a page.
//!
//! | file | question |
//! |---|---|
//! | `layout` | the offsets in a mapping |
//! | `colocated` | the mappings of the other processes of this host |
//! | `executor` | how the steps of the coherence machine are done |
//! | `locks` | who holds a lock, and what was written under it |
//! | `barrier`, `tree` | barriers, with notices and without; the same over a tree |
//! | `updates` | pages that are sent with an arrival |
//! | `packed` | how a page of many small changes is sent home |
//! | `mail` | flags and messages |
//! | `waiting` | how to wait for a word that a peer writes |

mod barrier;
mod colocated;
mod executor;
mod layout;
mod locks;
mod mail;
mod packed;
mod tree;
mod updates;
mod waiting;

use crate::backend::{Backend, Envelope};
use crate::coherence::{Machine, Options, Run};
use crate::error::Error;
use crate::faults::{Registration, Source, Sources, Touch, View};
use crate::heap::{HEAP_ADDRESS, Homes};
use crate::job::Tuning;
use crate::map::{Mapping, anonymous_file};
use crate::meet::{Hosts, Meeting, stop};
use crate::settings::{Settings, TransportKind};
use crate::statistics::{Counters, timed};
use crate::transport::{Messages, Peers, Rdma, Transport};
use crate::{LOCKS, PAGE};
use executor::Executor;
use layout::MappingLayout;
use locks::Locks;
use mail::Mail;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use waiting::PollTimes;

/// A process of a job with a paged heap.
pub(crate) struct Paged {
    core: Arc<Core>,
    meeting: Arc<Meeting>,
    /// Faults must end before the mappings go.
    _faults: Registration,
}

/// The part that the fault handler uses as well.
struct Core {
    rank: u32,
    size: u32,
    layout: MappingLayout,
    mapping: Arc<Mapping>,
    peers: Arc<Peers>,
    poll_times: PollTimes,
    state: Mutex<State>,
    executor: Executor,
    locks: Locks,
    mail: Mail,
    barriers: Mutex<barrier::Passed>,
    /// Whether barriers go over a tree.
    tree: AtomicBool,
    /// Whether scattered changes are packed at barriers.
    packs: AtomicBool,
}

/// State that every fault changes.
struct State {
    machine: Machine,
    twins: executor::Twins,
    /// Words sent home since the program arrived at a barrier that it has not left, by page.
    sent: Option<executor::Sent>,
}

impl Paged {
    /// `local_processes` counts the processes of this host, and `hosts` lists which of them share pages.
    pub(crate) fn open(
        settings: &Settings,
        transport: TransportKind,
        meeting: &Arc<Meeting>,
        local_processes: usize,
        hosts: &Hosts,
        counters: &Arc<Counters>,
    ) -> Result<Self, Error> {
        let poll_times = PollTimes::new(local_processes);
        let (rank, size) = (settings.rank, settings.size);
        let layout = MappingLayout::new(size);
        let len = layout.len() + settings.heap_bytes;
        let file = anonymous_file(c"ferroce-dsm-mapping", len)?;
        let mapping = Arc::new(Mapping::anywhere(&file, 0, len)?);
        let mut mappings = match hosts.any_colocated() {
            true => colocated::open(rank, hosts, &file, len, meeting)?,
            false => BTreeMap::new(),
        };
        let colocated = mappings.keys().copied().collect();
        mappings.insert(rank, Source { file, mapping: mapping.clone() });
        let sources = Sources::new(rank, layout.len(), mappings);
        let view = View::new(sources, settings.heap_bytes, settings.faults)?;
        let remote: Option<Box<dyn Transport>> = match transport {
            _ if size == 1 => None,
            TransportKind::RdmaMsg | TransportKind::Udp => {
                let over_udp = transport == TransportKind::Udp;
                Some(Box::new(Messages::open(
                    over_udp,
                    rank,
                    size,
                    &mapping,
                    meeting,
                    poll_times.completion,
                )?))
            }
            _ => Some(Box::new(Rdma::open(rank, size, &mapping, meeting, poll_times.completion)?)),
        };
        let peers = Arc::new(Peers::new(rank, mapping.clone(), remote));
        let options = Options {
            rank,
            cache_pages: settings.cache_pages,
            prefetch_pages: settings.prefetch_pages,
            max_checking_pages: settings.max_checking_pages,
            alone: size == 1,
            hosts: hosts.first.clone(),
            colocated,
        };
        let mut machine = Machine::new(options);
        machine.set_prefetching(settings.prefetch);
        let core = Arc::new(Core {
            rank,
            size,
            layout,
            poll_times,
            state: Mutex::new(State { machine, twins: Default::default(), sent: None }),
            executor: Executor::new(view, peers.clone(), mapping.clone(), layout, counters.clone()),
            locks: Locks::new(LOCKS),
            mail: Mail::new(rank, size, layout),
            barriers: Mutex::default(),
            tree: AtomicBool::new(false),
            packs: AtomicBool::new(true),
            mapping,
            peers,
        });
        let handler = Arc::downgrade(&core);
        let answer = move |at, touch| handler.upgrade().is_some_and(|core| core.answer(at, touch));
        let faults = Registration::new(HEAP_ADDRESS, settings.heap_bytes, Box::new(answer))?;
        Ok(Self { core, meeting: meeting.clone(), _faults: faults })
    }
}

impl Core {
    /// Handles an access without the rights for it. Returns whether the thread may retry.
    fn answer(&self, at: usize, touch: Touch) -> bool {
        let start = std::time::Instant::now();
        let result = self.executor.fault(&mut self.state.lock(), at / PAGE, touch);
        self.executor.count_fault(start.elapsed());
        match result {
            Ok(known) => known,
            // The program only accessed a variable, so there is no caller to return an error to.
            Err(error) => stop(self.rank, &error.to_string()),
        }
    }

    /// Waits until `ready`, and serves other processes meanwhile.
    fn wait_until(&self, ready: impl FnMut() -> bool) -> Result<(), Error> {
        self.poll_times.wait(&self.peers, ready)
    }
}

impl Backend for Paged {
    fn heap(&self) -> *mut u8 {
        self.core.executor.view.mapping.base()
    }

    fn place(&self, at: usize, homes: &Homes) -> Result<(), Error> {
        let mut state = self.core.state.lock();
        let mut first = at / PAGE;
        let mut steps = Vec::new();
        for &(count, home) in homes {
            steps.extend(state.machine.place(Run { first, count }, home));
            first += count;
        }
        self.core.executor.run(&mut state, steps)
    }

    fn discard(&self, at: usize, len: usize) -> Result<(), Error> {
        let mut state = self.core.state.lock();
        let steps = state.machine.unplace(Run { first: at / PAGE, count: len / PAGE });
        self.core.executor.run(&mut state, steps)
    }

    fn lock(&self, id: u32) -> Result<(), Error> {
        self.core.lock(id)
    }

    fn unlock(&self, id: u32) -> Result<(), Error> {
        self.core.unlock(id)
    }

    fn barrier(&self, waits: &AtomicU64) -> Result<(), Error> {
        timed(waits, || self.core.barrier())
    }

    fn wait_all(&self, waits: &AtomicU64) -> Result<(), Error> {
        timed(waits, || self.core.wait_all())
    }

    fn change_flag(&self, id: u32, set: bool) -> Result<(), Error> {
        self.core.change_flag(id, set)
    }

    fn wait_flag(&self, id: u32) -> Result<(), Error> {
        self.core.wait_flag(id)
    }

    fn send(&self, to: u32, tag: i32, bytes: &[u8]) -> Result<(), Error> {
        // The bytes may be shared memory, and must not fault while we hold a lock.
        let bytes = bytes.to_vec();
        self.core.send(to, tag, &bytes)
    }

    fn recv(&self, from: Option<u32>, tag: Option<i32>) -> Result<(Envelope, Vec<u8>), Error> {
        self.core.recv(from, tag)
    }

    fn get(&self, into: &mut [u8], at: usize) -> Result<(), Error> {
        let (first, end) = (at / PAGE, (at + into.len()).div_ceil(PAGE));
        {
            let mut state = self.core.state.lock();
            let steps = state.machine.fetch_all(Run { first, count: end - first });
            self.core.executor.run(&mut state, steps)?;
        }
        self.core.executor.view.mapping.read(at, into);
        Ok(())
    }

    fn put(&self, at: usize, from: &[u8]) -> Result<(), Error> {
        self.core.executor.view.mapping.write(at, from);
        Ok(())
    }

    fn configure(&self, tuning: Tuning, on: bool) {
        let machine = &mut self.core.state.lock().machine;
        match tuning {
            Tuning::Parcels => self.core.packs.store(on, Ordering::Relaxed),
            Tuning::BroadcastTree => self.core.tree.store(on, Ordering::Relaxed),
            Tuning::HomeMigration => machine.migrate = on,
            Tuning::AdaptiveWriteDetection => machine.predict_writes = on,
            Tuning::ChangedBlocks => machine.changed_blocks = on,
            Tuning::Prefetch => machine.set_prefetching(on),
            Tuning::Colocated => machine.set_sharing(on),
        }
    }

    fn faults(&self) -> &str {
        &self.core.executor.view.story
    }

    fn shared_pages(&self) -> Vec<(u32, u64)> {
        let state = self.core.state.lock();
        state.machine.shared_pages().iter().map(|(home, pages)| (*home, *pages)).collect()
    }

    fn leave(&self) -> Result<(), Error> {
        // Posted operations must be done before we leave, and we must serve the others until theirs are.
        self.core.drain()?;
        self.meeting.gather("done")?;
        // The program may continue to read its own copies.
        self.core.executor.view.open_to_all()
    }
}
