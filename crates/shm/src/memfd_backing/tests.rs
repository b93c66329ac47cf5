//! Real memory, moved there and back.

use super::super::held_fd::{check, identity};
use super::super::write_protect::{Kind, WriteProtect};
use super::memfd::{is_mapped, map};
use super::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;

mod huge;
mod pieces;
mod refusals;

const PAGE: usize = 4096;
const ALL_MEANS: [Means; 3] = [Means::Everyone, Means::Threads, Means::Nothing];
const RW: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Pages of a test, with a page that nothing can touch on either side: else the kernel joins mappings of several tests.
struct Memory(Range<usize>);

impl Memory {
    fn new(pages: usize) -> Memory {
        let around = map(0, (pages + 2) * PAGE, libc::PROT_NONE, PRIVATE, -1, 0).expect("memory");
        let memory = Memory(around + PAGE..around + (pages + 1) * PAGE);
        memory.map_anew(0..pages, PRIVATE);
        memory
    }

    /// Numbered words.
    fn filled(pages: usize) -> Memory {
        let memory = Memory::new(pages);
        memory.fill(3);
        memory
    }

    fn map_anew(&self, pages: Range<usize>, how: libc::c_int) {
        map(self.page(pages.start), pages.len() * PAGE, RW, how | libc::MAP_FIXED, -1, 0)
            .expect("mapping anew");
    }

    fn unmap(&self, pages: Range<usize>) {
        // SAFETY: pages of this test.
        assert_eq!(unsafe { libc::munmap(self.page(pages.start) as *mut _, pages.len() * PAGE) }, 0);
    }

    fn page(&self, at: usize) -> usize {
        self.0.start + at * PAGE
    }

    fn words(&self) -> impl Iterator<Item = &'static AtomicU64> {
        self.0.clone().step_by(8).map(word)
    }

    fn fill(&self, factor: u64) {
        (0..).zip(self.words()).for_each(|(n, word)| word.store(n * factor, Ordering::Relaxed));
    }

    fn holds(&self, factor: u64) -> bool {
        (0..).zip(self.words()).all(|(n, word)| word.load(Ordering::Relaxed) == n * factor)
    }

    fn move_in(&self, pages: Range<usize>) -> Result<Arc<MemfdPages>, WhyNot> {
        MemfdPages::move_in(self.page(pages.start), pages.len() * PAGE)
    }

    fn is_private(&self) -> bool {
        let found = vma::mappings(&self.0).expect("maps");
        vma::covers(&found, &self.0) && found.iter().all(Vma::is_plain)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the pages of this test.
        unsafe { libc::munmap((self.0.start - PAGE) as *mut _, self.0.len() + 2 * PAGE) };
    }
}

fn word(addr: usize) -> &'static AtomicU64 {
    // SAFETY: an aligned word of pages that outlive the test's use of it.
    unsafe { &*(addr as *const AtomicU64) }
}

/// A second mapping, as a local peer has it.
fn second_mapping(backed: &MemfdPages) -> Memory {
    let around = map(0, backed.len() + 2 * PAGE, libc::PROT_NONE, PRIVATE, -1, 0).expect("memory");
    let second = Memory(around + PAGE..around + PAGE + backed.len());
    backed.file.map_over(&second.0, 0).expect("second mapping");
    second
}

fn is_allowed(means: Means) -> bool {
    let memory = Memory::new(1);
    let allowed =
        WriteProtect::begin(&memory.0, Kind::Memfd, means).expect("write protection").means() == means;
    if !allowed {
        println!("SKIPPED: a userfaultfd that holds back {means:?} is not allowed here");
    }
    allowed
}

#[test]
fn contents_survive_both_ways() {
    for means in ALL_MEANS {
        let memory = Memory::filled(5);
        let backed = MemfdPages::move_in_with(memory.0.start, memory.0.len(), means).expect("in a memfd");
        assert_eq!((backed.start(), backed.len()), (memory.0.start, 5 * PAGE));
        assert!(memory.holds(3) && !memory.is_private());
        memory.fill(5);
        drop(backed);
        assert!(memory.holds(5) && memory.is_private());
    }
}

