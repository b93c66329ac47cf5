//! Memory that moves in several pieces, and its holes.

use super::*;
use crate::held_fd::stat;
use std::os::fd::{AsFd, BorrowedFd};

/// Pages of a piece.
const PIECE: usize = (4 << 20) / PAGE;

/// Pages of the file that are there.
fn present(file: BorrowedFd<'_>) -> usize {
    stat(file.as_raw_fd()).expect("stat").st_blocks as usize * 512 / PAGE
}

fn file(backed: &MemfdPages) -> OwnedFd {
    // SAFETY: the descriptor is open as long as the pages are in the memfd.
    unsafe { BorrowedFd::borrow_raw(backed.fd()) }.try_clone_to_owned().expect("descriptor")
}

fn mappings_of(memory: &Memory) -> usize {
    vma::mappings(&memory.0).expect("maps").len()
}

#[test]
fn pieces_are_one_mapping_again() {
    for means in ALL_MEANS {
        let memory = Memory::filled(2 * PIECE + 3);
        let backed = MemfdPages::move_in_with(memory.0.start, memory.0.len(), means).expect("in a memfd");
        assert_eq!((backed.start(), backed.len(), backed.rest()), (memory.0.start, memory.0.len(), None));
        assert!(memory.holds(3) && second_mapping(&backed).holds(3) && mappings_of(&memory) == 1);
        memory.fill(5);
        drop(backed);
        assert!(memory.holds(5) && memory.is_private());
        assert_eq!(mappings_of(&memory), 1, "the kernel joined the pieces");
    }
}

#[test]
fn untouched_pages_stay_holes() {
    let memory = Memory::new(3 * PIECE);
    let stored = [0, 7, 8, PIECE - 1, 2 * PIECE];
    let holds = |factor| {
        let expected = |page| if stored.contains(&page) { page as u64 * factor + 1 } else { 0 };
        (0..3 * PIECE).all(|page| word(memory.page(page) + 4088).load(Ordering::Relaxed) == expected(page))
    };
    let store = |factor| {
        let at = |page| word(memory.page(page) + 4088);
        stored.iter().for_each(|page| at(*page).store(*page as u64 * factor + 1, Ordering::Relaxed));
    };
    store(3);
    let backed = memory.move_in(0..3 * PIECE).expect("in a memfd");
    let file = file(&backed);
    if backed.file.may_have_holes() {
        assert_eq!(present(file.as_fd()), stored.len());
    }
    assert!(holds(3));
    store(4);
    drop(backed);
    assert!(holds(4) && memory.is_private());
}

/// Where a page that is first used later may be refused, no page may be missing.
#[test]
fn a_file_that_may_not_have_holes_has_none() {
    let memory = Memory::new(PIECE);
    word(memory.page(3)).store(7, Ordering::Relaxed);
    let file = Memfd::filled(PIECE * PAGE).expect("memfd");
    let prepared = file.prepare(&memory.0, 0).expect("memory");
    file.take_in(&memory.0, 0, prepared, Means::Everyone).expect("in a memfd");
    assert_eq!(stat(file.descriptor.raw()).expect("stat").st_blocks as usize * 512, PIECE * PAGE);
    let stored = (0..5).map(|page| word(memory.page(page)).load(Ordering::Relaxed));
    assert_eq!(stored.collect::<Vec<_>>(), [0, 0, 0, 7, 0]);
}

#[test]
fn no_store_is_lost_between_pieces() {
    for means in [Means::Everyone, Means::Threads].into_iter().filter(|means| is_allowed(*means)) {
        let memory = Memory::new(2 * PIECE + 1);
        hammer(&memory, || {
            for _ in 0..20 {
                let backed = MemfdPages::move_in_with(memory.0.start, memory.0.len(), means);
                assert!(backed.expect("in a memfd").held_stores_back());
            }
        });
        assert!(memory.is_private());
    }
}

/// The pieces before the one that the kernel refuses are in the memfd, and come back.
#[test]
fn a_refusal_ends_the_file() {
    let memory = Memory::new(3 * PIECE);
    // SAFETY: a page of this test, which stays from here on; `mseal` is 462 on every architecture, Linux 6.10.
    let sealed = unsafe { libc::syscall(462, memory.page(2 * PIECE + 1), PAGE, 0) };
    if let Err(errno) = check(sealed as libc::c_int) {
        println!("SKIPPED: memory cannot be sealed here (errno {errno}); that came with Linux 6.10");
        return;
    }
    hammer(&memory, || {
        for _ in 0..5 {
            let backed = memory.move_in(0..3 * PIECE).expect("two pieces in a memfd");
            assert_eq!((backed.start(), backed.len()), (memory.0.start, 2 * PIECE * PAGE));
            assert_eq!(backed.rest(), Some(WhyNot::Refused(libc::EPERM)));
            assert!(Arc::ptr_eq(&backed, &memory.move_in(1..PIECE).expect("part of them")));
        }
    });
    assert!(memory.is_private());
}

#[test]
fn the_first_pages_of_very_large_memory_move() {
    let pages = MAX_BACKED / PAGE;
    let memory = Memory::new(pages + 2);
    let ends = [0, pages - 1, pages, pages + 1].map(|page| word(memory.page(page)));
    ends.iter().for_each(|word| word.store(7, Ordering::Relaxed));
    let backed = memory.move_in(0..pages + 2).expect("in a memfd");
    assert_eq!((backed.len(), backed.rest()), (MAX_BACKED, Some(WhyNot::TooLarge)));
    drop(backed);
    assert!(memory.is_private() && ends.iter().all(|word| word.load(Ordering::Relaxed) == 7));
}

#[test]
fn memory_that_came_back_is_not_in_the_file_any_more() {
    let memory = Memory::filled(PIECE + 1);
    let backed = memory.move_in(0..PIECE + 1).expect("in a memfd");
    let (file, forks, may_have_holes) = (file(&backed), backed.forks, backed.file.may_have_holes());
    assert_eq!(present(file.as_fd()), PIECE + 1);
    drop(backed);
    // Other tests of this process may fork.
    if may_have_holes && fork::count() == forks {
        assert_eq!(present(file.as_fd()), 0);
    }
    assert!(memory.holds(3));
}

#[test]
fn a_child_keeps_what_its_parent_deregisters() {
    let memory = Memory::filled(PIECE + 1);
    let backed = memory.move_in(0..PIECE + 1).expect("in a memfd");
    let gate = Memory::new(1);
    gate.map_anew(0..1, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let is_back = word(gate.0.start);
    thread::scope(|scope| {
        let child = scope.spawn(|| {
            in_child(|| {
                is_back.store(1, Ordering::SeqCst);
                while is_back.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                memory.holds(3)
            })
        });
        while is_back.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        drop(backed);
        memory.fill(9);
        is_back.store(2, Ordering::SeqCst);
        assert!(child.join().expect("child"), "the child has what was there at the fork");
    });
    assert!(memory.holds(9) && memory.is_private());
}

/// Daemons close descriptors that they did not open. Another file's bytes are not what the pages held.
#[test]
fn without_its_descriptor_memory_stays_in_the_file() {
    let memory = Memory::filled(PIECE + 1);
    let backed = memory.move_in(0..PIECE + 1).expect("in a memfd");
    let (number, other) = (backed.fd(), std::fs::File::open("/dev/zero").expect("file"));
    // SAFETY: the program takes the number for another file, as it may.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
    drop(backed);
    assert!(memory.holds(3) && !memory.is_private());
    // SAFETY: nobody owns the number now.
    assert_eq!(unsafe { libc::close(number) }, 0);
}
