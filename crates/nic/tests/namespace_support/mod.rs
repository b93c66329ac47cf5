//! Network namespaces for tests that repeat themselves in one.

use std::process::Command;

/// Options of `unshare`: a user namespace in which the process is root, with its own network.
pub(crate) const UNSHARE: [&str; 3] = ["--user", "--map-root-user", "--net"];

/// Whether such a namespace can be made, with `ip` in it. If not, the test is skipped, even where no tool may be missing: a container
/// that refuses namespaces lacks no tool.
pub(crate) fn can_make_namespace() -> bool {
    let why = match Command::new("unshare").args(UNSHARE).args(["ip", "link"]).output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("unshare did not start: {error}"),
    };
    println!("SKIPPED: no network namespace can be made here: {why}");
    false
}
