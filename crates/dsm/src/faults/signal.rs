//! The signal handler of the process for the addresses of the heap. An access that the mapping forbids raises
//! SIGSEGV; one that userfaultfd intercepts raises SIGBUS.
//!
//! The signal is synchronous: the faulting thread runs the program's code, and holds neither the allocator's lock nor
//! one of ours, since we never access the program's view of the heap with a lock held. The handler may therefore call
//! any function.

#![expect(unsafe_code, reason = "installs a signal handler, which reads what the kernel says")]

use crate::error::Error;
use parking_lot::Mutex;
use std::mem::MaybeUninit;
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
/// Our signals, with the handlers that were installed before.
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];
static BEFORE: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
static INSTALL: Mutex<()> = Mutex::new(());

/// Handles the faults in a range while it lives.
pub(crate) struct Registration(());

impl Registration {
    pub(crate) fn new(start: usize, len: usize, answer: Answer) -> Result<Self, Error> {
        let _turn = INSTALL.lock();
        if !RANGE.load(Ordering::Acquire).is_null() {
            return Err(Error::Transport("this process is in a job already".into()));
        }
        // Never freed: a thread may be inside the handler when a job ends.
        RANGE.store(Box::into_raw(Box::new(Range { start, len, answer })), Ordering::Release);
        for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
            if before.load(Ordering::Acquire).is_null() {
                before.store(install(signal)?, Ordering::Release);
            }
        }
        Ok(Self(()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        RANGE.store(ptr::null_mut(), Ordering::Release);
    }
}

fn install(signal: i32) -> Result<*mut libc::sigaction, Error> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a structure of numbers, for which zeros are a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // On the thread's own stack: alternate stacks are too small for a fetch.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: both structures are ours; the handler has the signature that SA_SIGINFO asks for.
    if unsafe { libc::sigaction(signal, &raw const action, before.as_mut_ptr()) } != 0 {
        return Err(Error::system("sigaction"));
    }
    // SAFETY: sigaction succeeded, so it has filled the structure.
    Ok(Box::into_raw(Box::new(unsafe { before.assume_init() })))
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the thread's own errno, which the code that was interrupted must find unchanged.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid structure, and both signals have an address.
    let at = unsafe { (*info).si_addr() } as usize;
    // SAFETY: a range is never freed.
    let range = unsafe { RANGE.load(Ordering::Acquire).as_ref() };
    let ours = range.filter(|range| at.checked_sub(range.start).is_some_and(|offset| offset < range.len));
    let answered = ours.is_some_and(|range| (range.answer)(at - range.start, touch(context)));
    if !answered {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
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

/// Calls the previous handler, or restores the default action.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let at = SIGNALS.iter().position(|ours| *ours == signal).unwrap_or(0);
    // SAFETY: never freed once stored.
    let before = unsafe { BEFORE[at].load(Ordering::Acquire).as_ref() };
    let Some(before) = before.filter(|b| b.sa_sigaction != libc::SIG_DFL && b.sa_sigaction != libc::SIG_IGN)
    else {
        // SAFETY: the default action; the access faults again when we return, and ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    };
    if before.sa_flags & libc::SA_SIGINFO != 0 {
        type Full = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: the flags of the installed handler declare this signature.
        let next: Full = unsafe { std::mem::transmute(before.sa_sigaction) };
        next(signal, info, context);
    } else {
        // SAFETY: as above.
        let next: extern "C" fn(i32) = unsafe { std::mem::transmute(before.sa_sigaction) };
        next(signal);
    }
}