#[test]
fn only_whole_pages_move() {
    let memory = Memory::filled(4);
    let backed = MemfdPages::move_in(memory.0.start + 8, 4 * PAGE - 16).expect("in a memfd");
    assert_eq!((backed.start(), backed.len()), (memory.page(1), 2 * PAGE));
    assert!(memory.holds(3));
    drop(backed);
    assert!(memory.holds(3) && memory.is_private());
}

#[test]
fn a_local_peer_sees_stores_and_the_reverse() {
    let memory = Memory::filled(3);
    let backed = memory.move_in(0..3).expect("in a memfd");
    let second = second_mapping(&backed);
    assert!(second.holds(3));
    memory.fill(4);
    assert!(second.holds(4));
    second.fill(5);
    assert!(memory.holds(5));
    drop(backed);
    assert!(memory.holds(5));
    second.fill(6);
    assert!(memory.holds(5), "memory that was given back is nobody else's");
}

#[test]
fn the_file_is_what_a_local_peer_needs() {
    let memory = Memory::filled(2);
    let backed = memory.move_in(0..2).expect("in a memfd");
    // SAFETY: a descriptor of its own.
    let other = unsafe { OwnedFd::from_raw_fd(libc::dup(backed.fd())) };
    assert_eq!(identity(other.as_raw_fd()), Ok((backed.inode(), backed.device())));
    for len in [0, PAGE, 3 * PAGE] {
        // SAFETY: changes the length of a file of ours, or rather does not.
        assert_eq!(check(unsafe { libc::ftruncate(other.as_raw_fd(), len as i64) }), Err(libc::EPERM));
    }
    // SAFETY: asks for the flags.
    assert_eq!(unsafe { libc::fcntl(backed.fd(), libc::F_GETFD) }, libc::FD_CLOEXEC);
}

/// Ends the other threads of a test, even if its own panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads store numbers that grow by one and look whether the last is still there, while `disturb` runs.
fn hammer(memory: &Memory, disturb: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads = [0, 1].map(|lane| {
            let (stop, memory) = (&stop, &memory);
            scope.spawn(move || {
                let words: Vec<_> =
                    memory.0.clone().step_by(PAGE).map(|page| word(page + lane * 64)).collect();
                let mut stored = 0;
                while !stop.load(Ordering::Relaxed) {
                    for word in &words {
                        assert_eq!(word.load(Ordering::Relaxed), stored, "a store was lost");
                        word.store(stored + 1, Ordering::Relaxed);
                    }
                    stored += 1;
                }
                assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == stored));
            })
        });
        let end = Stop(&stop);
        disturb();
        drop(end);
        threads.into_iter().for_each(|thread| thread.join().expect("no store was lost"));
    });
}

#[test]
fn no_store_is_lost() {
    for means in [Means::Everyone, Means::Threads].into_iter().filter(|means| is_allowed(*means)) {
        let memory = Memory::new(4);
        hammer(&memory, || {
            for _ in 0..1000 {
                let backed =
                    MemfdPages::move_in_with(memory.0.start, memory.0.len(), means).expect("in a memfd");
                assert!(backed.held_stores_back());
            }
        });
        assert!(memory.is_private());
    }
}

#[test]
fn a_write_protection_that_is_given_up_loses_no_store() {
    for means in [Means::Everyone, Means::Threads].into_iter().filter(|means| is_allowed(*means)) {
        let memory = Memory::new(4);
        hammer(&memory, || {
            for _ in 0..1000 {
                drop(WriteProtect::begin(&memory.0, Kind::Anonymous, means).expect("write protection"));
            }
        });
    }
}

#[test]
fn forks_meanwhile_hang_nobody() {
    let memory = Memory::new(4);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let forks = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                in_child(|| true);
            }
        });
        let end = Stop(&stop);
        hammer(&memory, || (0..200).for_each(|_| drop(memory.move_in(0..4).expect("in a memfd"))));
        drop(end);
        forks.join().expect("children");
    });
}

