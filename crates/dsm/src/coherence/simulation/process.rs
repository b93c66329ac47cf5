//! A simulated process: the machine, and memory with rights.

use super::program::Act;
use super::{PAGE, Setup, WORD, WORDS};
use crate::coherence::machine::Fault;
use crate::coherence::{Access, Blocks, Machine, Options, Run, Step, changed};
use std::collections::{HashMap, HashSet, VecDeque};

/// The content of memory that must not be read.
pub(super) const GARBAGE: u32 = 0xdead_beef;

/// Atomic actions: other processes can run between two of them.
#[derive(Debug)]
pub(super) enum Micro {
    Protect(Run, Access),
    /// A word from its home.
    Fetch(usize, usize),
    Twin(usize),
    /// Compares with the twin; the words that differ are sent next, one by one, except at home.
    Compare(usize, Option<usize>),
    /// A word to its home.
    Send(usize, usize),
    Show(Run, usize),
    Discard(Run),
    Unlock(usize),
    Arrive,
    /// A page from the updates of a barrier.
    Update(usize, Vec<u32>),
}

/// What process `rank` has at first: zeros where it is the home.
pub(super) fn memory(rank: u32, homes: &[u32]) -> Vec<u32> {
    let page = |home: &u32| [if *home == rank { 0 } else { GARBAGE }; WORDS];
    homes.iter().flat_map(page).collect()
}

pub(super) struct Process {
    pub(super) machine: Machine,
    /// By page: whose bytes the program sees.
    shown: Vec<usize>,
    colocated: Vec<u32>,
    access: Vec<Access>,
    twins: HashMap<usize, Vec<u32>>,
    /// Words sent home since the program arrived at the last barrier.
    pub(super) sent: HashSet<usize>,
    /// Pages that came with the arrivals at this barrier.
    pub(super) updates: Vec<Vec<u32>>,
    pub(super) acts: VecDeque<Act>,
    pub(super) pending: VecDeque<Micro>,
    pub(super) seen: Vec<usize>,
    pub(super) epoch: u64,
    pub(super) arrived: bool,
    pub(super) departed: bool,
    /// The last barrier whose steps this process has done, and the last one for which all processes have.
    pub(super) ready: u64,
    pub(super) passed: u64,
}

impl Process {
    pub(super) fn new(options: Options, homes: &[u32], setup: Setup, acts: VecDeque<Act>) -> Self {
        let (rank, colocated) = (options.rank as usize, options.colocated.clone());
        let mut machine = Machine::new(options);
        machine.migrate = setup.migrate;
        machine.changed_blocks = setup.blocks;
        let placed = (0..).zip(homes).flat_map(|(first, &home)| machine.place(Run { first, count: 1 }, home));
        let placed: Vec<Step> = placed.collect();
        let mut process = Self {
            machine,
            shown: vec![rank; homes.len()],
            colocated,
            access: vec![Access::None; homes.len()],
            twins: HashMap::new(),
            sent: HashSet::new(),
            updates: Vec::new(),
            acts,
            pending: VecDeque::new(),
            seen: vec![0; super::program::LOCKS],
            epoch: 0,
            arrived: false,
            departed: false,
            ready: 0,
            passed: 0,
        };
        process.plan(placed);
        process
    }

    pub(super) fn has_passed(&self) -> bool {
        self.passed == self.epoch
    }

    /// Whether pages at home there are shared with it.
    pub(super) fn is_colocated(&self, home: usize) -> bool {
        self.colocated.contains(&(home as u32))
    }

    /// Whether the program may read the bytes of a page at process `rank`.
    pub(super) fn may_see(&self, page: usize, rank: usize) -> bool {
        self.shown[page] == rank && self.access[page] != Access::None
    }

    pub(super) fn is_done(&self) -> bool {
        self.acts.is_empty() && self.pending.is_empty()
    }

    pub(super) fn plan(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Protect(run, access) => self.pending.push_back(Micro::Protect(run, access)),
                Step::Fetch(run, home) => {
                    let words = run.first * WORDS..(run.first + run.count) * WORDS;
                    self.pending.extend(words.map(|word| Micro::Fetch(word, home as usize)));
                }
                Step::FetchBlocks(page, blocks, home) => {
                    let words = blocks.ranges(PAGE).into_iter().flat_map(|range| range.step_by(WORD));
                    let words = words.map(|at| Micro::Fetch(page * WORDS + at / WORD, home as usize));
                    self.pending.extend(words);
                }
                Step::Update(page, at) => {
                    self.pending.push_back(Micro::Update(page, self.updates[at].clone()))
                }
                Step::Twin(page) => self.pending.push_back(Micro::Twin(page)),
                Step::Flush(page, home) => self.pending.push_back(Micro::Compare(page, Some(home as usize))),
                Step::Compare(page) => self.pending.push_back(Micro::Compare(page, None)),
                Step::Show(run, home) => self.pending.push_back(Micro::Show(run, home as usize)),
                Step::Discard(run) => self.pending.push_back(Micro::Discard(run)),
            }
        }
    }

    fn fault(&mut self, page: usize, write: bool) {
        let Fault::Steps(steps) = self.machine.fault(page, write) else { panic!("page {page} is allocated") };
        assert!(!steps.is_empty(), "a fault without steps");
        if !write {
            let opened =
                steps.iter().any(|step| matches!(step, Step::Twin(_) | Step::Protect(_, Access::Write)));
            assert!(!opened, "a read fault never counts as a write");
        }
        self.plan(steps);
    }

    /// Returns `None` if it faulted; the steps are planned then.
    pub(super) fn load(&mut self, word: usize, memory: &[Vec<u32>]) -> Option<u32> {
        if self.access[word / WORDS] == Access::None {
            self.fault(word / WORDS, false);
            return None;
        }
        Some(memory[self.shown[word / WORDS]][word])
    }

    /// As `load`.
    pub(super) fn store(&mut self, word: usize, value: u32, memory: &mut [Vec<u32>]) -> Option<()> {
        if self.access[word / WORDS] != Access::Write {
            self.fault(word / WORDS, true);
            return None;
        }
        memory[self.shown[word / WORDS]][word] = value;
        Some(())
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(super) fn perform(&mut self, micro: Micro, memory: &[Vec<u32>]) {
        match micro {
            Micro::Protect(run, access) => self.access[run.pages()].fill(access),
            Micro::Twin(page) => {
                let copy = memory[self.shown[page]][page * WORDS..(page + 1) * WORDS].to_vec();
                assert!(self.twins.insert(page, copy).is_none(), "a twin was there already");
            }
            Micro::Compare(page, home) => {
                assert_ne!(self.access[page], Access::Write, "compared while it may change");
                let twin = self.twins.remove(&page).expect("a dirty page has a twin");
                let now = &memory[self.shown[page]][page * WORDS..(page + 1) * WORDS];
                let ranges = changed(&Self::bytes(&twin), &Self::bytes(now));
                self.machine.compared(page, Blocks::of(&ranges, PAGE));
                let Some(home) = home else { return };
                let words = ranges.into_iter().flat_map(|range| range.step_by(WORD));
                for word in words.rev() {
                    assert!(word < PAGE);
                    self.sent.insert(page * WORDS + word / WORD);
                    self.pending.push_front(Micro::Send(page * WORDS + word / WORD, home));
                }
            }
            Micro::Show(run, home) => {
                for page in run.pages() {
                    assert_eq!(self.access[page], Access::None, "shown while the program may read it");
                    self.shown[page] = home;
                }
            }
            other => panic!("{other:?} needs other processes"),
        }
    }
}
