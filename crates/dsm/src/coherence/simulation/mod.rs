//! Random programs on simulated processes, interleaved by a seed. Each read is compared with a single memory.
//!
//! The programs are free of races under scope consistency. A word is either guarded by one lock, or has one owner
//! between two barriers, and others read it only in other phases. So every read has one right answer.

mod process;
mod program;

use super::{Notice, Notices, Options, Step, Update};
use process::{Micro, Process};
use program::{Act, Program, Random};
use std::collections::HashMap;

/// Bytes of a simulated page. Small, so that many processes share one.
const PAGE: usize = 64;
const WORD: usize = 4;
const WORDS: usize = PAGE / WORD;

#[derive(Default)]
struct Lock {
    holder: Option<usize>,
    /// All notices of this lock, with their epochs.
    log: Vec<(u64, Notice)>,
}

/// Sender, page and its words.
type SentPage = (u32, usize, Vec<u32>);

struct World {
    processes: Vec<Process>,
    /// The bytes of each process, by word. Co-located processes see them, too.
    memory: Vec<Vec<u32>>,
    truth: Vec<u32>,
    locks: Vec<Lock>,
    arrivals: Vec<Option<Vec<Notice>>>,
    random: Random,
    trace: u64,
    /// By number of the barrier and receiver.
    updates: HashMap<(u64, u32), Vec<SentPage>>,
    /// Pages that were not fetched because of an update.
    updated: usize,
}

/// How a simulation is made.
#[derive(Debug, Clone, Copy)]
struct Setup {
    processes: usize,
    pages: usize,
    cache_pages: usize,
    prefetch_pages: usize,
    migrate: bool,
    /// Only changed blocks are fetched.
    blocks: bool,
    /// Number of hosts. Processes are placed at random, and share pages with most co-located processes. 0: one host
    /// per process.
    hosts: u64,
    /// Most pages are written by one process and then read by the others, with few locks.
    steady: bool,
    /// How often the phases of the program are repeated.
    rounds: usize,
    /// One in this many notices is lost, as if a log had overflowed; 0: none.
    overflow: u64,
}

impl World {
    fn new(seed: u64, setup: Setup) -> Self {
        let mut random = Random::new(seed);
        let program = Program::new(&mut random, setup);
        let homes: Vec<u32> = (0..setup.pages).map(|_| random.below(setup.processes as u64) as u32).collect();
        let hosts: Vec<u32> = match setup.hosts {
            0 => Vec::new(),
            count => (0..setup.processes).map(|_| random.below(count) as u32).collect(),
        };
        let mut process = |rank: usize| {
            let others = (0..hosts.len()).filter(|&other| other != rank && hosts[other] == hosts[rank]);
            // Some mappings cannot be opened.
            let colocated = others.filter(|_| random.below(4) > 0).map(|other| other as u32).collect();
            let options = Options {
                rank: rank as u32,
                cache_pages: setup.cache_pages,
                prefetch_pages: setup.prefetch_pages,
                max_checking_pages: 4,
                alone: setup.processes == 1,
                hosts: hosts.clone(),
                colocated,
            };
            Process::new(options, &homes, setup, program.acts(rank))
        };
        Self {
            processes: (0..setup.processes).map(&mut process).collect(),
            memory: (0..setup.processes as u32).map(|rank| process::memory(rank, &homes)).collect(),
            truth: vec![0; setup.pages * WORDS],
            locks: (0..program.locks).map(|_| Lock::default()).collect(),
            arrivals: vec![None; setup.processes],
            random,
            trace: 0,
            updates: HashMap::new(),
            updated: 0,
        }
    }

    /// Runs to the end. Returns a hash of everything that happened, and the number of pages that were updated.
    fn run(mut self, setup: Setup) -> (u64, usize) {
        let mut idle = 0;
        while self.processes.iter().any(|process| !process.is_done()) {
            let rank = self.random.below(self.processes.len() as u64) as usize;
            let moved = self.step(rank, setup);
            idle = if moved { 0 } else { idle + 1 };
            assert!(idle < 10_000, "no process makes progress");
            self.trace = self.trace.wrapping_mul(31).wrapping_add(rank as u64 * 2 + u64::from(moved));
        }
        (self.trace, self.updated)
    }

    fn step(&mut self, rank: usize, setup: Setup) -> bool {
        if let Some(micro) = self.processes[rank].pending.pop_front() {
            self.perform(rank, micro);
            return true;
        }
        if !self.processes[rank].has_passed() {
            return self.wait_again(rank);
        }
        let Some(&act) = self.processes[rank].acts.front() else { return false };
        let done = match act {
            Act::Read(word) => self.read(rank, word),
            Act::Write(word, value) => self.write(rank, word, value),
            Act::Lock(lock) => self.lock(rank, lock, setup),
            Act::Unlock(lock) => {
                let steps = self.processes[rank].machine.release(lock as u32);
                self.processes[rank].plan(steps);
                self.processes[rank].pending.push_back(Micro::Unlock(lock));
                Some(())
            }
            Act::Barrier => self.barrier(rank),
        };
        if done.is_some() {
            self.processes[rank].acts.pop_front();
        }
        done.is_some() || !self.processes[rank].pending.is_empty()
    }

