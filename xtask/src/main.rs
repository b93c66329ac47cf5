//! `cargo xtask`. All code is in the library, because the benchmarks of crates/bench use parts of it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    xtask::main()
}
