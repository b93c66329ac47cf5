//! The wrappers: each is the function of libc with the same name and arguments, with the file name changed.
//!
//! `open` and similar functions take a mode only with some flags, as a variadic argument in C. The calling
//! conventions of Linux pass that argument in the same register either way, so the wrapper passes a missing argument
//! without reading it.

use crate::next::{Next, set_errno};
use crate::rename::Name;
use libc::{DIR, FILE, c_char, c_int, c_long, c_uint, mode_t, size_t, ssize_t};
use std::ffi::c_void;

/// Declares wrappers. `name` is the file name argument; the others are passed unchanged.
macro_rules! wrap {
    ($($symbol:ident($($before:ident: $before_type:ty),*; $name:ident $(, $after:ident: $after_type:ty)*)
        -> $answer:ty, else $failed:expr;)+) => { $(
        /// The function of libc, with the device's files.
        ///
        /// # Safety
        /// As that function.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $symbol($($before: $before_type,)* $name: *const c_char $(, $after: $after_type)*) -> $answer {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $answer;
            static NEXT: Next = Next::new(match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            });
            let next = NEXT.address();
            if next.is_null() {
                set_errno(libc::ENOSYS);
                return $failed;
            }
            // SAFETY: the address is that of the function with this name, whose type libc's headers state; the name is
            // the caller's, or one of ours that lives until the call returns.
            unsafe {
                let function = std::mem::transmute::<*mut c_void, Function>(next);
                let name = Name::of($name);
                function($($before,)* name.as_ptr() $(, $after)*)
            }
        }
    )+ };
}

wrap! {
    open(; path, flags: c_int, mode: mode_t) -> c_int, else -1;
    open64(; path, flags: c_int, mode: mode_t) -> c_int, else -1;
    __open_2(; path, flags: c_int) -> c_int, else -1;
    __open64_2(; path, flags: c_int) -> c_int, else -1;
    openat(folder: c_int; path, flags: c_int, mode: mode_t) -> c_int, else -1;
    openat64(folder: c_int; path, flags: c_int, mode: mode_t) -> c_int, else -1;
    __openat_2(folder: c_int; path, flags: c_int) -> c_int, else -1;
    __openat64_2(folder: c_int; path, flags: c_int) -> c_int, else -1;
    fopen(; path, mode: *const c_char) -> *mut FILE, else std::ptr::null_mut();
    fopen64(; path, mode: *const c_char) -> *mut FILE, else std::ptr::null_mut();

    stat(; path, answer: *mut c_void) -> c_int, else -1;
    stat64(; path, answer: *mut c_void) -> c_int, else -1;
    lstat(; path, answer: *mut c_void) -> c_int, else -1;
    lstat64(; path, answer: *mut c_void) -> c_int, else -1;
    fstatat(folder: c_int; path, answer: *mut c_void, flags: c_int) -> c_int, else -1;
    fstatat64(folder: c_int; path, answer: *mut c_void, flags: c_int) -> c_int, else -1;
    statx(folder: c_int; path, flags: c_int, mask: c_uint, answer: *mut c_void) -> c_int, else -1;
    // `stat` and similar functions before glibc 2.33; older programs still call these.
    __xstat(version: c_int; path, answer: *mut c_void) -> c_int, else -1;
    __xstat64(version: c_int; path, answer: *mut c_void) -> c_int, else -1;
    __lxstat(version: c_int; path, answer: *mut c_void) -> c_int, else -1;
    __lxstat64(version: c_int; path, answer: *mut c_void) -> c_int, else -1;
    __fxstatat(version: c_int, folder: c_int; path, answer: *mut c_void, flags: c_int) -> c_int, else -1;
    __fxstatat64(version: c_int, folder: c_int; path, answer: *mut c_void, flags: c_int) -> c_int, else -1;
    statfs(; path, answer: *mut c_void) -> c_int, else -1;
    statfs64(; path, answer: *mut c_void) -> c_int, else -1;
    pathconf(; path, name: c_int) -> c_long, else -1;

    access(; path, mode: c_int) -> c_int, else -1;
    eaccess(; path, mode: c_int) -> c_int, else -1;
    euidaccess(; path, mode: c_int) -> c_int, else -1;
    faccessat(folder: c_int; path, mode: c_int, flags: c_int) -> c_int, else -1;
    getxattr(; path, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t, else -1;
    lgetxattr(; path, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t, else -1;

    opendir(; path) -> *mut DIR, else std::ptr::null_mut();
    scandir(; path, list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int, else -1;
    scandir64(; path, list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int, else -1;
    scandirat(folder: c_int; path, list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int, else -1;
    scandirat64(folder: c_int; path, list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int, else -1;
    chdir(; path) -> c_int, else -1;

    readlink(; path, answer: *mut c_char, size: size_t) -> ssize_t, else -1;
    readlinkat(folder: c_int; path, answer: *mut c_char, size: size_t) -> ssize_t, else -1;
    __readlink_chk(; path, answer: *mut c_char, size: size_t, room: size_t) -> ssize_t, else -1;
    __readlinkat_chk(folder: c_int; path, answer: *mut c_char, size: size_t, room: size_t) -> ssize_t, else -1;
}
