//! The system calls of the lock: sleeping on a word (`futex`), and a barrier on all threads (`membarrier`).

use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

/// Sleeps while the word has this value, for at most `most_ns`.
pub(super) fn sleep_while(word: &AtomicU32, value: u32, most_ns: i64) {
    let most = libc::timespec { tv_sec: 0, tv_nsec: most_ns };
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time are readable; the call changes neither. Waking for no reason is allowed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, &raw const most) };
}

/// Wakes one thread that sleeps on the word.
#[cold]
pub(super) fn wake_one(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is only an address to the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, 1) };
}

/// Orders the accesses before it and those after it with respect to a thread that calls [`barrier_everywhere`] in between.
#[inline(always)]
pub(super) fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// Executes a memory barrier on every thread of the process. Returns whether the kernel supports this.
pub(super) fn barrier_everywhere() -> bool {
    // The kernel refuses a process that has not announced this use.
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        || (announce() && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
}

/// Announces to the kernel that this process will use `membarrier`. In a process of several threads the call takes a grace period, 10 to
/// 40 ms on a busy machine. So a device calls it when it opens. Otherwise the first thread that waits for the lock of a queue pair would
/// stop the whole device for that time.
pub fn announce() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a call without memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
