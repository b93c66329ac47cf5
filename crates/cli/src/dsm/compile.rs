//! `ferroce dsm cc`: the compiler with the paths of jia.h and libjia.

use crate::failure::Failure;
use crate::program::{self, NOT_FOUND};
use crate::run::library;
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const EXAMPLES: &str = "\
Examples:
  ferroce dsm cc -O2 mm.c -o mm             compile a program against jia.h
  ferroce dsm cc --static -O2 mm.c -o mm    into a program that needs no other file
  ferroce dsm cc --show mm.c                print the command";

/// Options of `ferroce dsm cc`.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Link the library statically, so that the program needs no other file to run.
    #[arg(long)]
    r#static: bool,
    /// Print the command instead of running it.
    #[arg(long)]
    show: bool,
    /// Arguments of the compiler: -O2 mm.c -o mm
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Runs the compiler; the exit status is the compiler's.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (include, library) = (include_folder()?, library(args.r#static)?);
    let mut command = compiler();
    command.arg("-I").arg(include).args(&args.arguments);
    match args.r#static {
        true => {
            command.arg(&library).args(["-lpthread", "-ldl"]);
        }
        false => {
            let folder = library.parent().map(PathBuf::from).unwrap_or_default();
            let mut run_path = OsString::from("-Wl,-rpath,");
            run_path.push(&folder);
            command.arg("-L").arg(folder).arg("-ljia").arg(run_path);
        }
    }
    command.arg("-lm");
    if args.show {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        crate::print_text(&words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(program::exit_code(program::run_to_end(command)?)))
}

/// The compiler in CC, which as in make may have options, or cc.
fn compiler() -> Command {
    let named = std::env::var_os("CC").unwrap_or_default();
    let words = named.as_bytes().split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut words: Vec<&OsStr> = words.map(OsStr::from_bytes).collect();
    if words.iter().any(|word| is_this_command(word)) {
        eprintln!("ferroce dsm cc: CC is {named:?}, which is this command; cc is used instead.");
        words.clear();
    }
    let mut command = Command::new(words.first().unwrap_or(&OsStr::new("cc")));
    // A script in CC that calls this command must not be called again.
    command.args(words.iter().skip(1)).env_remove("CC");
    command
}

fn is_this_command(word: &OsStr) -> bool {
    let own = std::env::current_exe().and_then(|path| path.canonicalize());
    let named = program::search(word).and_then(|path| path.canonicalize().ok());
    named.is_some() && named == own.ok()
}

fn library(archive: bool) -> Result<PathBuf, Failure> {
    let name = if archive { "libjia.a" } else { "libjia.so" };
    library::next_to_command(name)?.ok_or_else(|| missing(name))
}

/// An installation has `bin/ferroce` and `include/ferroce`; in a source tree the command lies in `target/release`.
fn include_folder() -> Result<PathBuf, Failure> {
    let own = library::own_folder()?;
    let candidates = ["../include/ferroce", "../../crates/ffi/jia/include"].map(|place| own.join(place));
    let found = candidates.into_iter().find(|folder| folder.join("jia.h").is_file());
    found.map(|folder| folder.canonicalize().unwrap_or(folder)).ok_or_else(|| missing("jia.h"))
}

fn missing(what: &str) -> Failure {
    Failure::new(format!("{what} is not where this command searches for it"))
        .exit_with(NOT_FOUND)
        .advise("Install it: cargo xtask install; in a source tree: cargo build --release -p ferroce-jia")
}
