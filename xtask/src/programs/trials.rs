//! Tests of `ferroce run` itself: its guarantees besides starting a program.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::session::{Launcher, Program};
use super::worker::{answer, judged};
use crate::step::is_root;

/// A trial: its name, options of `ferroce run`, a shell script to run under it, and the expected outcome.
struct Trial {
    name: &'static str,
    options: &'static [&'static str],
    script: &'static str,
    status: i32,
    says: &'static str,
}

/// A whole transfer inside one script: a server, and a client once it listens.
macro_rules! transfer {
    ($port:literal) => {
        concat!(
            "ibv_rc_pingpong -g 0 -n 100 -p ",
            $port,
            " >/dev/null & server=$!\n",
            "until ss -ltn | grep -q ':",
            $port,
            "'; do kill -0 $server || exit 9; done\n",
            "ibv_rc_pingpong -g 0 -n 100 -p ",
            $port,
            " 127.0.0.1 || exit 1\nwait $server\n"
        )
    };
}

/// The same with a program whose two sides synchronise at the end. Otherwise a side may exit before the other one gets the last ACK,
/// which is an error on a lossy network.
macro_rules! bandwidth {
    ($port:literal) => {
        concat!(
            "ib_write_bw -F -n 100 -p ",
            $port,
            " >/dev/null & server=$!\n",
            "until ss -ltn | grep -q ':",
            $port,
            "'; do kill -0 $server || exit 9; done\n",
            "ib_write_bw -F -n 100 -p ",
            $port,
            " 127.0.0.1 || exit 1\nwait $server\n"
        )
    };
}

#[rustfmt::skip]
const TRIALS: &[Trial] = &[
    Trial { name: "exit status", options: &[], script: "exit 7", status: 7, says: "" },
    Trial { name: "exit status, waiting parent", options: &["--explain"], script: "exit 7", status: 7, says: "no process opened the device" },
    Trial { name: "exit status, shim", options: &["--no-namespace"], script: "exit 7", status: 7, says: "" },
    Trial { name: "signal", options: &[], script: "kill -TERM $$", status: 128 + 15, says: "" },
    Trial { name: "signal, waiting parent", options: &["--explain"], script: "kill -KILL $$", status: 128 + 9, says: "" },
    Trial { name: "sysfs and device node", options: &[], status: 0, says: "RoCE v2",
        script: "cat /sys/class/infiniband/ferroce0/ports/1/gid_attrs/types/0 && test -c /dev/infiniband/uverbs0 -a -w /dev/infiniband/uverbs0" },
    Trial { name: "sysfs and device node, shim", options: &["--no-namespace"], status: 0, says: "RoCE v2",
        script: "cat /sys/class/infiniband/ferroce0/ports/1/gid_attrs/types/0 && ls -lL /dev/infiniband/uverbs0 | grep ^c" },
    Trial { name: "sysfs from Python, shim", options: &["--no-namespace"], status: 0, says: "['ferroce0']",
        script: "/usr/bin/python3 -c 'import os; p = \"/sys/class/infiniband\"; print(os.listdir(p)); assert os.path.realpath(p + \"/ferroce0\").endswith(\"/ferroce-00.0/infiniband/ferroce0\"); open(p + \"/ferroce0/ports/1/gids/0\").read()'" },
    Trial { name: "children", options: &[], script: "sh -c 'sh -c ibv_devices'", status: 0, says: "ferroce0" },
    Trial { name: "children, shim", options: &["--no-namespace"], script: "sh -c 'sh -c ibv_devices'", status: 0, says: "ferroce0" },
    Trial { name: "run inside run", options: &[], script: "\"$FERROCE\" run -- ibv_devices", status: 0, says: "ferroce0" },
    Trial { name: "transfer", options: &[], script: transfer!("21001"), status: 0, says: "iters in" },
    Trial { name: "transfer, shim", options: &["--no-namespace"], script: transfer!("21002"), status: 0, says: "iters in" },
    Trial { name: "--explain", options: &["--explain"], script: transfer!("21003"), status: 0, says: "(ibv_rc_pingpong):" },
    Trial { name: "--loss", options: &["--loss", "2%", "--seed", "7", "--explain"], script: bandwidth!("21004"), status: 0, says: "injected_losses" },
    Trial { name: "--delay and --reorder", options: &["--delay", "100us", "--reorder", "1%"], script: bandwidth!("21005"), status: 0, says: "65536" },
    Trial { name: "--addr", options: &["--addr", "127.0.0.9"], script: "cat /sys/class/infiniband/ferroce0/ports/1/gids/0; ibv_devinfo -v", status: 0, says: "127.0.0.9" },
    Trial { name: "no such program", options: &[], script: "\"$FERROCE\" run -- no-such-program", status: 127, says: "does not exist" },
    Trial { name: "no library", options: &[], script: "FERROCE_LIB=/nowhere \"$FERROCE\" run -- true", status: 127, says: "FERROCE_LIB" },
    Trial { name: "not executable", options: &[], script: "\"$FERROCE\" run -- /etc/passwd", status: 126, says: "executable" },
];

