//! Signal handlers that share a signal with the program: each calls the earlier handler for signals that are not meant for it.

#![expect(unsafe_code, reason = "installs signal handlers and calls those of others")]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// A handler installed with `SA_SIGINFO`.
pub type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The action that a signal had before a handler was installed.
pub struct Earlier(libc::sigaction);

impl Earlier {
    /// Installs a handler with these flags and returns the earlier action. `SA_SIGINFO` is added.
    pub fn replace(signal: c_int, handler: Handler, flags: c_int) -> io::Result<Earlier> {
        // SAFETY: all zeros is a valid action: no flags, and an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags | libc::SA_SIGINFO;
        exchange(signal, &raw const action)
    }

    /// Installs a handler that runs with the flags and the mask of the earlier one, so that it can call the earlier one. If there is none,
    /// it runs on the alternate stack, if the thread has one: the signal may report a stack overflow.
    pub fn extend(signal: c_int, handler: Handler) -> io::Result<Earlier> {
        let Earlier(mut action) = exchange(signal, ptr::null())?;
        if !is_function(&action) {
            action.sa_flags = libc::SA_ONSTACK;
        }
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = action.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
        exchange(signal, &raw const action)
    }

    /// Whether this handler is the current one of the signal.
    pub fn is_handled_by(signal: c_int, handler: Handler) -> bool {
        exchange(signal, ptr::null())
            .is_ok_and(|Earlier(now)| now.sa_sigaction == handler as *const () as usize)
    }

    /// Executes the action that the signal had without our handler. The default action is restored instead, and takes effect when our handler
    /// returns: a fault then occurs again, with its own code and address, and a signal that a process sent is sent again.
    ///
    /// # Safety
    /// The caller is a handler of this signal, and passes its arguments.
    pub unsafe fn pass_on(&self, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        let Earlier(before) = self;
        // SAFETY: the kernel passes a valid structure.
        let was_sent = unsafe { (*info).si_code } <= 0;
        if !is_function(before) {
            // The kernel does not ignore a fault.
            if before.sa_sigaction == libc::SIG_IGN && was_sent {
                return;
            }
            // SAFETY: the default action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            if was_sent {
                // SAFETY: sends a signal to this thread.
                unsafe { libc::raise(signal) };
            }
        } else if before.sa_flags & libc::SA_SIGINFO != 0 {
            // SAFETY: the flags of the installed handler declare this signature.
            let next: Handler = unsafe { std::mem::transmute(before.sa_sigaction) };
            next(signal, info, context);
        } else {
            // SAFETY: as above.
            let next: extern "C" fn(c_int) = unsafe { std::mem::transmute(before.sa_sigaction) };
            next(signal);
        }
    }
}

fn is_function(action: &libc::sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
}

fn exchange(signal: c_int, action: *const libc::sigaction) -> io::Result<Earlier> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: null or a whole action of a caller above, and a structure to fill.
    match unsafe { libc::sigaction(signal, action, before.as_mut_ptr()) } {
        // SAFETY: the call has succeeded, so it has filled the structure.
        0 => Ok(Earlier(unsafe { before.assume_init() })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs a handler and leaves `errno` as the interrupted code had it.
pub fn keep_errno(handle: impl FnOnce()) {
    // SAFETY: the thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    handle();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
