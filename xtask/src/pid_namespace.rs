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
