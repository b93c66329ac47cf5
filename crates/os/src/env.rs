//! Variables of the environment.

use std::ffi::OsString;

/// The value of a variable. `None` if it is not set, and in a program that has more rights than its caller, such as a
/// setuid program: there the caller chooses the environment, and must not choose the files that the program opens.
pub fn var_os(name: &str) -> Option<OsString> {
    // SAFETY: it reads a number that the kernel passed at the start of the process.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if has_more_rights { None } else { std::env::var_os(name) }
}

/// The value of a variable as text. `Err` holds a value that is not UTF-8.
pub fn var(name: &str) -> Result<Option<String>, OsString> {
    var_os(name).map(OsString::into_string).transpose()
}
