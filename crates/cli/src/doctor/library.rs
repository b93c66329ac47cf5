//! Checks that the drop-in library exists and exports every symbol of the real one.

use super::Finding;
use crate::run::library::{Libraries, VERBS};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What the real library exports, as `name@@version`.
const SYMBOLS: &str = include_str!("../../symbols.txt");

pub(super) fn check() -> Vec<Finding> {
    let libraries = match Libraries::find() {
        Ok(libraries) => libraries,
        Err(failure) => {
            let advice = "Build it: cargo build --release; or install it: cargo xtask install";
            return vec![Finding::fails("library", failure.what()).advise(advice)];
        }
    };
    let found = |check, path: &Path| Finding::works(check, path.display().to_string());
    let shim = "no libferroce_shim.so next to the command; needed only where namespaces are refused";
    let connections = "not next to libibverbs; programs that connect by rdma_cm (perftest -R, rping) need it";
    vec![
        found("library", &libraries.verbs),
        symbols(&libraries.verbs),
        match &libraries.shim {
            Some(path) => found("shim", path),
            None => Finding::limited("shim", shim).advise("Build it: cargo build --release"),
        },
        match &libraries.connections {
            Some(path) => found("librdmacm", path),
            None => Finding::limited("librdmacm", connections),
        },
    ]
}

fn symbols(library: &Path) -> Finding {
    let Ok(name) = CString::new(library.as_os_str().as_bytes()) else {
        return Finding::fails("symbols", "the library's name holds a zero byte");
    };
    // SAFETY: loads a library of ours, whose constructors only note that they ran; it stays loaded until we end.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Finding::fails("symbols", format!("{} cannot be loaded", library.display()))
            .advise(format!("See why: ldd {}", library.display()));
    }
    let total = SYMBOLS.lines().count();
    let missing: Vec<&str> = SYMBOLS.lines().filter(|line| !has(handle, line)).collect();
    match missing.first() {
        None => Finding::works("symbols", format!("all {total} symbols of {VERBS}, each with its version")),
        Some(first) => {
            Finding::fails("symbols", format!("{} of {total} missing, for example {first}", missing.len()))
                .advise("Build the library anew: cargo build --release")
        }
    }
}

fn has(handle: *mut libc::c_void, line: &str) -> bool {
    let Some((name, version)) = line.trim().split_once("@@") else { return false };
    let (Ok(name), Ok(version)) = (CString::new(name), CString::new(version)) else { return false };
    // SAFETY: the handle is that of a loaded library, and both strings are terminated.
    !unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) }.is_null()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_has_a_version() {
        assert_eq!(
            SYMBOLS.lines().filter(|line| line.contains("@@IBVERBS_")).count(),
            SYMBOLS.lines().count()
        );
    }

    #[test]
    fn a_missing_library_fails() {
        let own = symbols(Path::new("/nowhere/libibverbs.so.1"));
        assert_eq!(own.verdict, super::super::Verdict::Fails);
    }
}
