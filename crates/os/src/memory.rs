//! The length of a page, how much memory the process may lock, prefetching of cache lines, and short copies.

#![expect(
    unsafe_code,
    reason = "asks the system for numbers; one instruction that is a hint; copies through pointers"
)]

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

/// Copies `len` bytes, which may overlap. Up to 64 bytes are copied inline, which takes less time than a call of `memmove`.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    /// Copies the first and the last bytes, which overlap if `len` is shorter than both. Reads both before it writes.
    #[inline(always)]
    unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, len: usize) {
        let back = len - size_of::<T>();
        // SAFETY: inside of the bytes that the caller guarantees, because `len` is at least the size of `T`, an array of bytes.
        unsafe {
            let (first, last) =
                (from.cast::<T>().read_unaligned(), from.add(back).cast::<T>().read_unaligned());
            to.cast::<T>().write_unaligned(first);
            to.add(back).cast::<T>().write_unaligned(last);
        }
    }
    // SAFETY: as above.
    unsafe {
        match len {
            // Most short payloads and headers.
            8..=16 => ends::<[u8; 8]>(from, to, len),
            17..=32 => ends::<[u8; 16]>(from, to, len),
            33..=64 => ends::<[u8; 32]>(from, to, len),
            4..=7 => ends::<[u8; 4]>(from, to, len),
            2..=3 => ends::<[u8; 2]>(from, to, len),
            1 => to.write(from.read()),
            0 => {}
            _ => std::ptr::copy(from, to, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_short_copy_is_right_also_where_it_overlaps() {
        for (len, from, to) in
            (0..80).flat_map(|len| [(len, 0, 100), (len, 3, 0), (len, 0, 5), (len, 40, 41)])
        {
            let mut bytes: Vec<u8> = (0..200).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + len, to);
            let start = bytes.as_mut_ptr();
            // SAFETY: inside of the vector.
            unsafe { copy(start.add(from), start.add(to), len) };
            assert_eq!(bytes, expected, "{len} bytes from {from} to {to}");
        }
    }
}
