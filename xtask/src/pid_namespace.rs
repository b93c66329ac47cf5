//! A PID namespace for all that xtask starts: when xtask ends, even by SIGKILL, the kernel kills every process in it.
//!
//! xtask starts itself again inside. A death signal or a process group alone would miss grandchildren and daemons.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::process::succeed;
use crate::step::{fail, is_root};

/// Set inside the namespace.
const INSIDE: &str = "XTASK_PID_NAMESPACE";

/// Process 1 of the namespace, which also waits for orphans. Process IDs continue those outside, because names of temporary files contain
/// them. Only this needs the capabilities of a user namespace.
const INIT: &str = "{ echo \"$1\" >/proc/sys/kernel/ns_last_pid; } 2>/dev/null
shift
setpriv --inh-caps=-all --ambient-caps=-all -- \"$@\"
exit $?";

/// A command that runs `program` in a new namespace, which ends with the calling thread.
fn inside(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.args(["sh", "-c", INIT, "sh", &std::process::id().to_string()]).arg(program).env(INSIDE, "1");
    command
}

/// Runs this process again in a new namespace, to its end. `None` if it is inside already, or if no namespace can be made.
pub(crate) fn run_again() -> Option<ExitCode> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    if let Err(why) = succeed(&mut inside(Path::new("true"))) {
        eprintln!("no PID namespace can be made here, so programs may outlive xtask if it is killed: {why}");
        return None;
    }
    let again = std::env::current_exe()
        .and_then(|program| inside(&program).args(std::env::args_os().skip(1)).status());
    Some(match again.map(|status| status.code()) {
        Ok(Some(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Ok(None) => ExitCode::FAILURE,
        Err(error) => fail(&format!("xtask did not start again: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;

    /// In the place of the xtask inside: a child, and a grandchild in a session of its own. Both hold the output.
    const PROGRAM: &str = "setsid sh -c 'sleep 20; echo survived' &
echo started
wait
";

    // Not an integration test: cargo would build xtask for it again, and replace the executable of the xtask that runs the tests.
    #[test]
    fn programs_end_with_a_killed_xtask() {
        if let Err(why) = succeed(&mut inside(Path::new("true"))) {
            println!("SKIPPED: no PID namespace can be made here: {why}");
            return;
        }
        for signal in ["KILL", "TERM"] {
            let mut again = inside(Path::new("sh"));
            again.args(["-c", PROGRAM]);
            // In the place of the xtask outside.
            let mut xtask = Command::new("sh");
            xtask.args(["-c", "\"$@\"; exit", "sh"]).arg(again.get_program()).args(again.get_args());
            let mut xtask = xtask.stdout(Stdio::piped()).spawn().expect("sh starts");
            let mut output = BufReader::new(xtask.stdout.take().expect("a pipe"));
            let mut started = String::new();
            output.read_line(&mut started).expect("output");
            assert_eq!(started, "started\n");
            let killed = Command::new("kill").args(["-s", signal, &xtask.id().to_string()]).status();
            assert!(killed.expect("kill starts").success());
            // The output ends with the last process that holds it.
            let mut rest = String::new();
            output.read_to_string(&mut rest).expect("output");
            xtask.wait().expect("it has ended");
            assert_eq!(rest, "", "after SIG{signal}");
        }
    }
}
