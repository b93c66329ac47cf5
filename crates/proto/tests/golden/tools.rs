//! Foreign programs that judge our bytes. One that is missing fails the test when `FERROCE_REQUIRE_TOOLS=1` is set, and
//! is announced by a line that starts with `SKIPPED:` otherwise.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// `tshark`, if it is there.
pub(crate) fn tshark() -> Option<Command> {
    let found = works(Command::new("tshark").arg("--version"));
    or_skip("tshark", found).then(|| Command::new("tshark"))
}

/// The Python of `FERROCE_PYTHON` (or `python3`), if it has scapy with the RoCE layer.
pub(crate) fn python_with_scapy() -> Option<Command> {
    let python = env::var_os("FERROCE_PYTHON").unwrap_or_else(|| "python3".into());
    let found = works(Command::new(&python).args(["-c", "import scapy.contrib.roce"]));
    or_skip("scapy", found).then(|| Command::new(&python))
}

/// What a command prints. It must succeed.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().expect("the tool starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn works(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn or_skip(tool: &str, found: bool) -> bool {
    if !found {
        let required = env::var_os("FERROCE_REQUIRE_TOOLS").is_some_and(|v| v == "1");
        assert!(!required, "{tool} is missing, and FERROCE_REQUIRE_TOOLS=1 asks for it");
        // The harness may have begun a line of its own.
        println!("\nSKIPPED: {tool} is missing, so it has not judged the golden packets");
    }
    found
}

/// A file that goes away with its owner.
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    /// Creates it with that content; `name` must be unique within this test program.
    pub(crate) fn new(name: &str, content: &[u8]) -> TempFile {
        let path = env::temp_dir().join(format!("ferroce-{}-{name}", std::process::id()));
        fs::write(&path, content).expect("the temporary directory is writable");
        TempFile(path)
    }
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // Nothing depends on it being gone.
        let _ = fs::remove_file(&self.0);
    }
}
