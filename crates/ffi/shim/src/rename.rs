//! Which names are changed, and to what.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The redirected folders; entries of the first are links into the second.
const FOLDERS: [&[u8]; 3] = [b"/sys/class/infiniband", b"/sys/class/ferroce", b"/dev/infiniband"];
const VARIABLE: &CStr = c"FERROCE_SHIM";
const CAPACITY: usize = libc::PATH_MAX as usize;

/// A name, changed or not. It is on the stack of the wrapper.
pub(crate) struct Name {
    given: *const c_char,
    changed: Option<[u8; CAPACITY]>,
}

impl Name {
    /// The name to use in place of `given`.
    ///
    /// # Safety
    /// `given` is null or a terminated string that lives as long as this value.
    pub(crate) unsafe fn of(given: *const c_char) -> Name {
        // SAFETY: the caller's promise.
        let is_ours = unsafe { is_redirected(given) };
        let root = if is_ours { root() } else { None };
        // SAFETY: `given` passed the check above, so it is a terminated string.
        let changed =
            root.and_then(|root| unsafe { join(root.to_bytes(), CStr::from_ptr(given).to_bytes()) });
        Name { given, changed }
    }

    /// The pointer for the wrapped function.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.changed.as_ref().map_or(self.given, |bytes| bytes.as_ptr().cast())
    }

    /// Whether it was changed.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed.is_some()
    }
}

/// The length of the folder name that [`Name::of`] prepends.
pub(crate) fn root_len() -> usize {
    root().map_or(0, |root| root.to_bytes().len())
}

/// Whether a name is redirected. Most names are rejected at their second byte, before their length is known.
///
/// # Safety
/// `given` is null or a terminated string.
unsafe fn is_redirected(given: *const c_char) -> bool {
    if given.is_null() {
        return false;
    }
    FOLDERS.iter().any(|folder| {
        for (at, &expected) in folder.iter().enumerate() {
            // SAFETY: the bytes before `at` equal those of the folder, so none of them is the terminator.
            if unsafe { *given.add(at) } as u8 != expected {
                return false;
            }
        }
        // SAFETY: as above; at the latest this byte is the terminator.
        matches!(unsafe { *given.add(folder.len()) } as u8, 0 | b'/')
    })
}

fn join(root: &[u8], name: &[u8]) -> Option<[u8; CAPACITY]> {
    let mut bytes = [0; CAPACITY];
    let end = root.len() + name.len();
    if end >= CAPACITY {
        return None;
    }
    bytes[..root.len()].copy_from_slice(root);
    bytes[root.len()..end].copy_from_slice(name);
    Some(bytes)
}

/// The folder with our files. The environment is read once, since a program may change it. The pointer stays valid:
/// libc never frees the original environment. In a setuid program the variable is ignored: its caller chose the environment.
fn root() -> Option<&'static CStr> {
    static ROOT: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
    static ABSENT: c_char = 0;
    let mut root = ROOT.load(Ordering::Relaxed);
    if root.is_null() {
        // SAFETY: reads a number that the kernel passed at the start of the process.
        let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        if !has_more_rights {
            // SAFETY: the name is a terminated string. The variable was there when the process started, so its text lies
            // in the process's first environment, which is never freed.
            root = unsafe { libc::getenv(VARIABLE.as_ptr()) };
        }
        if root.is_null() {
            root = (&raw const ABSENT).cast_mut();
        }
        ROOT.store(root, Ordering::Relaxed);
    }
    // SAFETY: either the text in the environment or the empty string above.
    let root = unsafe { CStr::from_ptr(root) };
    (root.to_bytes().first() == Some(&b'/')).then_some(root)
}
