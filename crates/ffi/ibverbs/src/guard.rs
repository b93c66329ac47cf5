//! The wrapper of every call: it stops panics, and turns a refusal into what C expects.

use crate::errno::{self, Refused};
use std::ffi::c_int;
#[cfg(debug_assertions)]
use std::ffi::{OsStr, OsString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
#[cfg(debug_assertions)]
use std::sync::OnceLock;

/// Moves the device to its fatal state: after an internal error, its state is unknown.
pub(crate) fn raise_fatal() {
    // The lookup of the NIC may panic, too.
    let _ = catch_unwind(|| ferroce_nic::Nic::current().iter().for_each(ferroce_nic::Nic::raise_fatal));
}

/// Handles a panic.
#[cold]
fn after_panic(verb: &str) -> Refused {
    raise_fatal();
    ferroce_nic::log_refusal(format_args!("{verb}: an error inside ferroce; please report it"));
    Refused::Errno(libc::EIO, "an error inside ferroce")
}

/// Panics if `FERROCE_TEST_PANIC` names this point: a verb, or a point within one. Tests use it to simulate a bug.
/// Release builds ignore the variable.
#[cfg(debug_assertions)]
pub(crate) fn provoke(place: &str) {
    static WANTED: OnceLock<Option<OsString>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| std::env::var_os("FERROCE_TEST_PANIC"));
    assert!(wanted.as_deref() != Some(OsStr::new(place)), "a panic that a test asked for, in {place}");
}

#[cfg(not(debug_assertions))]
#[inline]
pub(crate) fn provoke(_: &str) {}

/// Runs a verb.
pub(crate) fn run<T>(verb: &'static str, call: impl FnOnce() -> Result<T, Refused>) -> Result<T, c_int> {
    // A panic may leave the NIC inconsistent, so `after_panic` makes it fatal. The program's own memory is intact.
    let guarded = || {
        provoke(verb);
        call()
    };
    let refused = match catch_unwind(AssertUnwindSafe(guarded)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(refused)) => refused,
        Err(_) => after_panic(verb),
    };
    Err(refuse(verb, refused))
}

/// The wrapper of data path verbs. `call` returns a plain number: a `Result<_, Refused>` would be copied on success,
/// too.
#[inline(always)]
pub(crate) fn hot(verb: &'static str, call: impl FnOnce() -> c_int) -> Result<c_int, c_int> {
    let guarded = || {
        provoke(verb);
        call()
    };
    match catch_unwind(AssertUnwindSafe(guarded)) {
        Ok(answer) => Ok(answer),
        Err(_) => Err(refuse(verb, after_panic(verb))),
    }
}

/// Runs `take`, which posts the list. If it refuses a request, stores that request in `bad`.
///
/// # Safety
/// `list` is the program's list; `bad` is NULL or writable.
#[inline(always)]
pub(crate) unsafe fn post_with<W>(
    verb: &'static str,
    list: *mut W,
    bad: *mut *mut W,
    take: impl FnOnce(&mut *mut W) -> Result<(), Box<Refused>>,
) -> c_int {
    let mut at = list;
    let posted = hot(verb, || {
        let Err(refused) = take(&mut at) else { return 0 };
        if !bad.is_null() {
            // SAFETY: not NULL, so the program provides memory for the pointer.
            unsafe { *bad = at };
        }
        refuse(verb, *refused)
    });
    posted.unwrap_or_else(|number| number)
}

/// Handles a refusal: logs it, and sets `errno`.
#[cold]
#[inline(never)]
pub(crate) fn refuse(verb: &str, refused: Refused) -> c_int {
    refused.explain(verb);
    let number = refused.errno();
    errno::set(number);
    number
}

/// For verbs that return 0 or the number itself.
pub(crate) fn number(verb: &'static str, call: impl FnOnce() -> Result<(), Refused>) -> c_int {
    run(verb, call).err().unwrap_or(0)
}

/// For verbs that return 0, or -1 with the number in `errno`.
pub(crate) fn minus_one(verb: &'static str, call: impl FnOnce() -> Result<(), Refused>) -> c_int {
    if run(verb, call).is_ok() { 0 } else { -1 }
}

/// For verbs that return an object, or NULL with the number in `errno`.
pub(crate) fn pointer<T>(verb: &'static str, call: impl FnOnce() -> Result<*mut T, Refused>) -> *mut T {
    run(verb, call).unwrap_or(ptr::null_mut())
}

/// For verbs without a result.
pub(crate) fn quiet(verb: &'static str, call: impl FnOnce() -> Result<(), Refused>) {
    let _ = run(verb, call);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::invalid;

    #[test]
    fn a_panic_becomes_a_number() {
        assert_eq!(number("test", || panic!("on purpose")), libc::EIO);
        assert_eq!(minus_one("test", || Err(invalid("x"))), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
        assert!(pointer::<u8>("test", || panic!("on purpose")).is_null());
    }
}
