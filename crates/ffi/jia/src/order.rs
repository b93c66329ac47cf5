//! Synchronisation: locks, barriers, flags, and self-scheduled loops.

use crate::process::{fail, named, run};
use crate::{balance, tree};
use ferroce_dsm::Tuning;
use std::ffi::c_int;

/// The lock that the next `LOCKINIT` assigns. The macros of jia.h increment it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that C programs know")]
pub(crate) static mut jia_lock_index: c_int = 0;
/// The flag that the next `PAUSEINIT` assigns.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that the header knows")]
pub(crate) static mut jia_pause_index: c_int = 0;

/// Acquires a lock for this thread.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_lock(lock: c_int) {
    run("jia_lock", |job| job.lock(named("lock", lock)));
}

/// Releases it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_unlock(lock: c_int) {
    run("jia_unlock", |job| job.unlock(named("lock", lock)));
}

/// Waits for all processes, and makes all writes visible to all.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_barrier() {
    run("jia_barrier", |job| job.barrier());
}

/// Waits for all processes.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_wait() {
    run("jia_wait", |job| job.wait_all());
}

/// Sets a flag.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_setcv(flag: c_int) {
    run("jia_setcv", |job| job.set_flag(named("flag", flag)));
}

/// Resets a flag.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_resetcv(flag: c_int) {
    run("jia_resetcv", |job| job.reset_flag(named("flag", flag)));
}

/// Waits until a flag is set.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_waitcv(flag: c_int) {
    run("jia_waitcv", |job| job.wait_flag(named("flag", flag)));
}

/// Turns an optimisation on or off.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_config(option: c_int, on: c_int) {
    let on = on != 0;
    let tuning = match option {
        0 => Some(Tuning::HomeMigration),
        1 => Some(Tuning::AdaptiveWriteDetection),
        2 => {
            tree::shape(on);
            Some(Tuning::BroadcastTree)
        }
        3 => {
            balance::switch(on);
            None
        }
        4 => Some(Tuning::ChangedBlocks),
        other => fail(&format!(
            "jia_config: option {other} does not exist; use HMIG, ADWD, BROADCAST, LOADBAL or WVEC"
        )),
    };
    run("jia_config", |job| {
        tuning.iter().for_each(|&tuning| job.configure(tuning, on));
        Ok(())
    });
}

/// The next index of a self-scheduled loop (`GETSUB`): 0 to `last`, then -1. Once all processes have received -1, the loop
/// starts again.
///
/// # Safety
/// `scheduler` points to the numbers that `GSINIT` initialised, and `index` to a number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferroce_jia_subscript(
    scheduler: *mut c_int,
    index: *mut c_int,
    last: c_int,
    processes: c_int,
) {
    // SAFETY: the caller's promise: three numbers in shared memory, of which `GSINIT` wrote the first before a barrier.
    let lock = unsafe { *scheduler };
    jia_lock(lock);
    // SAFETY: the lock protects the two other numbers; `index` belongs to the caller.
    unsafe {
        let (next, ended) = (scheduler.add(1), scheduler.add(2));
        if *next <= last {
            *index = *next;
            *next += 1;
        } else {
            *index = -1;
            *ended += 1;
            if *ended >= processes {
                (*next, *ended) = (0, 0);
            }
        }
    }
    jia_unlock(lock);
}
