//! Strict mode: the memory that a NIC would pin. Linux counts it per process against RLIMIT_MEMLOCK, once per registration, and does not
//! limit a thread with CAP_IPC_LOCK.

use crate::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
/// Number of the capability.
const CAP_IPC_LOCK: u32 = 14;

/// Pages of all registrations of this process.
static LOCKED: AtomicU64 = AtomicU64::new(0);

/// The pages of one registration; they count until this is dropped.
pub(crate) struct LockedPages(u64);

impl LockedPages {
    /// Counts the pages of these bytes, or refuses.
    pub(crate) fn take(addr: usize, len: usize) -> Result<LockedPages, Error> {
        let pages = match len {
            0 => 0,
            _ => (addr.saturating_add(len - 1) / PAGE - addr / PAGE + 1) as u64,
        };
        let locked = LOCKED.fetch_add(pages, Ordering::Relaxed);
        // From here on, so that a refusal gives them back.
        let taken = LockedPages(pages);
        let kib = |pages: u64| pages * (PAGE as u64 / 1024);
        match limit_bytes() {
            Some(limit) if kib(locked + pages) > limit / 1024 && !may_exceed_limit() => {
                Err(Error::LockedMemory { kib: kib(pages), locked_kib: kib(locked), limit_kib: limit / 1024 })
            }
            _ => Ok(taken),
        }
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        LOCKED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The soft limit; `None` if there is none, or /proc cannot be read.
fn limit_bytes() -> Option<u64> {
    soft_limit(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

fn soft_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Whether this thread has CAP_IPC_LOCK in the first user namespace, where the kernel looks for it.
fn may_exceed_limit() -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    has_capability(&read("/proc/thread-self/status")) && is_first_namespace(&read("/proc/self/uid_map"))
}

fn has_capability(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 != 0)
}

/// The map of the first user namespace is the identity of all numbers.
fn is_first_namespace(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_understood() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max locked memory         65536                unlimited            bytes     \n";
        assert_eq!(soft_limit(limits), Some(65536));
        assert_eq!(soft_limit(&limits.replace("65536", "unlimited")), None);
        assert!(has_capability("Name:\tx\nCapEff:\t0000000000004000\n"));
        assert!(!has_capability("Name:\tx\nCapEff:\t000001ffffffbfff\n"));
        assert!(is_first_namespace("         0          0 4294967295\n"));
        assert!(!is_first_namespace("         0       1000          1\n"));
    }

    #[test]
    fn a_page_counts_as_a_whole_and_until_it_is_dropped() {
        let locked = || LOCKED.load(Ordering::Relaxed);
        let before = locked();
        let pages = LockedPages::take(PAGE - 1, 2).expect("two pages");
        assert_eq!((pages.0, locked()), (2, before + 2));
        drop(pages);
        assert_eq!(locked(), before);
    }
}
