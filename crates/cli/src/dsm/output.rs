//! The output of all processes, each line with the rank in front.
//!
//! Lines are written whole, so that those of two processes never mix. Records for the launcher (see
//! crates/dsm/src/record.rs) are removed.

use parking_lot::Mutex;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Begins a record for the launcher.
const MARK: &[u8] = "\u{1e}ferroce-dsm-statistics ".as_bytes();
/// How long a pipe may stay open after its process has ended: a child process may hold it.
const PIPE_TIMEOUT: Duration = Duration::from_secs(1);

/// Takes the lines of all processes.
pub(crate) struct Output {
    label: bool,
    records: Arc<Mutex<Vec<Value>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Output {
    /// With or without the name of the process in front of each line.
    pub(crate) fn new(label: bool) -> Output {
        Output { label, records: Arc::default(), readers: Vec::new() }
    }

    /// Reads the pipe of the process of this name, and calls `write` for each line.
    pub(crate) fn follow(
        &mut self,
        name: impl std::fmt::Display,
        pipe: impl Read + Send + 'static,
        write: fn(&[u8]) -> io::Result<()>,
    ) {
        let label = if self.label { format!("[{name}] ") } else { String::new() };
        let records = self.records.clone();
        let forward = move || forward(BufReader::new(pipe), label.as_bytes(), &records, write);
        self.readers.push(std::thread::spawn(forward));
    }

    /// Waits for the remaining output; returns the records of the processes.
    pub(crate) fn finish(self) -> Vec<Value> {
        let deadline = Instant::now() + PIPE_TIMEOUT;
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut records = std::mem::take(&mut *self.records.lock());
        records.sort_by_key(|process| process["rank"].as_u64());
        records
    }
}

fn forward(
    mut pipe: impl BufRead,
    label: &[u8],
    records: &Mutex<Vec<Value>>,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) {
    let mut line = Vec::new();
    // If the reader closes the pipe (`| head`), the processes continue. Their output is read and dropped.
    let mut reader_open = true;
    loop {
        line.clear();
        line.extend_from_slice(label);
        match pipe.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if let Some(json) = line[label.len()..].strip_prefix(MARK) {
            if let Ok(value) = serde_json::from_slice(json) {
                records.lock().push(value);
            }
            continue;
        }
        if line.last() != Some(&b'\n') && !label.is_empty() {
            line.push(b'\n');
        }
        reader_open = reader_open && write(&line).is_ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded(label: &str, text: &str) -> (String, Vec<Value>) {
        let (records, mut output) = (Mutex::new(Vec::new()), Vec::new());
        forward(text.as_bytes(), label.as_bytes(), &records, |line| {
            output.extend_from_slice(line);
            Ok(())
        });
        (String::from_utf8(output).expect("text"), records.into_inner())
    }

    #[test]
    fn lines_are_labelled_and_whole() {
        assert_eq!(forwarded("[3] ", "a\n\nb").0, "[3] a\n[3] \n[3] b\n");
        assert_eq!(forwarded("", "a\nb").0, "a\nb");
    }

    #[test]
    fn records_for_the_launcher_are_removed() {
        let text = "a\n\u{1e}ferroce-dsm-statistics {\"rank\":1}\nb\n";
        let (output, records) = forwarded("[1] ", text);
        assert_eq!(output, "[1] a\n[1] b\n");
        assert_eq!(records[0]["rank"], 1);
    }
}
