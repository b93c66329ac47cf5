//! Sets the SONAME of the library, which a program linked with `-ljia` records.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libjia.so");
    // The page fault handler and its threads exist until the process ends, so the library is never unloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
