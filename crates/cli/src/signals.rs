//! Waits for a program and forwards the signals that are sent to us.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FORWARDED: [libc::c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// The signals above and `SIGCHLD`, blocked in this process so that [`Blocked::wait`] can take them one by one.
/// Blocking them before the child exists means that none is lost.
pub(crate) struct Blocked {
    taken: libc::sigset_t,
    before: libc::sigset_t,
}

impl Blocked {
    /// Blocks the signals.
    pub(crate) fn new() -> Blocked {
        let mut taken = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are local, and the first is made a set by `sigemptyset` before anything reads it;
        // `pthread_sigmask` fills the second.
        unsafe {
            libc::sigemptyset(taken.as_mut_ptr());
            for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(taken.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, taken.as_ptr(), before.as_mut_ptr());
            Blocked { taken: taken.assume_init(), before: before.assume_init() }
        }
    }

    /// Restores the original signal mask for a command: a child inherits ours.
    pub(crate) fn release_in(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: runs between fork and exec and makes one system call on a set it owns.
        unsafe {
            command.pre_exec(move || {
                match libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) {
                    0 => Ok(()),
                    code => Err(io::Error::from_raw_os_error(code)),
                }
            });
        }
    }

    /// Runs `what` with the original signal mask: a signal then has its default effect.
    pub(crate) fn released<T>(&self, what: impl FnOnce() -> T) -> T {
        let set = |mask: &libc::sigset_t| {
            // SAFETY: the mask was filled in `new`; the null pointer requests no old mask.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
        };
        set(&self.before);
        let result = what();
        // SAFETY: the set was filled in `new`; the null pointer requests no old mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &self.taken, std::ptr::null_mut()) };
        result
    }

    /// Waits for the child to end.
    pub(crate) fn wait(self, mut child: Child) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            // A signal of the terminal (Ctrl-C) went to the whole foreground group, including the child. Only a
            // signal that a process sent to us alone must be forwarded.
            if let Some(ReceivedSignal { signal, by_process: true }) = self.next(FOREVER) {
                // SAFETY: the child has not been waited for, so its id still names it.
                unsafe { libc::kill(child.id() as libc::pid_t, signal) };
            }
        }
    }

    /// Waits for the next signal to forward; returns `None` when a child changed, or after `timeout`.
    pub(crate) fn next(&self, timeout: Duration) -> Option<ReceivedSignal> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let limit = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: the set was filled in `new`, the limit is ours, and the kernel fills `info`.
        let signal = unsafe { libc::sigtimedwait(&self.taken, info.as_mut_ptr(), &limit) };
        // SAFETY: all-zero is a valid `siginfo_t`, whether or not the kernel filled it.
        let info = unsafe { info.assume_init() };
        (signal > 0 && signal != libc::SIGCHLD)
            .then_some(ReceivedSignal { signal, by_process: info.si_code <= 0 })
    }
}

/// Takes the terminal of standard input back from a program in another PID namespace. A shell there makes itself the
/// foreground process group. It cannot restore the previous group, which has no ID in its namespace.
pub(crate) fn reclaim_terminal() {
    // The kernel stops a background process that calls tcsetpgrp, unless it ignores SIGTTOU.
    // SAFETY: ignores a signal for the time of one call, and then restores what was set before.
    let before = unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
    // SAFETY: only returns a number. It is 0 if the group is outside of the PID namespace of this process, which cannot name it then.
    if let Some(group) = rustix::process::Pid::from_raw(unsafe { libc::getpgrp() }) {
        // Fails if standard input is no terminal; there is nothing to take back then.
        let _ = rustix::termios::tcsetpgrp(io::stdin(), group);
    }
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGTTOU, before) };
}

/// Makes SIGINT, SIGTERM and SIGHUP only set the returned flag, so that the program can restore the terminal before it ends.
pub(crate) fn note_end() -> &'static AtomicBool {
    static ENDED: AtomicBool = AtomicBool::new(false);
    extern "C" fn note(_signal: libc::c_int) {
        ENDED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which a signal handler may do.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
    &ENDED
}

/// Timeout of a wait that only a signal should end.
const FOREVER: Duration = Duration::from_secs(3600);

/// A signal that was sent to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceivedSignal {
    /// Its number.
    pub(crate) signal: libc::c_int,
    /// A process sent it to us alone. Otherwise the terminal sent it to the whole foreground group.
    pub(crate) by_process: bool,
}
