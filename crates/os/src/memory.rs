//! The length of a page, how much memory the process may lock, and prefetching of cache lines.

#![expect(unsafe_code, reason = "asks the system for numbers; one instruction that is a hint")]

use std::sync::OnceLock;

/// Bytes of an ordinary page.
pub fn page_len() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    // SAFETY: only returns a number.
    *PAGE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize)
}

/// The soft limit of locked memory (`RLIMIT_MEMLOCK`) in bytes; `None` if there is none.
pub fn lock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: fills it.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Prefetches the cache line of an address for writing. A hint only: it reads and writes nothing, and any address is allowed.
#[inline(always)]
pub fn prefetch_for_write(at: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction changes no memory and no register, and never faults.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
