//! `cargo xtask`; the library holds everything, because the benchmarks of crates/bench use parts of it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    xtask::main()
}
