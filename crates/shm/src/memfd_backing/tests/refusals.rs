//! What is not in a memfd, and that it is then as it was before.

use super::*;
use crate::held_fd::leave_rest_to_program;
use crate::write_protect::own;

#[test]
fn other_memory_is_refused() {
    let refused = |memory: &Memory| memory.move_in(0..4).err() == Some(WhyNot::NotPlainMemory);
    let shared = Memory::filled(4);
    shared.map_anew(1..2, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    assert!(refused(&shared));
    let gap = Memory::filled(4);
    gap.unmap(1..2);
    assert!(refused(&gap));
    let end = Memory::filled(4);
    end.unmap(3..4);
    assert!(refused(&end));
    let rights = Memory::filled(4);
    for other in [libc::PROT_NONE, libc::PROT_READ, RW | libc::PROT_EXEC] {
        // SAFETY: a page of this test.
        assert_eq!(unsafe { libc::mprotect(rights.page(2) as *mut _, PAGE, other) }, 0);
        assert!(refused(&rights));
    }
    let of_file = Memory::filled(4);
    let file = Memfd::new(PAGE, PAGE).expect("memfd");
    map(of_file.page(0), PAGE, RW, libc::MAP_PRIVATE | libc::MAP_FIXED, file.descriptor.raw(), 0)
        .expect("file");
    assert!(refused(&of_file));
    let stack = [0u8; 3 * PAGE];
    assert_eq!(MemfdPages::move_in(stack.as_ptr().addr(), stack.len()).err(), Some(WhyNot::NotPlainMemory));
}

#[test]
fn odd_sizes_are_refused() {
    let memory = Memory::new(2);
    let (at, none) = (memory.0.start, Some(WhyNot::NoWholePage));
    for (addr, len) in
        [(at, 0), (at, PAGE - 1), (at + 1, 2 * PAGE - 2), (usize::MAX - 5, 3), (at, usize::MAX)]
    {
        assert_eq!(MemfdPages::move_in(addr, len).err(), none);
    }
}

#[test]
fn memory_that_the_program_watches_is_left_to_it() {
    let memory = Memory::filled(2);
    let watch = WriteProtect::begin(&memory.0, Kind::Anonymous, Means::Everyone).expect("write protection");
    if watch.means() == Means::Nothing {
        println!("SKIPPED: userfaultfd is not allowed here");
        return;
    }
    for _ in 0..2 {
        assert_eq!(memory.move_in(0..2).err(), Some(WhyNot::Refused(libc::EBUSY)));
    }
    drop(watch);
    memory.move_in(0..2).expect("in a memfd");
}

#[test]
fn descriptors_are_left_to_the_program() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills `limit`.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }).expect("limit");
    let low = Memfd::new(PAGE, PAGE).expect("memfd");
    // SAFETY: a copy with a number in the upper half.
    let high = own(unsafe { libc::fcntl(low.descriptor.raw(), libc::F_DUPFD_CLOEXEC, limit.rlim_cur / 2) });
    assert_eq!(leave_rest_to_program(&high.expect("descriptor"), PAGE), Err(libc::EMFILE));
}

/// The kernel refuses to map over sealed memory, which is found out only when everything else is done.
#[test]
fn a_late_refusal_leaves_everything_as_it_was() {
    let memory = Memory::new(4);
    // SAFETY: a page of this test, which stays from here on; `mseal` is 462 on every architecture, Linux 6.10.
    if let Err(errno) = check(unsafe { libc::syscall(462, memory.page(2), PAGE, 0) as libc::c_int }) {
        println!("SKIPPED: memory cannot be sealed here (errno {errno}); that came with Linux 6.10");
        return;
    }
    for means in ALL_MEANS {
        memory.fill(0);
        hammer(&memory, || {
            for _ in 0..100 {
                let refused = MemfdPages::move_in_with(memory.0.start, memory.0.len(), means);
                assert_eq!(refused.err(), Some(WhyNot::Refused(libc::EPERM)));
            }
        });
        assert!(memory.is_private());
    }
}

#[test]
fn limits_of_the_process_are_kept() {
    let limit = |what, soft| {
        // SAFETY: lowers a limit of the child that calls it.
        check(unsafe { libc::setrlimit(what, &libc::rlimit { rlim_cur: soft, rlim_max: soft }) })
            .expect("limit");
    };
    let memory = Memory::filled(2);
    assert!(in_child(|| {
        limit(libc::RLIMIT_FSIZE, PAGE as u64);
        memory.move_in(0..2).err() == Some(WhyNot::Refused(libc::EFBIG)) && memory.holds(3)
    }));
    assert!(in_child(|| {
        limit(libc::RLIMIT_NOFILE, 0);
        memory.move_in(0..2).err() == Some(WhyNot::Refused(libc::EMFILE)) && memory.holds(3)
    }));
    assert!(in_child(|| {
        let backed = memory.move_in(0..2).expect("in a memfd");
        limit(libc::RLIMIT_NOFILE, 0);
        drop(backed);
        memory.holds(3)
    }));
    assert!(memory.is_private() && memory.holds(3));
}
