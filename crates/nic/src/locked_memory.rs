//! Strict mode: the memory that a NIC would pin. Linux counts it per process against RLIMIT_MEMLOCK, once per registration, and does not
//! limit a thread with CAP_IPC_LOCK.

use crate::error::Error;
use ferroce_os::fork::{Generation, in_every_child};
use ferroce_os::memory::{lock_limit, page_len};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of the capability.
const CAP_IPC_LOCK: u32 = 14;

/// Pages of all registrations of this process. A forked child has pinned nothing.
static LOCKED: AtomicU64 = AtomicU64::new(0);

/// The pages of one registration. They count until this is dropped.
pub(crate) struct LockedPages {
    pages: u64,
    born: Generation,
}

impl LockedPages {
    /// Counts the pages of these bytes, or refuses.
    pub(crate) fn take(addr: usize, len: usize) -> Result<LockedPages, Error> {
        static HOOK: Once = Once::new();
        extern "C" fn reset() {
            LOCKED.store(0, Ordering::Relaxed);
        }
        HOOK.call_once(|| in_every_child(reset));
        let page = page_len();
        let pages = match len {
            0 => 0,
            _ => (addr.saturating_add(len - 1) / page - addr / page + 1) as u64,
        };
        let born = Generation::current();
        let locked = LOCKED.fetch_add(pages, Ordering::Relaxed);
        // Created before the check, so that a refusal releases them.
        let taken = LockedPages { pages, born };
        let kib = |pages: u64| pages * (page as u64 / 1024);
        match lock_limit() {
            Some(limit) if kib(locked + pages) > limit / 1024 && !may_exceed_limit() => {
                Err(Error::LockedMemory { kib: kib(pages), locked_kib: kib(locked), limit_kib: limit / 1024 })
            }
            _ => Ok(taken),
        }
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        // A child does not count the pages of its parent.
        if self.born.is_current() {
            LOCKED.fetch_sub(self.pages, Ordering::Relaxed);
        }
    }
}

/// Whether this thread has CAP_IPC_LOCK in the first user namespace, which is the one that the kernel checks.
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
    use crate::{Config, Nic, Strict};
    use ferroce_proto::verbs::Access;
    use std::ffi::c_int;

    #[test]
    fn proc_is_understood() {
        assert!(has_capability("Name:\tx\nCapEff:\t0000000000004000\n"));
        assert!(!has_capability("Name:\tx\nCapEff:\t000001ffffffbfff\n"));
        assert!(is_first_namespace("         0          0 4294967295\n"));
        assert!(!is_first_namespace("         0       1000          1\n"));
    }

    #[test]
    #[expect(unsafe_code, reason = "forks")]
    fn a_page_counts_as_a_whole_until_it_is_dropped_and_not_in_a_child() {
        let locked = || LOCKED.load(Ordering::Relaxed);
        let before = locked();
        let pages = LockedPages::take(page_len() - 1, 2).expect("two pages");
        assert_eq!((pages.pages, locked()), (2, before + 2));
        // SAFETY: the child uses atomics only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let at_first = locked();
            drop(pages);
            let is_reset = (at_first, locked()) == (0, 0);
            // SAFETY: ends the child.
            unsafe { libc::_exit(c_int::from(!is_reset)) };
        }
        let mut status = 0;
        // SAFETY: fills the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        drop(pages);
        assert_eq!(locked(), before);
        // In this test, because others may not count meanwhile.
        other_rights_are_not_charged(locked);
    }

    #[expect(unsafe_code, reason = "modifies a region")]
    fn other_rights_are_not_charged(locked: impl Fn() -> u64) {
        let addresses = Some(vec!["127.91.62.9".parse().unwrap()]);
        let strict = Some(Strict::AnyNic);
        let nic =
            Nic::open(Config::default().with(|c| (c.addresses, c.strict) = (addresses, strict))).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let memory = nic.alloc_device_memory(4096, 0).unwrap();
        let before = locked();
        let access = Access::LOCAL_WRITE | Access::ZERO_BASED;
        let mut region = pd.register_device_memory(&memory, 0, 4096, access).unwrap();
        // SAFETY: the memory stays.
        unsafe { region.modify(None, Some(access | Access::REMOTE_READ), None) }.unwrap();
        assert_eq!(locked(), before);
    }
}
