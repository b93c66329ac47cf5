//! The NIC that all users in a process share: every caller gets the same NIC, and the last user closes it.

use crate::config::Config;
use crate::error::Error;
use crate::nic::{Nic, WeakNic};
use ferroce_os::fork::Generation;
use ferroce_os::lock::Mutex;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The NIC of one process. After a fork the child has its own: a thread of the parent may have held the parent's lock at
/// the moment of the fork, so the child must not use that lock.
struct ProcessNic {
    process: Generation,
    nic: Mutex<Option<WeakNic>>,
}

static PROCESS_NIC: AtomicPtr<ProcessNic> = AtomicPtr::new(ptr::null_mut());

impl Nic {
    /// A session on the NIC of this process, which is opened with `config` if it is not open yet. A forked child gets
    /// one of its own.
    pub fn shared(config: impl FnOnce() -> Result<Config, Error>) -> Result<Nic, Error> {
        let mut nic = process_nic().nic.lock();
        if let Some(open) = nic.as_ref().and_then(WeakNic::upgrade) {
            return open;
        }
        let opened = Nic::open(config()?)?;
        *nic = Some(opened.downgrade());
        Ok(opened)
    }

    /// A session on the NIC of this process, if it is open.
    pub fn current() -> Option<Nic> {
        process_nic().nic.lock().as_ref().and_then(WeakNic::upgrade)?.ok()
    }
}

fn process_nic() -> &'static ProcessNic {
    let process = Generation::current();
    let found = PROCESS_NIC.load(Ordering::Acquire);
    // SAFETY: it is never freed once it is stored.
    if let Some(known) = unsafe { found.as_ref() }.filter(|known| known.process == process) {
        return known;
    }
    let fresh = Box::into_raw(Box::new(ProcessNic { process, nic: Mutex::new(None) }));
    match PROCESS_NIC.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `fresh` was just made, and is never freed now that it is stored.
        Ok(_) => unsafe { &*fresh },
        Err(_) => {
            // SAFETY: no other thread has seen `fresh`: it was not stored.
            drop(unsafe { Box::from_raw(fresh) });
            process_nic()
        }
    }
}
