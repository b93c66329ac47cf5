//! Threads of ferroce inside a program that does not expect them.
//!
//! The kernel delivers a signal of the process to any thread that does not block it. A program may block a signal in its own threads and
//! read it from a signalfd. The signal would end the process if a thread of ferroce received it. So these threads start with signals blocked.
//! The exception is a fault of the thread itself: if its signal is blocked, the kernel ends the process even if the program has a handler.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Signals that a thread causes itself.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that receives no signal of the process.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread inherits the mask of the one that starts it.
    let _blocked = Blocked::new();
    Builder::new().name(name.into()).spawn(work)
}

/// Requests short time slices for the calling thread. The scheduler then starts it earlier after a wake-up (Linux 6.12 and later; older
/// kernels ignore it). Where a spinning thread occupies every core, the thread would otherwise wait for the whole slice of that one.
pub fn shorten_slices() -> io::Result<()> {
    const SLICE_NS: u64 = 100_000;
    // SAFETY: all-zero is a valid `sched_attr`: the usual policy.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    attr.size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: reads the nice value of the calling thread, which stays as it is.
    attr.sched_nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    attr.sched_runtime = SLICE_NS;
    // SAFETY: the kernel reads `attr.size` bytes of `attr`; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Blocks signals of the calling thread, and restores its mask on drop.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn new() -> Self {
        let mut blocked = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are local; `sigfillset` initialises the first, `pthread_sigmask` the second.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(blocked.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
            Blocked(before.assume_init())
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that `pthread_sigmask` returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mask of the calling thread, as the kernel shows it.
    fn mask() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn slices_are_shortened_and_the_nice_value_stays() {
        let shortened = std::thread::spawn(|| {
            // SAFETY: changes the nice value of this thread only.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 7) }, 0);
            shorten_slices().unwrap();
            // SAFETY: reads it.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        });
        assert_eq!(shortened.join().unwrap(), 7);
    }

    #[test]
    fn a_thread_starts_with_signals_blocked_and_its_starter_keeps_its_own() {
        let before = mask();
        let inside = spawn("blocked", || (std::thread::current().name().map(str::to_owned), mask())).unwrap();
        let (name, blocked) = inside.join().unwrap();
        assert_eq!((name.as_deref(), mask()), (Some("blocked"), before));
        let is_blocked = |signal: libc::c_int| blocked & (1 << (signal - 1)) != 0;
        assert!((1..=31).all(|signal| {
            let is_exempt = FAULTS.contains(&signal) || [libc::SIGKILL, libc::SIGSTOP].contains(&signal);
            is_blocked(signal) != is_exempt
        }));
        assert!((libc::SIGRTMIN()..=libc::SIGRTMAX()).all(is_blocked), "{blocked:x}");
    }
}
