//! Memory that a program unmaps while it is registered. Hardware has pinned it and goes on; here the next access raises SIGSEGV, and the
//! process ends with a sentence that says why.
//!
//! The handler does not allocate. It restores the handler that was there before and returns, so that the access faults again
//! and the signal has the effect that it would have had without us: also for programs that handle SIGSEGV themselves.

#![expect(unsafe_code, reason = "installs a signal handler, which reads what the kernel says")]

use ferroce_os::log;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// `si_code` of an access to an address without memory.
const SEGV_MAPERR: c_int = 1;

/// Attempts to read the table while another thread registers memory.
const TRIES: usize = 1000;

/// The regions, by first byte and a number: they may overlap.
struct Regions {
    /// Length and lkey of each.
    known: BTreeMap<(usize, u64), (usize, u32)>,
    next: u64,
}

static REGIONS: Mutex<Regions> = Mutex::new(Regions { known: BTreeMap::new(), next: 0 });
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A region whose memory the program owns; known until this is dropped.
pub(crate) struct Unpinned((usize, u64));

impl Unpinned {
    /// From the first one on, the process has a handler for SIGSEGV.
    pub(crate) fn new(base: usize, len: usize, lkey: u32) -> Unpinned {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
        regions.next += 1;
        let key = (base, regions.next);
        regions.known.insert(key, (len, lkey));
        Unpinned(key)
    }
}

impl Drop for Unpinned {
    fn drop(&mut self) {
        REGIONS.lock().unwrap_or_else(PoisonError::into_inner).known.remove(&self.0);
    }
}

/// The region of this address, if there is one: first byte, length, lkey.
fn find(address: usize) -> Option<(usize, usize, u32)> {
    for _ in 0..TRIES {
        let Ok(regions) = REGIONS.try_lock() else {
            std::hint::spin_loop();
            continue;
        };
        let mut before = regions.known.range(..=(address, u64::MAX));
        return before
            .rfind(|((base, _), (len, _))| address - base < *len)
            .map(|((base, _), (len, lkey))| (*base, *len, *lkey));
    }
    None
}

fn install() {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid action; the fields that matter follow.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both structures are ours; the handler has the signature that SA_SIGINFO demands.
    if unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, before.as_mut_ptr()) } == 0 {
        // SAFETY: the call has succeeded, so it has filled the structure.
        let _ = BEFORE.set(unsafe { before.assume_init() });
    }
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a structure that lives as long as the handler runs. A signal that a process sent has no address, and a
    // code that is not positive; then what is read is not used.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == SEGV_MAPERR
        && let Some((base, len, lkey)) = find(address)
    {
        log::fatal(format_args!(
            "address {address:#x} belongs to the memory region of {len} bytes at {base:#x} (lkey {lkey:#x}), which is registered, but the program has \
             freed or unmapped it. A NIC has pinned such memory and reads or writes what nobody sees; here the process ends with SIGSEGV. \
             Deregister memory before you free it"
        ));
    }
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: the action that was installed before ours.
    unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    // A fault occurs again when the handler returns, unless another thread has mapped memory there. A signal that a process sent does not.
    if code <= 0 || before.sa_sigaction == libc::SIG_DFL {
        // SAFETY: sends a signal to this thread; its action is no longer ours.
        unsafe { libc::raise(signal) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_of_overlapping_regions_is_found_until_it_is_gone() {
        // Addresses that no other test registers.
        let outer = Unpinned::new(0x10_0000, 0x1000, 1);
        let inner = Unpinned::new(0x10_0800, 0x10, 2);
        assert_eq!(find(0x10_0808), Some((0x10_0800, 0x10, 2)));
        assert_eq!(find(0x10_0810), Some((0x10_0000, 0x1000, 1)));
        assert_eq!(find(0x10_1000), None);
        drop(inner);
        assert_eq!(find(0x10_0808), Some((0x10_0000, 0x1000, 1)));
        drop(outer);
        assert_eq!(find(0x10_0000), None);
    }
}
