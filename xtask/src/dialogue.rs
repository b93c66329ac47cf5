//! A helper process that answers each line with a line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::Value;

use crate::process::{LIMIT, kill_tree};

/// The process and both of its pipes. Dropping it kills the process and its descendants.
pub(crate) struct Dialogue {
    child: Child,
    input: ChildStdin,
    /// The lines that it prints.
    output: Receiver<String>,
    /// Time limit of an answer.
    limit: Duration,
}

impl Dialogue {
    /// Starts the process. It inherits standard error.
    pub(crate) fn start(mut command: Command) -> Result<Dialogue, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|error| format!("{program} did not start: {error}"))?;
        let input = child.stdin.take().ok_or("no pipe")?;
        let pipe = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let (send, output) = mpsc::channel();
        std::thread::spawn(move || pipe.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Ok(Dialogue { child, input, output, limit: LIMIT })
    }

    /// Sends a line and waits for the answer. A process that does not answer in time is killed: a late answer would be taken for that
    /// of the next question.
    pub(crate) fn ask(&mut self, question: &str) -> Result<Value, String> {
        writeln!(self.input, "{question}").map_err(|_| "the worker is gone".to_owned())?;
        let line = self.output.recv_timeout(self.limit).map_err(|why| match why {
            RecvTimeoutError::Disconnected => "the worker died".to_owned(),
            RecvTimeoutError::Timeout => {
                kill_tree(self.child.id());
                format!("the worker did not answer within {} s and was killed", self.limit.as_secs())
            }
        })?;
        serde_json::from_str(&line).map_err(|_| format!("the worker died: {line:?}"))
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        kill_tree(self.child.id());
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Dialogue {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Dialogue::start(command).expect("sh")
    }

    #[test]
    fn each_line_has_its_answer() {
        let mut worker = shell("read line; echo \"[$line]\"; read line; exit");
        assert_eq!(worker.ask("7"), Ok(serde_json::json!([7])));
        assert_eq!(worker.ask("8"), Err("the worker died".to_owned()));
    }

    #[test]
    fn a_worker_that_does_not_answer_is_killed() {
        let mut worker = shell("read line; sleep 600; echo 1; echo 2");
        worker.limit = Duration::from_secs(1);
        assert!(worker.ask("7").is_err_and(|why| why.contains("within 1 s")));
        assert!(worker.ask("8").is_err(), "the late answer is not that of another question");
    }
}