    /// Continues once all processes have done their steps after the barrier.
    fn wait_again(&mut self, rank: usize) -> bool {
        let epoch = self.processes[rank].epoch;
        self.processes[rank].ready = epoch;
        let passed = self.processes.iter().all(|process| process.ready >= epoch);
        if passed {
            self.processes[rank].passed = epoch;
        }
        passed
    }

    fn read(&mut self, rank: usize, word: usize) -> Option<()> {
        let value = self.processes[rank].load(word, &self.memory)?;
        assert_eq!(value, self.truth[word], "process {rank} reads word {word} of page {}", word / WORDS);
        self.trace = self.trace.wrapping_mul(31).wrapping_add(u64::from(value));
        Some(())
    }

    fn write(&mut self, rank: usize, word: usize, value: u32) -> Option<()> {
        self.processes[rank].store(word, value, &mut self.memory)?;
        self.truth[word] = value;
        Some(())
    }

    fn lock(&mut self, rank: usize, lock: usize, setup: Setup) -> Option<()> {
        let state = &mut self.locks[lock];
        if state.holder.is_some() {
            return None;
        }
        state.holder = Some(rank);
        let process = &mut self.processes[rank];
        let seen = process.seen[lock];
        process.seen[lock] = state.log.len();
        let news = state.log[seen..].iter().filter(|(epoch, _)| *epoch == process.epoch);
        let news: Vec<Notice> = news.map(|(_, notice)| *notice).collect();
        let lost = setup.overflow > 0 && !news.is_empty() && self.random.below(setup.overflow) == 0;
        let received = if lost { Notices::Overflow } else { Notices::Pages(news) };
        let steps = process.machine.acquire(lock as u32, &received);
        process.plan(steps);
        Some(())
    }

    fn barrier(&mut self, rank: usize) -> Option<()> {
        let process = &mut self.processes[rank];
        if !process.arrived {
            process.arrived = true;
            process.sent.clear();
            let steps = process.machine.arrive();
            process.plan(steps);
            process.pending.push_back(Micro::Arrive);
            return None;
        }
        let received: Option<Vec<Notices>> =
            self.arrivals.iter().map(|notices| notices.clone().map(Notices::Pages)).collect();
        let received = received?;
        process.arrived = false;
        process.epoch += 1;
        let sent = self.updates.remove(&(process.epoch, rank as u32)).unwrap_or_default();
        let update = |(at, &(from, page, _)): (usize, &SentPage)| Update { page, from, at };
        let updates: Vec<Update> = sent.iter().enumerate().map(update).collect();
        process.updates = sent.into_iter().map(|(_, _, words)| words).collect();
        let steps = process.machine.depart(&received, &updates);
        self.updated += steps.iter().filter(|step| matches!(step, Step::Update(..))).count();
        process.plan(steps);
        if !process.machine.must_wait_again() {
            process.passed = process.epoch;
        }
        process.departed = true;
        if self.processes.iter().all(|process| process.departed) {
            self.arrivals.fill(None);
            self.processes.iter_mut().for_each(|process| process.departed = false);
        }
        Some(())
    }

    fn perform(&mut self, rank: usize, micro: Micro) {
        match micro {
            Micro::Fetch(word, home) => {
                assert!(
                    !self.processes[rank].is_colocated(home),
                    "fetched from process {home}, which is co-located"
                );
                self.memory[rank][word] = self.memory[home][word];
            }
            Micro::Send(word, home) => {
                self.memory[home][word] = self.memory[rank][word];
            }
            Micro::Unlock(lock) => {
                let notices = self.processes[rank].machine.released(lock as u32);
                let epoch = self.processes[rank].epoch;
                let state = &mut self.locks[lock];
                assert_eq!(state.holder.take(), Some(rank));
                state.log.extend(notices.into_iter().map(|notice| (epoch, notice)));
                self.processes[rank].seen[lock] = state.log.len();
            }
            Micro::Arrive => {
                let process = &mut self.processes[rank];
                self.arrivals[rank] = Some(process.machine.arrived());
                for &(to, page) in process.machine.updates() {
                    let words = self.memory[rank][page * WORDS..(page + 1) * WORDS].to_vec();
                    let sent = self.updates.entry((process.epoch + 1, to)).or_default();
                    sent.push((rank as u32, page, words));
                }
            }
            Micro::Update(page, words) => {
                for (at, word) in (page * WORDS..).zip(words) {
                    if !self.processes[rank].sent.contains(&at) {
                        self.memory[rank][at] = word;
                    }
                }
            }
            Micro::Discard(run) => {
                for page in run.pages() {
                    let open = self.processes.iter().position(|process| process.may_see(page, rank));
                    assert_eq!(open, None, "page {page} discarded while this process may read it");
                    self.memory[rank][page * WORDS..(page + 1) * WORDS].fill(process::GARBAGE);
                }
            }
            own => self.processes[rank].perform(own, &self.memory),
        }
    }
}

