//! Gives the library its name, so that a program linked with `-ljia` asks the loader for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libjia.so");
    // The handler of page faults and the threads behind it stay for the whole life of a process.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
