//! The process' job, and the wrapper of every call.

use ferroce_dsm::{Error, Job, Settings};
#[cfg(target_env = "gnu")]
use std::ffi::c_void;
use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rank of this process. C programs read it; only `jia_init` writes it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that C programs know")]
pub(crate) static mut jiapid: c_int = 0;
/// Number of processes.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that C programs know")]
pub(crate) static mut jiahosts: c_int = 1;

/// Exit status of a process whose call was refused.
const REFUSED: c_int = 71;

/// The job. It is kept after `jia_exit`: programs print from shared memory afterwards.
static JOB: OnceLock<Job> = OnceLock::new();
static LEFT: AtomicBool = AtomicBool::new(false);

/// Runs a call. An error ends the job with one sentence; a panic never reaches the C program.
pub(crate) fn run<T>(call: &'static str, work: impl FnOnce(&Job) -> Result<T, Error>) -> T {
    guarded(call, || {
        if LEFT.load(Ordering::Acquire) {
            fail(&format!("{call}: after jia_exit"));
        }
        let Some(job) = JOB.get() else { fail(&format!("{call}: before jia_init")) };
        work(job)
    })
}

/// The same for calls without a job.
pub(crate) fn guarded<T>(call: &'static str, work: impl FnOnce() -> Result<T, Error>) -> T {
    caught(call, work).unwrap_or_else(|sentence| fail(&sentence))
}

/// Returns the error as a sentence; a panic counts as an error.
fn caught<T>(call: &'static str, work: impl FnOnce() -> Result<T, Error>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(format!("{call}: {error}")),
        Err(_) => Err(format!("{call}: an error inside ferroce; please report it")),
    }
}

/// An unsigned number from C; a negative one is refused.
pub(crate) fn named(what: &str, number: c_int) -> u32 {
    u32::try_from(number).unwrap_or_else(|_| fail(&format!("{what} {number}: numbers begin with 0")))
}

/// Prints a sentence and ends this process. The launcher then ends the others.
pub(crate) fn fail(sentence: &str) -> ! {
    // `jiapid` is valid only after the process has joined.
    let rank = JOB.get().map(Job::rank).or_else(Settings::rank_from_env);
    let who = rank.map_or_else(|| "this process".to_owned(), |rank| format!("process {rank}"));
    flush();
    let _ = std::io::stderr().write_all(format!("ferroce dsm: {who} ends: {sentence}\n").as_bytes());
    // SAFETY: does not return. Exit handlers are skipped: they could wait for locks of other threads.
    unsafe { libc::_exit(REFUSED) }
}

/// Flushes the C library's output buffers.
fn flush() {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
    }
    // SAFETY: the C library's own stream, which exists for the whole life of a process.
    unsafe { libc::fflush(stdout) };
}

/// Joins the job.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_init(_count: c_int, _arguments: *mut *mut c_char) {
    guarded("jia_init", || {
        if JOB.get().is_some() {
            fail("jia_init: called twice");
        }
        let job = Job::join(Settings::from_env()?)?;
        // SAFETY: a program may access these numbers only after this call has returned.
        unsafe {
            jiapid = job.rank() as c_int;
            jiahosts = job.size() as c_int;
        }
        if JOB.set(job).is_err() {
            fail("jia_init: called by two threads");
        }
        complain_at_exit();
        Ok(())
    });
}

/// Waits for the other processes, and leaves the job.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_exit() {
    if JOB.get().is_none() || LEFT.load(Ordering::Acquire) {
        return;
    }
    run("jia_exit", |job| {
        LEFT.store(true, Ordering::Release);
        job.clone().leave()
    });
}

/// Ends the job with the program's own error text.
///
/// # Safety
/// `sentence` is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferroce_jia_fail(sentence: *const c_char) {
    // SAFETY: the caller's promise; only jia.h calls this.
    let sentence = unsafe { CStr::from_ptr(sentence) };
    guarded("jia_error", || fail(sentence.to_string_lossy().trim_end()))
}

/// Registers a message for programs that end without `jia_exit`, by mistake or after an error. The launcher then ends the
/// other processes, which cannot continue.
#[cfg(target_env = "gnu")]
fn complain_at_exit() {
    unsafe extern "C" {
        fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn end(status: c_int, _: *mut c_void) {
        let alone = JOB.get().is_none_or(|job| job.size() == 1);
        if status == 0 && !alone && !LEFT.load(Ordering::Acquire) {
            // SAFETY: a plain read of a number that only `jia_init` writes.
            let rank = unsafe { jiapid };
            let sentence = format!("ferroce dsm: process {rank} ends without jia_exit\n");
            let _ = std::io::stderr().write_all(sentence.as_bytes());
        }
    }
    // SAFETY: the library is never unloaded, and the function ignores its argument.
    unsafe { on_exit(end, std::ptr::null_mut()) };
}

/// Other C libraries do not pass the exit status.
#[cfg(not(target_env = "gnu"))]
fn complain_at_exit() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_sentence() {
        assert_eq!(caught("jia_x", || Ok(7)), Ok(7));
        let refused = caught::<()>("jia_x", || Err(Error::HeldAlready(3)));
        assert_eq!(refused, Err("jia_x: this thread already holds lock 3".into()));
        let panicked = caught::<()>("jia_x", || panic!("on purpose"));
        assert_eq!(panicked, Err("jia_x: an error inside ferroce; please report it".into()));
    }
}
