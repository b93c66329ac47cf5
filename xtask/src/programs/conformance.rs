//! rdma-core's conformance suite, as Debian's python3-pyverbs ships it. It runs by module, and each test has its own result.
//!
//! If a test kills the interpreter, only that test fails: another round runs the remaining tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::session::Launcher;
use crate::process::succeed;

/// Modules that need no vendor's hardware, with the number of their tests. The longest are first, so that two workers end at
/// about the same time.
pub(crate) const MODULES: [(&str, usize); 20] = [
    ("test_mr", 27),
    ("test_qp", 26),
    ("test_qpex", 20),
    ("test_odp", 17),
    ("test_device", 22),
    ("test_rdmacm", 10),
    ("test_atomic", 9),
    ("test_parent_domain", 6),
    ("test_flow", 5),
    ("test_cqex", 5),
    ("test_pd", 4),
    ("test_cq", 4),
    ("test_tag_matching", 4),
    ("test_addr", 3),
    ("test_relaxed_ordering", 3),
    ("test_cq_events", 2),
    ("test_fork", 1),
    ("test_shared_pd", 1),
    ("test_rss_traffic", 1),
    ("test_cuda_dmabuf", 1),
];

/// Folder of the suite in the package.
pub(crate) const SOURCE: &str = "/usr/share/doc/rdma-core/tests";
/// The only Python that has pyverbs.
pub(crate) const PYTHON: &str = "/usr/bin/python3";
/// Time limit of a module.
const LIMIT: Duration = Duration::from_secs(240);
const RUNNER: &str = include_str!("conformance.py");

/// Outcome of one test: `pass`, `skip`, `fail` or `error`, and why.
pub(crate) type Outcomes = BTreeMap<String, (String, String)>;

/// Copies and unpacks the suite. The parent does this once.
pub(crate) fn unpack(into: &Path) -> Result<(), String> {
    let script = "rm -rf \"$2\" && mkdir -p \"$2\" && cp -r \"$1\" \"$2/tests\" && gunzip \"$2\"/tests/*.gz";
    succeed(Command::new("sh").args(["-c", script, "sh", SOURCE]).arg(into))
        .map_err(|why| format!("{SOURCE}: {why}"))?;
    std::fs::write(into.join("conformance.py"), RUNNER).map_err(|error| error.to_string())
}

/// The folder that [`unpack`] has filled.
pub(crate) fn folder(logs: &Path) -> PathBuf {
    logs.join("pyverbs")
}

/// Runs all tests of a module in the worker.
pub(crate) fn run_module(launcher: &Launcher, module: &str) -> Value {
    let mut outcomes = Outcomes::new();
    let mut wanted = vec![format!("tests.{module}")];
    let mut tail = Vec::new();
    // Each round gives a result to at least one more test, so the loop ends.
    while !wanted.is_empty() {
        let (round, output) = run_round(launcher, module, &wanted);
        tail = output;
        if round.listed.is_empty() {
            return json!({"verdict": "fail", "reason": format!("{module} listed no tests"), "tail": tail});
        }
        let before = outcomes.len();
        outcomes.extend(round.judged);
        if let Some(test) = round.open {
            let why = format!("the interpreter died or hung in it: {}", round.end);
            outcomes.insert(test, ("error".into(), why));
        }
        wanted = round.listed.into_iter().filter(|test| !outcomes.contains_key(test)).collect();
        if outcomes.len() == before {
            wanted.drain(..).for_each(|test| {
                outcomes.insert(test, ("error".into(), format!("never started: {}", round.end)));
            });
        }
    }
    json!({"verdict": "pass", "tests": outcomes, "tail": tail})
}

/// The result of one run of the interpreter.
#[derive(Default)]
struct Round {
    listed: Vec<String>,
    judged: Outcomes,
    /// The test that was running when the interpreter ended.
    open: Option<String>,
    end: String,
}

fn run_round(launcher: &Launcher, module: &str, wanted: &[String]) -> (Round, Vec<String>) {
    let folder = folder(&launcher.logs);
    let mut words = vec![PYTHON.to_owned(), folder.join("conformance.py").display().to_string()];
    words.push(folder.join("tests").display().to_string());
    words.extend_from_slice(wanted);
    let mut program = match launcher.start(module, &words) {
        Ok(program) => program,
        Err(reason) => return (Round { end: reason, ..Round::default() }, Vec::new()),
    };
    let end = match program.status(LIMIT) {
        Ok(status) => status.to_string(),
        Err(reason) => reason,
    };
    let tail = program.tail();
    let mut round = read(&program.output());
    round.end = end;
    (round, tail)
}

fn read(output: &str) -> Round {
    let mut round = Round::default();
    // Another process may have written the beginning of the line.
    let events = output.lines().filter_map(|line| line.split_once("FERROCE-EVENT ").map(|(_, event)| event));
    for event in events {
        let Ok([kind, test, reason]) = serde_json::from_str::<[String; 3]>(event) else { continue };
        match kind.as_str() {
            "listed" => round.listed.push(test),
            "start" => round.open = Some(test),
            "done" => round.open = None,
            // A class whose setup fails reports a result under its own name. Its tests never start.
            _ => {
                round.open = None;
                let worst =
                    round.judged.get(&test).is_some_and(|(before, _)| before == "error" || before == "fail");
                if !worst {
                    round.judged.insert(test, (kind, reason));
                }
            }
        }
    }
    round
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generic_tests_are_171() {
        assert_eq!(MODULES.iter().map(|(_, tests)| tests).sum::<usize>(), 171);
    }

    #[test]
    fn a_test_that_kills_the_interpreter_is_named() {
        let output = "FERROCE-EVENT [\"listed\", \"t.a\", \"\"]\nFERROCE-EVENT [\"listed\", \"t.b\", \"\"]\n\
            noise FERROCE-EVENT [\"start\", \"t.a\", \"\"]\nFERROCE-EVENT [\"skip\", \"t.a\", \"no GPU\"]\n\
            FERROCE-EVENT [\"start\", \"t.b\", \"\"]\nSegmentation fault\n";
        let round = read(output);
        assert_eq!(round.listed, ["t.a", "t.b"]);
        assert_eq!(round.judged["t.a"], ("skip".into(), "no GPU".into()));
        assert_eq!(round.open.as_deref(), Some("t.b"));
    }
}
