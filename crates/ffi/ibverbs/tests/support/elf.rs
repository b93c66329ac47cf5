//! The symbols that a shared library exports.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// `name@@version` of every exported symbol of a library, without the versions themselves, whose symbols begin with `versions`.
/// Returns `None` without readelf.
pub(crate) fn exported(library: &Path, versions: &str) -> Option<BTreeSet<String>> {
    let out = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library).output().ok()?;
    assert!(out.status.success(), "readelf {}: {}", library.display(), out.status);
    let text = String::from_utf8(out.stdout).expect("readelf prints text");
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| row.len() >= 8 && matches!(row[4], "GLOBAL" | "WEAK") && row[6] != "UND");
    Some(ours.map(|row| row[7].to_owned()).filter(|name| !name.starts_with(versions)).collect())
}

/// Asserts that a library exports exactly the listed symbols, one `name@@version` per line.
pub(crate) fn assert_exports(library: &Path, versions: &str, list: &str) {
    let Some(ours) = exported(library, versions) else {
        return println!("SKIPPED: readelf is missing; it is in the package binutils");
    };
    let list: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    let missing: Vec<_> = list.difference(&ours).collect();
    let extra: Vec<_> = ours.difference(&list).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:?}\nnot in symbols.txt: {extra:?}");
}

/// Whether the library has symbols of this symbol's version; an older library has none.
pub(crate) fn has_version(real: &BTreeSet<String>, name: &str) -> bool {
    let version = name.split_once("@@").map(|(_, version)| version);
    version.is_some_and(|version| real.iter().any(|other| other.ends_with(&format!("@@{version}"))))
}
