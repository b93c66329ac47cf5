//! `--timeline`: records packets and operations of the program, and writes the page of `ferroce timeline` at the end.
//!
//! Both stay in the folder of the page. Files of an earlier run may be there too, so the command that reads those of this run is printed.

use crate::capture::{Recording, output_path};
use crate::failure::Failure;
use crate::timeline;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The C library of every process that finds this variable appends its posts and completions to the file it names.
const OPERATIONS_VARIABLE: &str = "FERROCE_OPERATIONS";

/// A page that is written at the end.
pub(super) struct Timeline {
    page: PathBuf,
    operations: PathBuf,
}

impl Timeline {
    /// Checks the path; a page that cannot be written is reported before the program starts. Operations of an earlier run are removed.
    pub(super) fn begin(page: &Path) -> Result<Timeline, Failure> {
        let page = output_path(page)?;
        let operations = page.with_extension("operations.jsonl");
        match std::fs::remove_file(&operations) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Failure::io(format!("cannot replace {}", operations.display()), error))
            }
            _ => Ok(Timeline { page, operations }),
        }
    }

    /// The recording of packets, if the user does not name one.
    pub(super) fn record_packets(&self) -> Result<Recording, Failure> {
        Recording::begin(&self.page.with_extension("pcapng"))
    }

    /// Makes the program and its child processes record their operations.
    pub(super) fn apply_to(&self, command: &mut Command) {
        command.env(OPERATIONS_VARIABLE, &self.operations);
    }

    /// Writes the page of these captures. Returns what to print.
    pub(super) fn end(self, mut captures: Vec<PathBuf>) -> Result<String, Failure> {
        captures.extend(Some(self.operations).filter(|path| path.exists()));
        if captures.is_empty() {
            return Ok("ferroce run: there is no timeline; the program opened no ferroce device.".into());
        }
        let summary = timeline::write(&captures, &self.page)?;
        let files: Vec<String> = captures.iter().map(|path| path.display().to_string()).collect();
        Ok(format!("{summary}\nRead it again: ferroce timeline {}", files.join(" ")))
    }
}
