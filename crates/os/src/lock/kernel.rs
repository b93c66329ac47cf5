//! What the lock asks of the kernel: to sleep on a word (`futex`), and a barrier on all threads (`membarrier`).

use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

/// Sleeps while the word has this value, and no longer than so long.
pub(super) fn sleep_while(word: &AtomicU32, value: u32, most_ns: i64) {
    let most = libc::timespec { tv_sec: 0, tv_nsec: most_ns };
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time are readable; the call changes neither. Waking for no reason is allowed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, &raw const most) };
}

/// Wakes one of those who sleep on the word.
#[cold]
pub(super) fn wake_one(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is only an address to the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, 1) };
}

/// Orders what is before it and behind it, as far as [`barrier_everywhere`] runs in between.
#[inline(always)]
pub(super) fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// Has every thread of the process pass a memory barrier. False if the kernel does not do that.
pub(super) fn barrier_everywhere() -> bool {
    // A process that has not announced it is refused.
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        || (announce() && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
}

/// Announces to the kernel that locks may have to be waited for. In a process of several threads that takes it a grace
/// period, 10 to 40 ms on a busy machine. So it is done before there is anything to hold up: a thread that found the lock of a
/// queue pair taken for the first time would otherwise stop the whole device for so long.
pub fn announce() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a call without memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
