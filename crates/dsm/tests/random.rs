//! Random programs on real processes. Each checks what it reads: words under a lock all change together, and words with an
//! owner hold what the owner of the last phase computed.

#[allow(dead_code)]
mod support;

use ferroce_dsm::{Job, Placement, Shared, TransportKind, Tuning};
use support::{Plan, TWO_ON_EACH_HOST, work};

const PAGES: usize = 40;
const WORDS: usize = PAGES * 512;
const LOCKS: usize = 5;
const PHASES: u64 = 12;
/// Words that each lock guards, spread over all pages.
const GUARDED: usize = 30;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }
}

/// Word number `at` that `lock` guards; words from 100 on in each page have owners.
fn guarded(lock: usize, at: usize) -> usize {
    (at * 17 + lock * 3) % PAGES * 512 + at * LOCKS % 95 + lock
}

fn owner(word: usize, phase: u64, size: usize) -> usize {
    (word / 7 + phase as usize * 3) % size
}

fn value(word: usize, phase: u64) -> u64 {
    (word as u64 + 1) * (phase + 1)
}

/// Reads all words of a lock, which must be equal, and changes them all.
fn critical_section(job: &Job, heap: &Shared<[u64]>, lock: usize, inner: Option<usize>) {
    let _guard = job.guard(lock as u32).unwrap();
    let before = heap.get(guarded(lock, 0));
    for at in 0..GUARDED {
        assert_eq!(heap.get(guarded(lock, at)), before, "word {at} of lock {lock}");
        heap.set(guarded(lock, at), before + 1);
    }
    if let Some(inner) = inner {
        critical_section(job, heap, inner, None);
    }
}

/// What a process does between two barriers. Returns how often it changed the words of each lock.
fn phase(job: &Job, heap: &Shared<[u64]>, random: &mut Random, phase: u64) -> [u64; LOCKS] {
    let (rank, size) = (job.rank() as usize, job.size() as usize);
    let mut changes = [0; LOCKS];
    let owned = (0..WORDS).filter(|word| word % 512 >= 100 && word % 11 == phase as usize % 11);
    for word in owned.filter(|word| owner(*word, phase, size) == rank) {
        heap.set(word, value(word, phase));
    }
    for _ in 0..random.below(6) {
        let lock = random.below(LOCKS);
        // Only upwards, so that there is no deadlock.
        let inner = (lock + 1 < LOCKS && random.below(2) == 0).then_some(lock + 1);
        critical_section(job, heap, lock, inner);
        changes[lock] += 1;
        if let Some(inner) = inner {
            changes[inner] += 1;
        }
    }
    changes
}

fn program(job: &Job) {
    let seed: u64 = std::env::var("FERROCE_SEED").unwrap().parse().unwrap();
    job.configure(Tuning::HomeMigration, seed % 2 == 1);
    let mut random = Random(seed * 1000 + u64::from(job.rank()));
    let heap = job
        .shared::<u64>(WORDS, &Placement::Cyclic { block: 4096 * (1 + seed as usize % 3), first: 0 })
        .unwrap();
    let mut changes = [0; LOCKS];
    for now in 0..PHASES {
        let more = phase(job, &heap, &mut random, now);
        (0..LOCKS).for_each(|lock| changes[lock] += more[lock]);
        job.barrier().unwrap();
        let written = (0..WORDS).filter(|word| word % 512 >= 100 && word % 11 == now as usize % 11);
        for word in written.skip(random.below(3)).step_by(3) {
            assert_eq!(heap.get(word), value(word, now), "word {word} after phase {now}");
        }
        job.barrier().unwrap();
    }
    let totals = job.shared::<u64>(LOCKS, &Placement::On(0)).unwrap();
    for (lock, count) in changes.into_iter().enumerate() {
        let _guard = job.guard(100).unwrap();
        totals.update(lock, |total| total + count);
    }
    job.barrier().unwrap();
    for lock in 0..LOCKS {
        assert_eq!(heap.get(guarded(lock, 0)), totals.get(lock), "changes under lock {lock}");
    }
    job.barrier().unwrap();
}

fn on(test: &str, transport: TransportKind, more: &[(&str, &str)]) {
    work(program);
    let seeds = std::env::var("FERROCE_SOAK_SEEDS").map_or(4, |count| count.parse().expect("a number"));
    for seed in 1..=seeds {
        let seed_text = u64::to_string(&seed);
        let size = [2, 3, 4, 8][seed as usize % 4];
        println!("seed {seed}");
        let mut variables = vec![("FERROCE_SEED", seed_text.as_str()), ("FERROCE_DSM_CACHE_PAGES", "12")];
        variables.extend(more);
        let variables = &variables;
        Plan { test, size, transport, variables }.run();
    }
}

#[test]
fn local() {
    on("local", TransportKind::Local, &[]);
}

#[test]
fn rdma() {
    on("rdma", TransportKind::Rdma, &[]);
}

#[test]
fn rdma_msg() {
    on("rdma_msg", TransportKind::RdmaMsg, &[]);
}

#[test]
fn udp() {
    on("udp", TransportKind::Udp, &[]);
}

/// Two processes on each host share the pages of both; homes move between hosts with every second seed.
#[test]
fn several_hosts() {
    on("several_hosts", TransportKind::Rdma, &TWO_ON_EACH_HOST);
}

/// The same, with page faults by SIGSEGV.
#[test]
fn several_hosts_with_signals() {
    let [transport, hosts] = TWO_ON_EACH_HOST;
    let faults = ("FERROCE_DSM_FAULTS", "signal");
    on("several_hosts_with_signals", TransportKind::Rdma, &[transport, hosts, faults]);
}
