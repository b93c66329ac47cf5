//! Sets what programs need at link time: the SONAME of the library, a version for every symbol, and the dependency on
//! libibverbs.so.1.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Versions in their order of release; each contains the previous one. Programs are linked to these names.
const CHAIN: [&str; 6] = ["RDMACM_1.0", "RDMACM_1.1", "RDMACM_1.2", "RDMACM_1.3", "RDMACM_1.4", "RDMACM_1.5"];
/// The symbols that libibverbs exports.
const VERBS: &str = "../ibverbs/symbols.txt";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=symbols.txt");
    println!("cargo:rerun-if-changed={VERBS}");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let list = std::fs::read_to_string("symbols.txt").expect("symbols.txt is next to build.rs");
    let map = out.join("librdmacm.map");
    std::fs::write(&map, version_map(&list)).expect("OUT_DIR can be written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librdmacm.so.1");
    // `dlclose` must not unload the library: other threads may be inside its calls.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    link_with_verbs(&out);
}

/// The list of symbols as a linker version script, with one node per version.
fn version_map(list: &str) -> String {
    let mut nodes = by_version(list);
    let mut map = String::new();
    let mut parent = "";
    for version in CHAIN {
        let names = nodes.remove(version).unwrap_or_default().join("; ");
        let hide = if parent.is_empty() { "local: *; " } else { "" };
        writeln!(map, "{version} {{ global: {names}; {hide}}} {parent};").expect("writing to a string");
        parent = version;
    }
    assert!(nodes.is_empty(), "symbols.txt names versions that build.rs does not know: {nodes:?}");
    map
}

fn by_version(list: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in list.lines().filter(|line| !line.is_empty()) {
        let (name, version) = line.split_once("@@").expect("a line is name@@version");
        nodes.entry(version).or_default().push(name);
    }
    nodes
}

/// Cargo cannot link one cdylib with another. For the linker, an empty library with the same name and symbols is enough; the
/// loader then finds ferroce's libibverbs.
fn link_with_verbs(out: &Path) {
    let list = std::fs::read_to_string(VERBS).expect("libibverbs is next to librdmacm");
    let (mut source, mut map) = (String::from(".text\n"), String::new());
    for (version, names) in by_version(&list) {
        for name in &names {
            writeln!(source, ".globl {name}\n.type {name},%function\n{name}:").expect("writing to a string");
        }
        writeln!(map, "{version} {{ global: {}; }};", names.join("; ")).expect("writing to a string");
    }
    let (assembly, script) = (out.join("verbs.s"), out.join("verbs.map"));
    std::fs::write(&assembly, source).expect("OUT_DIR can be written");
    std::fs::write(&script, map).expect("OUT_DIR can be written");
    // The compiler driver, which linking a cdylib needs, too.
    let linked = Command::new(std::env::var_os("CC").unwrap_or("cc".into()))
        .args(["-shared", "-nostdlib", "-Wl,-soname,libibverbs.so.1"])
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg("-o")
        .arg(out.join("libibverbs.so"))
        .arg(&assembly)
        .status()
        .expect("cc runs");
    assert!(linked.success(), "cc: {linked}");
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib=ibverbs");
}
