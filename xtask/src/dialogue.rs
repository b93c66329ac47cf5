//! A helper process that answers each line with a line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::process::kill_tree;

/// The process and both of its pipes. Dropping it kills the process and its descendants.
pub(crate) struct Dialogue {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Dialogue {
    /// Starts the process. It inherits standard error.
    pub(crate) fn start(mut command: Command) -> Result<Dialogue, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(|error| format!("unshare did not start: {error}"))?;
        let input = child.stdin.take().ok_or("no pipe")?;
        let output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Dialogue { child, input, output })
    }

    /// Sends a line and waits for the answer.
    pub(crate) fn ask(&mut self, question: &str) -> Result<Value, String> {
        let mut line = String::new();
        let gone = |_| "the worker is gone".to_owned();
        writeln!(self.input, "{question}").map_err(gone)?;
        self.output.read_line(&mut line).map_err(gone)?;
        serde_json::from_str(&line).map_err(|_| format!("the worker died: {line:?}"))
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        kill_tree(self.child.id());
        let _ = self.child.wait();
    }
}
