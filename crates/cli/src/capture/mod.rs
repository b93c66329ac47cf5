//! `ferroce capture`: run a program with its packets recorded, then say what was recorded.

mod files;
mod pcapng;
mod signals;

use crate::child;
use crate::failure::Failure;
use clap::Parser;
use serde::Serialize;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

/// The NIC of every process that finds this variable records its packets to the file it names.
const CAPTURE_VARIABLE: &str = "FERROCE_CAPTURE";

/// Options of `ferroce capture`.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// File to write, in pcapng format. A second process of the program writes to FILE.<pid>.pcapng beside it.
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

/// What was recorded.
#[derive(Serialize)]
struct Summary {
    packets: u64,
    files: Vec<RecordedFile>,
    exit_status: u8,
}

#[derive(Serialize)]
struct RecordedFile {
    path: PathBuf,
    packets: u64,
    /// The file ends in the middle of a packet, as after a kill.
    truncated: bool,
}

/// Runs the command; the exit status is that of the program.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let output = absolute(&args.output)?;
    let before = files::snapshot(&output);
    let status = run_command(args, &output)?;
    let code = exit_code(status);
    let mut summary = Summary { packets: 0, files: Vec::new(), exit_status: code };
    for path in files::changed(&output, &before) {
        let count = pcapng::count_packets(&path)
            .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))?;
        summary.packets += count.packets;
        summary.files.push(RecordedFile { path, packets: count.packets, truncated: count.truncated });
    }
    if args.json {
        crate::print_json(&summary)?;
    } else {
        eprint!("{}", summary.to_text());
    }
    Ok(ExitCode::from(code))
}

fn absolute(output: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(output)
        .map_err(|error| Failure::io(format!("{} is no usable path", output.display()), error))?;
    match path.parent() {
        Some(folder) if !folder.is_dir() => {
            Err(Failure::new(format!("there is no folder {}", folder.display()))
                .advise("Create it, or name another file with -o"))
        }
        _ if path.is_dir() => Err(Failure::new(format!("{} is a folder", path.display()))
            .advise("Name a file, for example -o x.pcapng")),
        _ => Ok(path),
    }
}

fn run_command(args: &Args, output: &Path) -> Result<ExitStatus, Failure> {
    let (program, arguments) = args.command.split_first().expect("clap requires at least one word");
    let mut command = Command::new(program);
    command.args(arguments).env(CAPTURE_VARIABLE, output);
    child::die_with_parent(&mut command, libc::SIGTERM);
    let blocked = signals::Blocked::new();
    blocked.release_in(&mut command);
    let child = command.spawn().map_err(|error| {
        let failure = Failure::io(format!("cannot start {}", Path::new(program).display()), &error);
        match error.kind() {
            ErrorKind::NotFound => failure.advise("Check the name, or give its path"),
            _ => failure,
        }
    })?;
    blocked.wait(child).map_err(|error| Failure::io("cannot wait for the program", error))
}

/// As the shell reports it: 128 + the signal that killed the program.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

impl Summary {
    fn to_text(&self) -> String {
        let Some(first) = self.files.first() else {
            return "ferroce capture: no packet was recorded; the program opened no ferroce device.\n".into();
        };
        let mut text =
            format!("ferroce capture: {} in {}", plural(self.packets, "packet"), first.path.display());
        match self.files.len() - 1 {
            0 => {}
            more => text += &format!(" and {} of its other processes", plural(more as u64, "file")),
        }
        text += ".\n";
        for file in self.files.iter().filter(|_| self.files.len() > 1) {
            text += &format!("  {:>9}  {}\n", file.packets, file.path.display());
        }
        if self.files.iter().any(|file| file.truncated) {
            text += "  A file ends in the middle of a packet, as after a kill; the packets before it are whole.\n";
        }
        let list: Vec<_> = self.files.iter().map(|file| file.path.display().to_string()).collect();
        match list.as_slice() {
            [one] => {
                text += &format!("  Open it: wireshark {one}\n  Or here: tshark -r {one} -O infiniband\n")
            }
            many => {
                text += &format!(
                    "  Open all: mergecap -w all.pcapng {} && wireshark all.pcapng\n",
                    many.join(" ")
                )
            }
        }
        text
    }
}

fn plural(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(libc::SIGKILL)), 137);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let failure = absolute(Path::new("/nowhere/at/all/x.pcapng")).expect_err("no such folder");
        assert_eq!(failure.what(), "there is no folder /nowhere/at/all");
    }
}
