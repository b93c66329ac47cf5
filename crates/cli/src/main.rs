//! The `ferroce` command; the library holds everything.

fn main() -> std::process::ExitCode {
    ferroce_cli::main()
}