/// A handler that writes there, and interrupts the very thread that moves the pages, waits until they are in place.
#[test]
fn signal_handlers_store_too() {
    static PLACE: AtomicU64 = AtomicU64::new(0);
    extern "C" fn handler(_: libc::c_int) {
        word(PLACE.load(Ordering::Relaxed) as usize).fetch_add(1, Ordering::Relaxed);
    }
    let memory = Memory::new(4);
    PLACE.store(memory.0.start as u64, Ordering::Relaxed);
    // SAFETY: a handler that adds to a word of memory which outlives the signals; and the calling thread.
    let mover = unsafe {
        libc::signal(libc::SIGUSR2, handler as extern "C" fn(libc::c_int) as libc::sighandler_t);
        libc::pthread_self()
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the thread is in this scope, so it lives.
                unsafe { libc::pthread_kill(mover, libc::SIGUSR2) };
                let now = word(memory.0.start).load(Ordering::Relaxed);
                assert!(now >= seen, "a store was lost");
                seen = now;
            }
        });
        let end = Stop(&stop);
        (0..500).for_each(|_| drop(memory.move_in(0..4).expect("in a memfd")));
        drop(end);
    });
    assert!(memory.is_private());
}

/// The kernel's stores on behalf of a thread wait as its own do, where that is allowed.
#[test]
fn system_calls_store_too() {
    if !is_allowed(Means::Everyone) {
        return;
    }
    let memory = Memory::new(2);
    let source = Memfd::new(PAGE, PAGE).expect("memfd");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let from = std::ptr::from_ref(&number).addr();
                source.write(&(from..from + 8), 0).expect("write");
                source.read(0, &(memory.0.start + 8..memory.0.start + 16)).expect("read");
                assert_eq!(word(memory.0.start + 8).load(Ordering::Relaxed), number);
            }
        });
        let end = Stop(&stop);
        (0..500).for_each(|_| drop(memory.move_in(0..2).expect("in a memfd")));
        drop(end);
        reader.join().expect("no store was lost");
    });
}

#[test]
fn what_lies_inside_is_shared() {
    let memory = Memory::filled(8);
    let outer = memory.move_in(1..7).expect("outer");
    let same = memory.move_in(1..7).expect("same");
    let inner = memory.move_in(3..5).expect("inner");
    assert!(Arc::ptr_eq(&outer, &same) && Arc::ptr_eq(&outer, &inner));
    for overlap in [0..2, 6..8, 0..8] {
        assert_eq!(memory.move_in(overlap).err(), Some(WhyNot::NotPlainMemory));
    }
    let adjacent = memory.move_in(7..8).expect("adjacent");
    assert!(!Arc::ptr_eq(&outer, &adjacent));
    drop((outer, same));
    assert!(!memory.is_private() && memory.holds(3));
    drop((inner, adjacent));
    assert!(memory.is_private() && memory.holds(3));
    drop(memory.move_in(0..8).expect("all of it, in several mappings by now"));
    assert!(memory.is_private() && memory.holds(3));
}

#[test]
fn many_threads_register_the_same() {
    let memory = Memory::filled(6);
    thread::scope(|scope| {
        for pages in [0..6, 0..6, 1..5, 2..3] {
            let memory = &memory;
            scope.spawn(move || {
                for _ in 0..300 {
                    match memory.move_in(pages.clone()) {
                        Ok(backed) => assert!(backed.start() <= memory.page(pages.start)),
                        Err(why) => {
                            assert_eq!(why, WhyNot::NotPlainMemory, "some other part was moved into a memfd")
                        }
                    }
                }
            });
        }
    });
    assert!(memory.is_private() && memory.holds(3));
}

