//! `ferroce capture`: runs a program, records its packets, then summarises them.

mod files;
mod pcapng;
mod recording;

pub(crate) use recording::{Recording, output_path};

use crate::failure::Failure;
use crate::program;
use clap::Parser;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Options of `ferroce capture`.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// File to write, in pcapng format. An existing file is kept: then, and for a second process of the program, the
    /// name is x.<pid>.pcapng instead of x.pcapng.
    #[arg(short, long, value_name = "FILE", default_value = "ferroce.pcapng")]
    output: PathBuf,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
    /// Program to run, with its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  ferroce capture -o x.pcapng -- ferroce perf write-bw 192.0.2.7 -n 100
  wireshark x.pcapng
  tshark -r x.pcapng -O infiniband

Signals and the exit status of the program are passed through.
A program that something else starts is recorded by FERROCE_CAPTURE=x.pcapng in its environment.";

/// Runs the command; the exit status is that of the program.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let recording = Recording::begin(&args.output)?;
    let (name, arguments) = args.command.split_first().expect("clap requires at least one word");
    let mut command = Command::new(name);
    command.args(arguments);
    recording.apply_to(&mut command);
    let code = program::exit_code(program::run_to_end(command)?);
    let summary = recording.end(code)?;
    match args.json {
        true => crate::print_json(&summary)?,
        false => eprint!("{}", summary.to_text("ferroce capture")),
    }
    Ok(ExitCode::from(code))
}
