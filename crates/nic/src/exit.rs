//! The exit of a process. A process may end right after its last completion: delayed ACKs are still sent, and captures
//! are written completely.

use crate::engine::Engine;
use ferroce_os::fork::Generation;
use ferroce_os::lock::Mutex;
use std::sync::{Arc, Once, Weak};

static OPEN: Mutex<Vec<(Generation, Weak<Engine>)>> = Mutex::new(Vec::new());

extern "C" fn at_exit() {
    let Some(open) = OPEN.try_lock() else { return };
    for (born, engine) in open.iter() {
        if let Some(engine) = engine.upgrade().filter(|_| born.is_current()) {
            let contexts = engine.device.contexts();
            // Otherwise this thread exits in a signal handler that interrupted a call. It would wait for locks that it holds itself, so the
            // peers get nothing more, as from a process that was killed.
            if contexts.iter().all(|context| context.no_call_blocks()) {
                engine.close_connections();
                contexts.iter().for_each(|context| context.settle());
            }
            crate::exit_report::write(&engine);
            crate::link::flush_captures();
            // Dropping an engine here would join threads that the exiting process may have stopped already.
            contexts.into_iter().chain([engine]).for_each(std::mem::forget);
        }
    }
}

/// Settles this engine when the process exits.
pub(crate) fn remember(engine: &Arc<Engine>) {
    static HOOK: Once = Once::new();
    // SAFETY: registers a handler that touches only live engines.
    HOOK.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
    let mut open = OPEN.lock();
    open.retain(|(_, engine)| engine.strong_count() > 0);
    open.push((Generation::current(), Arc::downgrade(engine)));
}