#[test]
fn heap_memory_is_in_memfd() {
    let mut owned = vec![7u8; 1 << 20];
    let backed = MemfdPages::move_in(owned.as_ptr().addr(), owned.len()).expect("in a memfd");
    owned.iter_mut().step_by(PAGE).for_each(|byte| *byte += 1);
    drop(backed);
    assert!(owned.iter().step_by(PAGE).all(|byte| *byte == 8));
    owned.resize(8 << 20, 9);
    assert_eq!((owned[0], owned[1], owned[8 << 19]), (8, 7, 9));
}

#[test]
fn what_was_mapped_anew_is_left_alone() {
    let memory = Memory::filled(6);
    let backed = memory.move_in(0..6).expect("in a memfd");
    memory.map_anew(1..2, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    memory.unmap(3..4);
    word(memory.page(1)).store(77, Ordering::Relaxed);
    drop(backed);
    let found = vma::mappings(&memory.0).expect("maps");
    let plain: Vec<_> = (0..6)
        .map(|page| found.iter().find(|m| m.pages.contains(&memory.page(page))).map(Vma::is_plain))
        .collect();
    assert_eq!(plain, [Some(true), Some(false), Some(true), None, Some(true), Some(true)]);
    assert_eq!(word(memory.page(1)).load(Ordering::Relaxed), 77);
    for page in [0, 2, 4, 5] {
        assert_eq!(word(memory.page(page) + 8).load(Ordering::Relaxed), 3 * (page * PAGE / 8 + 1) as u64);
    }
}

#[test]
fn memory_mapped_anew_can_be_registered_anew() {
    for first_goes_first in [true, false] {
        let memory = Memory::filled(2);
        let first = memory.move_in(0..2).expect("first");
        memory.map_anew(0..2, PRIVATE);
        memory.fill(9);
        let second = memory.move_in(0..2).expect("second");
        assert!(!Arc::ptr_eq(&first, &second) && first.inode() != second.inode());
        assert!(Arc::ptr_eq(&second, &memory.move_in(0..1).expect("part of the second")));
        let order = if first_goes_first { [first, second] } else { [second, first] };
        for one in order {
            drop(one);
            assert!(memory.holds(9));
        }
        assert!(memory.is_private());
    }
}

#[test]
fn rights_changed_meanwhile_are_kept() {
    let memory = Memory::filled(3);
    let backed = memory.move_in(0..3).expect("in a memfd");
    // SAFETY: a page of this test, which nobody writes from here on.
    assert_eq!(unsafe { libc::mprotect(memory.page(1) as *mut _, PAGE, libc::PROT_READ) }, 0);
    drop(backed);
    assert!(memory.holds(3));
    let found = vma::mappings(&memory.0).expect("maps");
    let rights: Vec<_> = found.iter().map(|m| (m.readable, m.writable, m.shared, m.inode)).collect();
    assert_eq!(rights, [(true, true, false, 0), (true, false, false, 0), (true, true, false, 0)]);
}

#[test]
fn a_hole_is_filled_from_the_file() {
    let memory = Memory::filled(2);
    let file = Memfd::new(2 * PAGE, PAGE).expect("memfd");
    file.write(&memory.0, 0).expect("write");
    memory.unmap(0..2);
    assert!(!is_mapped(&memory.0));
    file.fill_hole(&memory.0, 0);
    assert!(memory.is_private() && memory.holds(3));
}

/// Whether a forked child says yes.
fn in_child(says: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child does nothing but what its caller wants and then ends, without unwinding into the test.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let yes = std::panic::catch_unwind(std::panic::AssertUnwindSafe(says)).unwrap_or(false);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!yes)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status == 0
}

#[test]
fn a_child_shares_what_is_in_memfd() {
    let memory = Memory::filled(2);
    let backed = memory.move_in(0..2).expect("in a memfd");
    let theirs = backed.clone();
    assert!(in_child(|| {
        let seen = memory.holds(3);
        memory.fill(4);
        drop((backed, theirs));
        // What it moves into memfds is its own.
        let own = Memory::filled(2);
        drop(own.move_in(0..2).expect("in a memfd by the child"));
        seen && memory.holds(4) && own.holds(3) && own.is_private()
    }));
    assert!(memory.holds(4));
}
