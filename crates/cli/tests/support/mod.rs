//! Running the command from outside, with a watchdog: nothing here may hang.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Far more than any of our command lines takes, on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

/// The command, its arguments parted by spaces. Its RDMA traffic keeps to a loopback address of this test process.
pub(crate) fn ferroce(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroce"));
    let [.., b, c] = std::process::id().to_be_bytes();
    command.args(line.split_whitespace()).stdin(Stdio::null()).env("FERROCE_ADDR", format!("127.79.{b}.{c}"));
    command
}

/// A user without rights cannot run cargo here, nor write to its folder; then the libraries are built already.
pub(crate) fn may_build() -> bool {
    std::env::var_os("FERROCE_TEST_LIBRARY").is_none()
}

/// Where tests may write.
pub(crate) fn scratch() -> PathBuf {
    if may_build() { PathBuf::from(env!("CARGO_TARGET_TMPDIR")) } else { std::env::temp_dir() }
}

/// Whether root runs the tests.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Whether C programs can be compiled here; if not, the reason is printed.
pub(crate) fn has_compiler() -> bool {
    let found = Command::new("cc").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        println!("SKIPPED: cc is missing; it is in the package gcc");
    }
    found
}

/// Whether C programs with verbs and connections can be compiled here; if not, the reason is printed.
pub(crate) fn has_headers() -> bool {
    let found = Path::new("/usr/include/rdma/rdma_cma.h").exists();
    if !found {
        println!("SKIPPED: <rdma/rdma_cma.h> is missing; it is in the package librdmacm-dev");
    }
    found && has_compiler()
}

/// Builds a library that the command searches next to itself: cargo does not build a cdylib for a test that only loads it.
pub(crate) fn build_library(package: &str) {
    if may_build() {
        let built = Command::new(env!("CARGO")).args(["build", "--quiet", "--package", package]).status();
        assert!(built.expect("cargo runs").success(), "cargo build --package {package}");
    }
}

/// An example of crates/dsm. `None`, with the reason printed, if it cannot be built.
pub(crate) fn example(name: &str) -> Option<PathBuf> {
    if !may_build() {
        println!("SKIPPED: the example is built by cargo, which this user may not run");
        return None;
    }
    let example = ["build", "--quiet", "--package", "ferroce-dsm", "--example", name];
    assert!(Command::new(env!("CARGO")).args(example).status().expect("cargo runs").success());
    Some(Path::new(env!("CARGO_BIN_EXE_ferroce")).with_file_name("examples").join(name))
}

/// Compiles C with these arguments, in `folder`.
#[track_caller]
pub(crate) fn cc(folder: &Path, line: &str) {
    let found = outcome(Command::new("cc").args(line.split_whitespace()).current_dir(folder));
    assert_eq!(found.code, 0, "cc {line}: {found:?}");
}

/// What a command ended with.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Exit status.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Outcome {
    /// Standard output, which must be JSON, of a command that must have succeeded.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn outcome(command: &mut Command) -> Outcome {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    finish(child)
}

/// Waits for the end of a command whose output is piped.
#[track_caller]
pub(crate) fn finish(child: Child) -> Outcome {
    let id = child.id();
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    let Ok(output) = wait.recv_timeout(HANG_TIMEOUT) else {
        let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
        panic!("watchdog: the command did not end within {HANG_TIMEOUT:?}");
    };
    let Output { status, stdout, stderr } = output.expect("an end");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Outcome { code: status.code().expect("no signal"), stdout: text(stdout), stderr: text(stderr) }
}

/// A server of one test on a free port. Killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) output: BufReader<ChildStderr>,
    /// As the client must name it.
    pub(crate) port: String,
}

impl Server {
    /// Starts it and waits until it listens.
    pub(crate) fn start(line: &str) -> Server {
        Server::start_command(&mut ferroce(line))
    }

    /// The same with a command that has more than its arguments.
    pub(crate) fn start_command(command: &mut Command) -> Server {
        let mut child = command.arg("-p0").stderr(Stdio::piped()).spawn().expect("the server starts");
        let mut output = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut hint = String::new();
        output
            .read_line(&mut hint)
            .and_then(|_| output.read_line(&mut hint))
            .expect("the command of the client");
        let port = hint.split_whitespace().last().expect("the port").to_owned();
        Server { child, output, port }
    }

    /// Its exit status and its remaining output, once it has ended by itself.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        (self.child.wait().expect("an end").code(), rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs both sides of one test; the client has the options. Returns the client's lines; both sides must succeed.
#[track_caller]
pub(crate) fn both_sides(test: &str, options: &str) -> Vec<serde_json::Value> {
    both_sides_with(test, options, &[])
}

/// The same with variables in the environment of both sides.
#[track_caller]
pub(crate) fn both_sides_with(
    test: &str,
    options: &str,
    variables: &[(&str, &Path)],
) -> Vec<serde_json::Value> {
    let side = |line: &str| {
        let mut command = ferroce(line);
        command.envs(variables.iter().copied());
        command
    };
    let server = Server::start_command(&mut side(&format!("perf {test}")));
    let line = format!("perf {test} 127.0.0.1 -p {} {options} --json", server.port);
    let client = outcome(&mut side(&line));
    let (code, output) = server.end();
    assert_eq!((client.code, code), (0, Some(0)), "{line}: {client:?}, server: {output}");
    client.json().as_array().expect("lines").clone()
}