/// Returns the number of pages that were updated.
fn simulate(seed: u64, setup: Setup) -> usize {
    println!("seed {seed}, {setup:?}");
    let first = World::new(seed, setup).run(setup);
    let second = World::new(seed, setup).run(setup);
    assert_eq!(first, second, "the same seed must give the same run");
    first.1
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("FERROCE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..1 + count,
    }
}

const PLAIN: Setup = Setup {
    processes: 3,
    pages: 12,
    cache_pages: 100,
    prefetch_pages: 0,
    migrate: false,
    blocks: false,
    hosts: 0,
    steady: false,
    rounds: 1,
    overflow: 0,
};

#[test]
fn every_read_sees_what_it_must() {
    seeds(150).for_each(|seed| {
        simulate(seed, PLAIN);
    });
}

#[test]
fn with_a_cache_of_four_pages() {
    let setup = Setup { cache_pages: 4, prefetch_pages: 1, pages: 24, ..PLAIN };
    seeds(150).for_each(|seed| {
        simulate(seed, setup);
    });
}

#[test]
fn with_prefetch_and_homes_that_move() {
    let setup = Setup { processes: 4, cache_pages: 8, prefetch_pages: 2, migrate: true, ..PLAIN };
    seeds(150).for_each(|seed| {
        simulate(seed, setup);
    });
}

#[test]
fn with_logs_that_overflow() {
    let setup = Setup { processes: 2, cache_pages: 6, migrate: true, overflow: 3, ..PLAIN };
    seeds(150).for_each(|seed| {
        simulate(seed, setup);
    });
}

#[test]
fn with_updates_at_barriers() {
    let setup = Setup { pages: 3, prefetch_pages: 2, rounds: 8, steady: true, ..PLAIN };
    for setup in [
        setup,
        Setup { processes: 2, pages: 2, ..setup },
        Setup { cache_pages: 8, pages: 12, overflow: 20, ..setup },
        Setup { migrate: true, ..setup },
        Setup { migrate: true, cache_pages: 4, pages: 12, ..setup },
        Setup { blocks: true, ..setup },
        Setup { processes: 4, hosts: 3, pages: 6, ..setup },
    ] {
        let updated: usize = seeds(60).map(|seed| simulate(seed, setup)).sum();
        println!("{updated} pages were updated");
        assert!(updated > 0 || seeds(60).count() == 1, "{setup:?}");
    }
}

#[test]
fn with_changed_blocks_alone() {
    let setup = Setup { blocks: true, ..PLAIN };
    seeds(150).for_each(|seed| {
        simulate(seed, setup);
    });
}

#[test]
fn with_changed_blocks_small_caches_and_homes_that_move() {
    let setup =
        Setup { processes: 4, cache_pages: 6, prefetch_pages: 1, migrate: true, blocks: true, ..PLAIN };
    seeds(150).for_each(|seed| {
        simulate(seed, setup);
    });
}

#[test]
fn with_changed_blocks_and_logs_that_overflow() {
    let setup = Setup { processes: 2, cache_pages: 6, blocks: true, overflow: 3, ..PLAIN };
    seeds(150).for_each(|seed| {
        simulate(seed, setup);
    });
}

#[test]
fn with_colocated_processes() {
    let setup = Setup { processes: 5, hosts: 2, cache_pages: 6, prefetch_pages: 1, overflow: 9, ..PLAIN };
    seeds(150).for_each(|seed| {
        simulate(seed, setup);
    });
}

#[test]
fn with_colocated_processes_and_changed_blocks() {
    let setup = Setup { processes: 4, hosts: 2, cache_pages: 6, blocks: true, overflow: 9, ..PLAIN };
    seeds(150).for_each(|seed| {
        simulate(seed, setup);
    });
}

#[test]
fn with_homes_that_move_between_hosts() {
    let setup = Setup { processes: 5, hosts: 3, cache_pages: 4, migrate: true, ..PLAIN };
    seeds(300).for_each(|seed| {
        simulate(seed, setup);
    });
    seeds(300).for_each(|seed| {
        simulate(seed, Setup { pages: 40, blocks: true, prefetch_pages: 1, ..setup });
    });
}

#[test]
fn one_process_alone() {
    seeds(10).for_each(|seed| {
        simulate(seed, Setup { processes: 1, ..PLAIN });
    });
}
