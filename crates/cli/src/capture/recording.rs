//! A recording: the file that a program's processes write their packets to, and its content at the end.

use super::files;
use super::pcapng::{self, Count};
use crate::failure::Failure;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The NIC of every process that finds this variable records its packets to the file it names.
const CAPTURE_VARIABLE: &str = "FERROCE_CAPTURE";

/// A recording in progress.
pub(crate) struct Recording {
    output: PathBuf,
    before: files::Snapshot,
}

/// What was recorded.
#[derive(Serialize)]
pub(crate) struct Summary {
    packets: u64,
    files: Vec<RecordedFile>,
    exit_status: u8,
}

#[derive(Serialize)]
struct RecordedFile {
    path: PathBuf,
    #[serde(flatten)]
    count: Count,
}

impl Recording {
    /// Prepares a recording to `output`.
    pub(crate) fn begin(output: &Path) -> Result<Recording, Failure> {
        let output = output_path(output)?;
        let before = files::snapshot(&output);
        Ok(Recording { output, before })
    }

    /// Sets the variable for a program and all its child processes.
    pub(crate) fn apply_to(&self, command: &mut Command) {
        command.env(CAPTURE_VARIABLE, &self.output);
    }

    /// The files that were recorded so far.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        files::changed(&self.output, &self.before)
    }

    /// Counts what was recorded.
    pub(crate) fn end(self, exit_status: u8) -> Result<Summary, Failure> {
        let mut summary = Summary { packets: 0, files: Vec::new(), exit_status };
        for path in files::changed(&self.output, &self.before) {
            let count = pcapng::count_packets(&path)
                .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))?;
            summary.packets += count.packets;
            summary.files.push(RecordedFile { path, count });
        }
        Ok(summary)
    }
}

/// The absolute path of a file to write; its folder must exist.
pub(crate) fn output_path(output: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(output)
        .map_err(|error| Failure::io(format!("{} is not a usable path", output.display()), error))?;
    match path.parent() {
        Some(folder) if !folder.is_dir() => {
            Err(Failure::new(format!("the folder {} does not exist", folder.display()))
                .advise("Create it, or name another file"))
        }
        _ if path.is_dir() => Err(Failure::new(format!("{} is a folder", path.display()))
            .advise("Name a file in it, for example x.pcapng")),
        _ => Ok(path),
    }
}

impl Summary {
    /// The summary in sentences. The first begins with `who`.
    pub(crate) fn to_text(&self, who: &str) -> String {
        let Some(first) = self.files.first() else {
            return format!("{who}: no packet was recorded; the program opened no ferroce device.\n");
        };
        let mut text = format!("{who}: {} in {}", plural(self.packets, "packet"), first.path.display());
        match self.files.len() - 1 {
            0 => {}
            more => text += &format!(" and {} of its other processes", plural(more as u64, "file")),
        }
        text += ".\n";
        for file in self.files.iter().filter(|_| self.files.len() > 1) {
            text += &format!("  {:>9}  {}\n", file.count.packets, file.path.display());
        }
        if self.files.iter().any(|file| file.count.truncated) {
            text += "  A file ends in the middle of a packet, as after a kill; the packets before it are whole.\n";
        }
        let list: Vec<_> = self.files.iter().map(|file| file.path.display().to_string()).collect();
        match list.as_slice() {
            [one] => text += &format!("  Open it: wireshark {one}\n  Or here: ferroce timeline {one}\n"),
            many => {
                text += &format!(
                    "  Open all: mergecap -w all.pcapng {0} && wireshark all.pcapng\n  Or here: ferroce timeline {0}\n",
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
    fn a_missing_folder_is_named() {
        let failure = output_path(Path::new("/nowhere/at/all/x.pcapng")).expect_err("no such folder");
        assert_eq!(failure.what(), "the folder /nowhere/at/all does not exist");
    }
}
