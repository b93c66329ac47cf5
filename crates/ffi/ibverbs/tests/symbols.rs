//! The names and versions that the library exports. A wrong one breaks programs without a word: the linker does not
//! complain, and a program that asks for the version finds nothing.

#[path = "support/elf.rs"]
mod elf;
mod support;

use elf::{assert_exports, exported, has_version};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use support::library;

/// How the names of versions begin.
const VERSIONS: &str = "IBVERBS_";
const LIST: &str = include_str!("../symbols.txt");

fn listed() -> BTreeSet<String> {
    LIST.lines().map(str::to_owned).collect()
}

#[test]
fn the_library_exports_exactly_the_list() {
    assert_exports(&library(), VERSIONS, LIST);
}

/// The list is what Debian 12 ships (rdma-core 44) and the versions since then, up to rdma-core 65. A real library has all of these but
/// for versions that are newer than it, and private ones, whose version is another in each.
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

/// Programs find the library by this name, and it must stay while the NIC's thread runs in it.
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
