//! Random programs without races.

use super::{Setup, WORDS};
use std::collections::VecDeque;

/// Numbers from a seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What a process does next.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    Read(usize),
    Write(usize, u32),
    Lock(usize),
    Unlock(usize),
    Barrier,
}

pub(super) const LOCKS: usize = 3;
const PHASES: usize = 5;
const DRAWS_PER_PHASE: u64 = 6;

pub(super) struct Program {
    pub(super) locks: usize,
    acts: Vec<VecDeque<Act>>,
}

/// Who may use a word.
#[derive(Clone, Copy, PartialEq)]
enum Guard {
    Lock(usize),
    /// By phase: the only process that reads and writes it, or `None` if all may read it.
    Owners([Option<usize>; PHASES]),
}

impl Program {
    pub(super) fn new(random: &mut Random, setup: Setup) -> Self {
        let Setup { processes, pages, rounds, .. } = setup;
        let guards: Vec<Guard> = (0..pages * WORDS)
            .map(|word| match random.below(if setup.steady { 12 } else { 2 }) {
                // Mostly one writer per page, in every second phase.
                2.. => Guard::Owners(std::array::from_fn(|phase| {
                    (phase % 2 == 0).then_some(word / WORDS % processes)
                })),
                0 => Guard::Lock(random.below(LOCKS as u64) as usize),
                _ => Guard::Owners(std::array::from_fn(|_| {
                    (random.below(2) == 0).then(|| random.below(processes as u64) as usize)
                })),
            })
            .collect();
        let mut acts = vec![VecDeque::new(); processes];
        for phase in (0..rounds).flat_map(|_| 0..PHASES) {
            for (rank, acts) in acts.iter_mut().enumerate() {
                for _ in 0..DRAWS_PER_PHASE {
                    let steady = setup.steady && random.below(8) > 0;
                    match steady {
                        true => touch(random, &guards, phase, rank, &[], acts),
                        false => random_acts(random, &guards, phase, rank, acts),
                    }
                }
                acts.push_back(Act::Barrier);
            }
        }
        Self { locks: LOCKS, acts }
    }

    pub(super) fn acts(&self, rank: usize) -> VecDeque<Act> {
        self.acts[rank].clone()
    }
}

/// Some accesses outside of locks, or a critical section, or one inside another.
fn random_acts(random: &mut Random, guards: &[Guard], phase: usize, rank: usize, acts: &mut VecDeque<Act>) {
    match random.below(4) {
        0 | 1 => touch(random, guards, phase, rank, &[], acts),
        2 => {
            let lock = random.below(LOCKS as u64) as usize;
            acts.push_back(Act::Lock(lock));
            touch(random, guards, phase, rank, &[lock], acts);
            acts.push_back(Act::Unlock(lock));
        }
        _ => {
            // The lower lock is always taken first, so that no deadlock is possible.
            let inner = 1 + random.below(LOCKS as u64 - 1) as usize;
            let outer = random.below(inner as u64) as usize;
            acts.push_back(Act::Lock(outer));
            touch(random, guards, phase, rank, &[outer], acts);
            acts.push_back(Act::Lock(inner));
            touch(random, guards, phase, rank, &[outer, inner], acts);
            acts.push_back(Act::Unlock(inner));
            touch(random, guards, phase, rank, &[outer], acts);
            acts.push_back(Act::Unlock(outer));
        }
    }
}

fn touch(
    random: &mut Random,
    guards: &[Guard],
    phase: usize,
    rank: usize,
    held: &[usize],
    acts: &mut VecDeque<Act>,
) {
    let mut wanted = 1 + random.below(5);
    // Most words belong to others; the search ends after enough of them.
    for _ in 0..200 {
        let word = random.below(guards.len() as u64) as usize;
        let (may_read, may_write) = match guards[word] {
            Guard::Lock(lock) => (held.contains(&lock), held.contains(&lock)),
            Guard::Owners(owners) => {
                let ours = owners[phase] == Some(rank);
                (ours || owners[phase].is_none(), ours)
            }
        };
        if may_read {
            acts.push_back(Act::Read(word));
            if may_write && random.below(3) > 0 {
                acts.push_back(Act::Write(word, random.next() as u32));
                acts.push_back(Act::Read(word));
            }
            wanted -= 1;
        }
        if wanted == 0 {
            return;
        }
    }
}
