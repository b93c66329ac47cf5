//! The signal handler of the process for the addresses of the heap. An access that the mapping forbids raises
//! SIGSEGV; one that userfaultfd intercepts raises SIGBUS.
//!
//! The signal is synchronous: the faulting thread runs the program's code. It holds neither the allocator's lock nor one of ours,
//! because this crate never accesses the program's view of the heap with a lock held. So the handler may call any function.

#![expect(unsafe_code, reason = "installs a signal handler, which reads what the kernel passes")]

use crate::error::Error;
use ferroce_os::signal::{Earlier, keep_errno};
use parking_lot::Mutex;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The kind of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    Write,
    /// The processor does not report it.
    #[cfg_attr(target_arch = "x86_64", expect(dead_code, reason = "this processor does"))]
    Unknown,
}

/// Handles a fault. Returns whether the thread may retry the access.
type Answer = Box<dyn Fn(usize, Touch) -> bool + Send + Sync>;

struct Range {
    start: usize,
    len: usize,
    answer: Answer,
}

static RANGE: AtomicPtr<Range> = AtomicPtr::new(ptr::null_mut());
/// The signals that are handled. [`BEFORE`] has their earlier handlers.
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];
static BEFORE: [AtomicPtr<Earlier>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
static INSTALL: Mutex<()> = Mutex::new(());

/// Handles the faults in a range while it lives.
pub(crate) struct Registration(());

impl Registration {
    pub(crate) fn new(start: usize, len: usize, answer: Answer) -> Result<Self, Error> {
        let _installing = INSTALL.lock();
        if !RANGE.load(Ordering::Acquire).is_null() {
            return Err(Error::Transport("this process is in a job already".into()));
        }
        for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
            if before.load(Ordering::Acquire).is_null() {
                before.store(install(signal)?, Ordering::Release);
            }
        }
        // Last, so that nothing is left of a call that fails. Never freed: a thread may be inside the handler when a job ends.
        RANGE.store(Box::into_raw(Box::new(Range { start, len, answer })), Ordering::Release);
        Ok(Self(()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        RANGE.store(ptr::null_mut(), Ordering::Release);
    }
}

fn install(signal: i32) -> Result<*mut Earlier, Error> {
    // On the thread's own stack: alternate stacks are too small for a fetch.
    let earlier = Earlier::replace(signal, handler, libc::SA_NODEFER | libc::SA_RESTART);
    Ok(Box::into_raw(Box::new(earlier.map_err(|source| Error::System { call: "sigaction", source })?)))
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    keep_errno(|| {
        // SAFETY: the kernel passes a valid structure, and both signals have an address.
        let at = unsafe { (*info).si_addr() } as usize;
        // SAFETY: a range is never freed.
        let range = unsafe { RANGE.load(Ordering::Acquire).as_ref() };
        let ours = range.filter(|range| at.checked_sub(range.start).is_some_and(|offset| offset < range.len));
        if ours.is_some_and(|range| (range.answer)(at - range.start, touch(context))) {
            return;
        }
        let of_signal = SIGNALS.iter().position(|ours| *ours == signal).unwrap_or(0);
        // SAFETY: never freed once stored.
        if let Some(earlier) = unsafe { BEFORE[of_signal].load(Ordering::Acquire).as_ref() } {
            // SAFETY: the arguments of this handler.
            unsafe { earlier.pass_on(signal, info, context) };
        }
    });
}

#[cfg(target_arch = "x86_64")]
fn touch(context: *mut libc::c_void) -> Touch {
    /// Bit of the page-fault error code: it was a write.
    const WRITE: i64 = 2;
    // SAFETY: the kernel passes the registers of the interrupted thread.
    let error = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    if error & WRITE != 0 { Touch::Write } else { Touch::Read }
}

#[cfg(not(target_arch = "x86_64"))]
fn touch(_context: *mut libc::c_void) -> Touch {
    Touch::Unknown
}
