//! Sets what programs need at link time: the SONAME of the library, and a version for every symbol.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Versions in their order of release; each contains the previous one. Programs are linked to these names.
const CHAIN: [&str; 16] = [
    "IBVERBS_1.0",
    "IBVERBS_1.1",
    "IBVERBS_1.5",
    "IBVERBS_1.6",
    "IBVERBS_1.7",
    "IBVERBS_1.8",
    "IBVERBS_1.9",
    "IBVERBS_1.10",
    "IBVERBS_1.11",
    "IBVERBS_1.12",
    "IBVERBS_1.13",
    "IBVERBS_1.14",
    "IBVERBS_1.15",
    "IBVERBS_1.16",
    "IBVERBS_1.17",
    "IBVERBS_1.18",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=symbols.txt");
    let list = std::fs::read_to_string("symbols.txt").expect("symbols.txt is next to build.rs");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let map = Path::new(&out).join("libibverbs.map");
    std::fs::write(&map, version_map(&list)).expect("OUT_DIR can be written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // `dlclose` must not unload the library: the threads of the NIC run in it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

/// The list of symbols as a linker version script, with one node per version.
fn version_map(list: &str) -> String {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in list.lines().filter(|line| !line.is_empty()) {
        let (name, version) = line.split_once("@@").expect("a line is name@@version");
        nodes.entry(version).or_default().push(name);
    }
    let mut map = String::new();
    let mut node = |version: &str, parent: &str, hide: &str| {
        let names = nodes.remove(version).unwrap_or_default().join("; ");
        writeln!(map, "{version} {{ global: {names}; {hide}}} {parent};").expect("writing to a string");
    };
    node(CHAIN[0], "", "local: *; ");
    for pair in CHAIN.windows(2) {
        node(pair[1], pair[0], "");
    }
    node("IBVERBS_PRIVATE_34", "", "");
    assert!(nodes.is_empty(), "symbols.txt names versions that build.rs does not know: {nodes:?}");
    map
}
