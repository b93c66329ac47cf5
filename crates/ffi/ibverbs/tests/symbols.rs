//! The names and versions that the library exports. A wrong version causes no error of the linker, but programs that need the
//! right one do not find the symbol.

#[path = "support/elf.rs"]
mod elf;
mod support;

use elf::{assert_exports, exported, has_version};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use support::library;

/// The prefix of the names of versions.
const VERSIONS: &str = "IBVERBS_";
const LIST: &str = include_str!("../symbols.txt");

fn listed() -> BTreeSet<String> {
    LIST.lines().map(str::to_owned).collect()
}

#[test]
fn the_library_exports_exactly_the_list() {
    assert_exports(&library(), VERSIONS, LIST);
}

/// The list has the symbols of Debian 12 (rdma-core 44) and of later versions up to rdma-core 65. An rdma-core library has all of
/// them, except newer versions and private symbols, whose version differs in each release.
#[test]
fn the_list_is_that_of_the_real_library() {
    let places = ["/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/usr/lib/aarch64-linux-gnu/libibverbs.so.1"];
    let Some(real) = places.iter().map(Path::new).find(|path| path.exists()) else {
        println!("SKIPPED: the real libibverbs.so.1 is missing; it is in the package libibverbs1");
        return;
    };
    let Some(real) = exported(real, VERSIONS) else {
        println!("SKIPPED: readelf is missing; it is in the package binutils");
        return;
    };
    let same_age = real.contains("verbs_register_driver_34@@IBVERBS_PRIVATE_34");
    let of_interest = |name: &&String| same_age || !name.contains("PRIVATE");
    let list: BTreeSet<_> = listed().into_iter().filter(|name| has_version(&real, name)).collect();
    let missing: Vec<_> = list.difference(&real).filter(of_interest).collect();
    assert!(missing.is_empty(), "the real library has no {missing:?}");
    let defaults = real.iter().filter(|name| name.contains("@@")).count();
    assert!(
        !same_age || defaults == list.len(),
        "the real library has {defaults} symbols, the list {}",
        list.len()
    );
}

/// Programs find the library by its SONAME, and it must stay loaded while the threads of the NIC run in it.
#[test]
fn the_library_is_named_and_stays_loaded() {
    let Ok(out) = Command::new("readelf").args(["-W", "-d"]).arg(library()).output() else {
        println!("SKIPPED: readelf is missing; it is in the package binutils");
        return;
    };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("soname: [libibverbs.so.1]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}
