//! Reports memory that a program unmaps while it is registered. Hardware has pinned such memory and continues; here the next access raises
//! SIGSEGV, and the log explains the reason. The same handler handles writes to pages that `in_flight` protects.
//!
//! The handler is installed only with `FERROCE_LOG`, in strict mode, and with `Config::watch`. It does not allocate. It passes all other
//! faults to the previous handler, so programs that handle SIGSEGV themselves still do.

#![expect(unsafe_code, reason = "a signal handler, which reads what the kernel says")]

use super::in_flight::{self, Fault};
use super::protected;
use ferroce_os::lock::{Mutex, lock_within};
use ferroce_os::log;
use ferroce_os::signal::{Earlier, keep_errno};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Once, OnceLock};
use std::time::Duration;

/// `si_code` of an access to an address without memory.
const SEGV_MAPERR: c_int = 1;
/// `si_code` of an access that the pages do not allow.
const SEGV_ACCERR: c_int = 2;

/// How long the handler waits for the list of regions while another thread registers memory.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// The regions, by first byte and a serial number, because they may overlap.
struct Regions {
    /// Length and lkey of each.
    known: BTreeMap<(usize, u64), (usize, u32)>,
    next: u64,
}

impl Regions {
    const fn new() -> Regions {
        Regions { known: BTreeMap::new(), next: 0 }
    }

    /// Adds a region and returns its key.
    fn add(&mut self, base: usize, len: usize, lkey: u32) -> (usize, u64) {
        self.next += 1;
        let key = (base, self.next);
        self.known.insert(key, (len, lkey));
        key
    }

    /// The region that contains this address, if any: first byte, length, lkey.
    fn find(&self, address: usize) -> Option<(usize, usize, u32)> {
        let mut before = self.known.range(..=(address, u64::MAX));
        before
            .rfind(|((base, _), (len, _))| address - base < *len)
            .map(|((base, _), (len, lkey))| (*base, *len, *lkey))
    }
}

static REGIONS: Mutex<Regions> = Mutex::new(Regions::new());
static EARLIER: OnceLock<Earlier> = OnceLock::new();

/// The entry of a region whose memory the program owns. Dropping this removes it.
pub(crate) struct Unpinned((usize, u64));

impl Unpinned {
    /// Installs the handler for SIGSEGV with the first entry. `None` if neither the log nor strict mode is on.
    pub(crate) fn new(base: usize, len: usize, lkey: u32, is_strict: bool) -> Option<Unpinned> {
        if !is_strict && !log::is_on() {
            return None;
        }
        install();
        Some(Unpinned(REGIONS.lock().add(base, len, lkey)))
    }

    /// The region has another key now.
    pub(crate) fn set_lkey(&self, lkey: u32) {
        if let Some((_, known)) = REGIONS.lock().known.get_mut(&self.0) {
            *known = lkey;
        }
    }
}

impl Drop for Unpinned {
    fn drop(&mut self) {
        REGIONS.lock().known.remove(&self.0);
    }
}

/// Installs the handler, once.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install_handler);
}

/// Whether the handler still gets the signal. A program may have installed its own handler later.
pub(super) fn is_installed() -> bool {
    Earlier::is_handled_by(libc::SIGSEGV, handler)
}

fn install_handler() {
    extern "C" fn before_fork() {
        std::mem::forget(REGIONS.lock());
        in_flight::before_fork();
    }
    extern "C" fn in_parent() {
        // SAFETY: `before_fork` locked both in this thread and forgot the guards.
        unsafe {
            in_flight::after_fork(false);
            REGIONS.force_unlock();
        }
    }
    extern "C" fn in_child() {
        // SAFETY: the parent's `before_fork` locked both in the thread of which this one is the copy.
        unsafe {
            in_flight::after_fork(true);
            REGIONS.force_unlock();
        }
        // The regions belong to the parent. Leak the map: the allocator may not be usable yet.
        std::mem::forget(std::mem::take(&mut REGIONS.lock().known));
    }
    // SAFETY: the handlers lock and unlock both locks. Otherwise a child that is forked while another thread holds one would deadlock.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    // If the installation fails, a fault ends the program as it does without ferroce.
    if let Ok(earlier) = Earlier::extend(libc::SIGSEGV, handler) {
        let _ = EARLIER.set(earlier);
    }
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    keep_errno(|| {
        // SAFETY: the kernel passes a structure that lives as long as the handler runs. A signal that a process sent has no address; its
        // code is not positive, so the address is not used.
        let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
        if code == SEGV_MAPERR
            && let Some((base, len, lkey)) =
                lock_within(&REGIONS, MAX_WAIT).and_then(|regions| regions.find(address))
        {
            log::fatal(format_args!(
                "address {address:#x} belongs to the memory region of {len} bytes at {base:#x} (lkey {lkey:#x}), which is registered, but the \
                 program has freed or unmapped it. A NIC has pinned such memory and accesses pages that no process maps; here the access raises \
                 SIGSEGV. Deregister memory before you free it"
            ));
        }
        if code == SEGV_ACCERR && is_allowed_now(address) {
            return;
        }
        if let Some(earlier) = EARLIER.get() {
            // SAFETY: the arguments of this handler.
            unsafe { earlier.pass_on(signal, info, context) };
        }
    });
}

/// Whether to retry a forbidden access, because `in_flight` protected the page. Another thread may have removed the protection after the
/// fault, so an access to any other page is retried once after each removal.
fn is_allowed_now(address: usize) -> bool {
    thread_local! {
        static TRIED_AGAIN: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
    }
    match in_flight::on_fault(address) {
        Fault::InFlight => true,
        Fault::Other => {
            let attempt = (address, protected::removals());
            TRIED_AGAIN.replace(attempt) != attempt
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_of_overlapping_regions_is_found_until_it_is_gone() {
        let mut regions = Regions::new();
        let outer = regions.add(0x1000, 0x1000, 1);
        let inner = regions.add(0x1800, 0x10, 2);
        assert_eq!(regions.find(0x1808), Some((0x1800, 0x10, 2)));
        assert_eq!(regions.find(0x1810), Some((0x1000, 0x1000, 1)));
        assert_eq!((regions.find(0xfff), regions.find(0x2000)), (None, None));
        regions.known.remove(&inner);
        assert_eq!(regions.find(0x1808), Some((0x1000, 0x1000, 1)));
        regions.known.remove(&outer);
        assert_eq!(regions.find(0x1000), None);
    }
}
