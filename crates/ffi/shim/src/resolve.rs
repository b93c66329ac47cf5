//! The functions that return a name. The result must be the program's name, not the redirected one.

use crate::next::{Next, set_errno};
use crate::rename::{Name, root_len};
use libc::{c_char, size_t};
use std::ffi::c_void;

type Realpath = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;
type CheckedRealpath = unsafe extern "C" fn(*const c_char, *mut c_char, size_t) -> *mut c_char;

/// The function of libc, with the device's files.
///
/// # Safety
/// As that function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn realpath(path: *const c_char, answer: *mut c_char) -> *mut c_char {
    static NEXT: Next = Next::new(c"realpath");
    // SAFETY: the address is that of the function with this name; the caller's promise.
    unsafe {
        resolve(&NEXT, path, |next, name| {
            let function = std::mem::transmute::<*mut c_void, Realpath>(next);
            function(name, answer)
        })
    }
}

/// Calls a function of libc with the changed name, and changes its result back.
///
/// # Safety
/// `path` is null or a terminated string. `call` gets the address of `next`, and returns null or a terminated string that is writable.
unsafe fn resolve(
    next: &Next,
    path: *const c_char,
    call: impl FnOnce(*mut c_void, *const c_char) -> *mut c_char,
) -> *mut c_char {
    let next = next.address();
    if next.is_null() {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise; the name lives until the call returns.
    unsafe {
        let name = Name::of(path);
        let found = call(next, name.as_ptr());
        if name.is_changed() {
            strip_root(name.as_ptr(), found);
        }
        found
    }
}

/// The same for programs that were compiled with checks of buffer sizes: libc aborts if `room` is below PATH_MAX.
///
/// # Safety
/// As [`realpath`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    answer: *mut c_char,
    room: size_t,
) -> *mut c_char {
    static NEXT: Next = Next::new(c"__realpath_chk");
    // SAFETY: as in `realpath`.
    unsafe {
        resolve(&NEXT, path, |next, name| {
            let function = std::mem::transmute::<*mut c_void, CheckedRealpath>(next);
            function(name, answer, room)
        })
    }
}

/// The same with a result that the caller frees.
///
/// # Safety
/// As [`realpath`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller's promise.
    unsafe { realpath(path, std::ptr::null_mut()) }
}

/// Removes our folder from the front of a result that is inside it. A result outside it, such as /dev/null, stays unchanged.
///
/// # Safety
/// `within` is a changed name; `answer` is null or a terminated string that is writable.
unsafe fn strip_root(within: *const c_char, answer: *mut c_char) {
    if answer.is_null() {
        return;
    }
    let len = root_len();
    // SAFETY: both are terminated strings; only bytes inside `answer` move, towards its front.
    unsafe {
        if libc::strncmp(within, answer, len) == 0 && *answer.add(len) as u8 == b'/' {
            libc::memmove(answer.cast(), answer.add(len).cast(), libc::strlen(answer.add(len)) + 1);
        }
    }
}
