//! `fork()`: a child must not use its parent's NIC, and must be able to open one of its own.
//!
//! The child has the parent's memory but not its threads, and some thread of the parent may have held any lock. So
//! every call checks first whether it runs in the process that opened the device, and touches nothing otherwise.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn before() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

/// Runs `reset` in every child that is forked from now on. `reset` must not lock or allocate: at the moment of the fork, another thread of
/// the parent may have held the lock.
pub fn in_every_child(reset: extern "C" fn()) {
    // SAFETY: registers a function, which lives as long as the process.
    unsafe { libc::pthread_atfork(None, None, Some(reset)) };
}

/// How often this process has forked since the first call of [`Generation::current`]. Forks that bypass libc are not counted.
pub fn count() -> u32 {
    FORKS.load(Ordering::SeqCst)
}

/// Which process this is, counted in forks since the first device was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// The generation of the calling process.
    pub fn current() -> Self {
        static HOOK: Once = Once::new();
        // SAFETY: registers handlers that only bump an atomic, which is allowed in a forked child.
        HOOK.call_once(|| unsafe {
            libc::pthread_atfork(Some(before), None, Some(in_child));
        });
        Generation(GENERATION.load(Ordering::SeqCst))
    }

    /// Whether the calling process is the one that obtained this generation.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == GENERATION.load(Ordering::Relaxed)
    }
}
