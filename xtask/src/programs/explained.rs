//! Cases under `ferroce run --explain`, for middleware and applications. Its report must show that the programs used ferroce.

use std::time::Duration;

use serde_json::Value;

use super::session::{Launcher, Program};
use super::worker::answer;

/// Time limit of a program, which may share two processors with the other worker.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// The ports of a table of cases: the first, and how many each case has.
pub(super) struct Ports {
    pub(super) first: u16,
    pub(super) per_case: u16,
}

/// A running case.
pub(super) struct Session<'a> {
    pub(super) launcher: Launcher,
    pub(super) name: &'a str,
    /// The first of its ports.
    pub(super) port: u16,
}

/// Finds the case `name` and runs it by `work`, which appends the last lines of all programs to its third argument.
pub(super) fn run<C>(
    launcher: &Launcher,
    name: &str,
    (cases, name_of): (&'static [C], impl Fn(&C) -> &str),
    ports: &Ports,
    work: impl FnOnce(&Session, &C, &mut Vec<String>) -> Result<(), String>,
) -> Value {
    let Some(at) = cases.iter().position(|case| name_of(case) == name) else {
        return answer(Err(format!("no case {name}")), Vec::new());
    };
    let port = ports.first + at as u16 * ports.per_case;
    let session = Session { launcher: launcher.with(&["--explain"]), name, port };
    let mut tails = Vec::new();
    let outcome = work(&session, &cases[at], &mut tails);
    answer(outcome, tails)
}

pub(super) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

impl Session<'_> {
    /// Runs one program, which must succeed. Returns its output.
    pub(super) fn alone(&self, title: &str, line: &str, tails: &mut Vec<String>) -> Result<String, String> {
        let mut program = self.launcher.start(title, &words(line))?;
        let outcome = program.finish(LIMIT);
        tails.extend(program.tail());
        outcome.map(|()| program.output())
    }

    /// Runs a server and, once it is ready, a client. Returns their outputs. Both must succeed and have used the device.
    pub(super) fn pair(
        &self,
        ready: impl Fn(&Program) -> bool,
        [server, client]: [&str; 2],
        tails: &mut Vec<String>,
    ) -> Result<[String; 2], String> {
        let lines = [&words(server)[..], &words(client)];
        let [server, client] = self.launcher.pair(self.name, lines, ready, LIMIT, tails)?;
        carried(&client, 1)?;
        opened(&server)?;
        Ok([server, client])
    }
}

/// An output must have each of these texts.
pub(super) fn contains(output: &str, texts: &[&str]) -> Result<(), String> {
    match texts.iter().find(|text| !output.contains(**text)) {
        Some(text) => Err(format!("the output lacks {text:?}")),
        None => Ok(()),
    }
}

/// Checks that the report of `ferroce run --explain` counts at least this many packets and one-sided operations without packets.
pub(super) fn carried(output: &str, at_least: u64) -> Result<(), String> {
    match work_done(output) {
        done if done >= at_least => Ok(()),
        done => Err(format!(
            "ferroce sent {done} packets or did that many operations, at least {at_least} expected"
        )),
    }
}

/// Checks that the report shows an open device. A server of one-sided operations may send no packet: on one host the client does all
/// work.
pub(super) fn opened(output: &str) -> Result<(), String> {
    match output.contains(" packets sent, ") {
        true => Ok(()),
        false => Err("the server did not open the device".to_owned()),
    }
}

fn work_done(output: &str) -> u64 {
    let number_before = |what: &str| {
        let number = |line: &str| line.split_once(what)?.0.rsplit(' ').next()?.parse::<u64>().ok();
        output.lines().filter_map(number).sum::<u64>()
    };
    number_before(" packets sent")
        + number_before(" in mapped memory")
        + number_before(" copied by the kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_all_processes_count() {
        let output = "x\nferroce run: process 1 (mpi): 5 completions, 0 of them failed, 0 flushed; 2836 packets sent, 2 received, 1 sent again\n\
                    ferroce run: process 2 (mpi): 7 completions, 0 of them failed, 0 flushed; 4 packets sent, 2 received, 0 sent again\n";
        assert_eq!(work_done(output), 2840);
        assert_eq!(work_done("nothing"), 0);
    }
}