/// Names of all trials.
pub(crate) fn names() -> Vec<&'static str> {
    TRIALS
        .iter()
        .map(|trial| trial.name)
        .chain(["--capture", "signal passed on", "as nobody", "as nobody, shim"])
        .collect()
}

/// Runs a trial in the worker.
pub(crate) fn run(launcher: &Launcher, name: &str) -> Value {
    match name {
        "--capture" => capture(launcher),
        "signal passed on" => signal(launcher),
        "as nobody" => nobody(launcher, ""),
        "as nobody, shim" => nobody(launcher, "--no-namespace"),
        _ => match TRIALS.iter().find(|trial| trial.name == name) {
            Some(trial) => scripted(launcher, trial),
            None => answer(Err(format!("no trial {name}")), Vec::new()),
        },
    }
}

const LIMIT: Duration = Duration::from_secs(40);

fn start(launcher: &Launcher, name: &str, options: &[&str], script: &str) -> Result<Program, String> {
    let script = format!("FERROCE='{}'; {script}", launcher.ferroce.display());
    let words = ["sh".to_owned(), "-c".to_owned(), script];
    launcher.with(options).start(&format!("run {name}"), &words)
}

fn scripted(launcher: &Launcher, trial: &Trial) -> Value {
    judged(start(launcher, trial.name, trial.options, trial.script), |program| {
        let found = shell_status(program.status(LIMIT)?);
        match program.output().contains(trial.says) {
            _ if found != trial.status => Err(format!("exit status {found}, expected {}", trial.status)),
            false => Err(format!("the output lacks {:?}", trial.says)),
            true => Ok(()),
        }
    })
}

fn shell_status(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// Checks that a capture is written, and the sentence with its packet count.
fn capture(launcher: &Launcher) -> Value {
    let file = launcher.logs.join("trial.pcapng");
    let _ = std::fs::remove_file(&file);
    let path = file.display().to_string();
    judged(start(launcher, "--capture", &["--capture", &path], transfer!("21006")), |program| {
        program.finish(LIMIT)?;
        let long = std::fs::metadata(&file).map_or(0, |meta| meta.len());
        match program.output().contains("packets in") && long > 1000 {
            true => Ok(()),
            false => Err(format!("{path} has {long} bytes")),
        }
    })
}

/// Checks that `ferroce run` forwards a signal to the program.
fn signal(launcher: &Launcher) -> Value {
    let script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    judged(start(launcher, "signal passed on", &["--explain"], script), |program| {
        program.wait_until(LIMIT, "ready", |program| program.output().contains("ready"))?;
        let _ = Command::new("kill").args(["-TERM", &program.id().to_string()]).status();
        let found = shell_status(program.status(LIMIT)?);
        match found == 3 && program.output().contains("caught") {
            true => Ok(()),
            false => Err(format!("exit status {found}, expected 3 and the word \"caught\"")),
        }
    })
}

/// ferroce must work without root: runs the same transfer as a user without rights.
fn nobody(launcher: &Launcher, option: &str) -> Value {
    if !is_root() {
        return serde_json::json!({"verdict": "skip", "reason": "everything ran as an ordinary user already"});
    }
    let port = if option.is_empty() { 21007 } else { 21008 };
    let script = format!(
        "cd /; f() {{ setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs -- \"$FERROCE\" run {option} -- \"$@\"; }}
        f sh -c 'id -u; cat /sys/class/infiniband/ferroce0/ports/1/state' || exit 1
        f ibv_rc_pingpong -g 0 -n 100 -p {port} >/dev/null & server=$!
        until ss -ltn | grep -q :{port}; do kill -0 $server || exit 9; done
        f ibv_rc_pingpong -g 0 -n 100 -p {port} 127.0.0.1 && wait $server"
    );
    // Not under `ferroce run`, which the script starts itself.
    let mut command = Command::new("sh");
    command.args(["-c", &format!("FERROCE='{}'; {script}", launcher.ferroce.display())]);
    judged(Program::of(command, &launcher.logs, &format!("as nobody {option}")), |program| {
        program.finish(LIMIT)?;
        let output = program.output();
        let missing = ["65534", "ACTIVE", "iters in"].into_iter().find(|text| !output.contains(text));
        missing.map_or(Ok(()), |text| Err(format!("the output lacks {text:?}")))
    })
}

/// Whether user 65534 can execute the command. A clone below /root is not accessible.
pub(crate) fn reachable_by_nobody(ferroce: &Path) -> bool {
    let id = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];
    Command::new("setpriv")
        .args(id)
        .arg("test")
        .arg("-x")
        .arg(ferroce)
        .status()
        .is_ok_and(|status| status.success())
}
