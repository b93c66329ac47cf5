//! The names and versions that the library exports. A wrong version causes no error of the linker, but programs that need the
//! right one do not find the symbol.

#[path = "../../ibverbs/tests/support/elf.rs"]
mod elf;
mod support;

use elf::{assert_exports, exported, has_version};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use support::library;

/// The prefix of the names of versions.
const VERSIONS: &str = "RDMACM_";
const LIST: &str = include_str!("../symbols.txt");

fn listed() -> BTreeSet<String> {
    LIST.lines().map(str::to_owned).collect()
}

#[test]
fn the_library_exports_exactly_the_list() {
    assert_eq!(listed().len(), 74);
    assert_exports(&library(), VERSIONS, LIST);
}

/// The list has the symbols of Debian 12 (rdma-core 44) and of later versions up to rdma-core 65.
#[test]
fn the_list_is_that_of_the_real_library() {
    let places = ["/usr/lib/x86_64-linux-gnu/librdmacm.so.1", "/usr/lib/aarch64-linux-gnu/librdmacm.so.1"];
    let Some(real) = places.iter().map(Path::new).find(|path| path.exists()) else {
        println!("SKIPPED: the real librdmacm.so.1 is missing; it is in the package librdmacm1");
        return;
    };
    let Some(real) = exported(real, VERSIONS) else {
        println!("SKIPPED: readelf is missing; it is in the package binutils");
        return;
    };
    let list: BTreeSet<_> = listed().into_iter().filter(|name| has_version(&real, name)).collect();
    let missing: Vec<_> = list.difference(&real).collect();
    assert!(missing.is_empty(), "the real library has no {missing:?}");
}

/// Programs find the library by its SONAME, and it must stay loaded while other threads are inside its calls. It needs libibverbs,
/// as that of rdma-core does.
#[test]
fn the_library_is_named_stays_loaded_and_needs_the_verbs() {
    let Ok(out) = Command::new("readelf").args(["-W", "-d"]).arg(library()).output() else {
        println!("SKIPPED: readelf is missing; it is in the package binutils");
        return;
    };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("soname: [librdmacm.so.1]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
    assert!(text.contains("[libibverbs.so.1]"), "{text}");
}
