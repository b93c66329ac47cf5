//! Messages between two processes.

use crate::process::{fail, named, run};
use std::ffi::{c_int, c_void};

/// -1 in C: any source, any tag.
const ANY: c_int = -1;

/// Converts a length from C; a negative one is refused.
pub(crate) fn length(call: &str, length: c_int) -> usize {
    usize::try_from(length).unwrap_or_else(|_| fail(&format!("{call}: length {length}")))
}

/// The caller's bytes, to read.
///
/// # Safety
/// `bytes` points to `length` bytes, unless that is 0.
pub(crate) unsafe fn readable<'a>(bytes: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(bytes.cast(), length) }
}

/// The caller's bytes, to write.
///
/// # Safety
/// `bytes` points to `length` bytes that no other thread accesses, unless that is 0.
pub(crate) unsafe fn writable<'a>(bytes: *mut c_void, length: usize) -> &'a mut [u8] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(bytes.cast(), length) }
}

/// Sends.
///
/// # Safety
/// `bytes` points to `len` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn jia_send(bytes: *const c_void, len: c_int, to: c_int, tag: c_int) {
    if tag < 0 {
        fail(&format!("jia_send: tag {tag}; tags begin with 0, and -1 means any at the receiver"));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { readable(bytes, length("jia_send", len)) };
    run("jia_send", |job| job.send(named("process", to), tag, bytes));
}

/// Waits for a message. Returns the number of bytes received, at most `len`.
///
/// # Safety
/// `bytes` points to `len` bytes that no other thread accesses.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn jia_recv(bytes: *mut c_void, len: c_int, from: c_int, tag: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let into = unsafe { writable(bytes, length("jia_recv", len)) };
    let from = (from != ANY).then(|| named("process", from));
    let tag = (tag != ANY).then_some(tag);
    let (arrived, ..) = run("jia_recv", |job| job.recv(from, tag, into));
    arrived.min(len as usize) as c_int
}
