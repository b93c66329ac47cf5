//! `ferroce top` from outside: on a terminal of its own, as text, as JSON.

mod watched;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use watched::Watched;

/// Far longer than anything here takes; reached only by a failure.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// `ferroce top` on a pseudoterminal.
struct Session {
    keyboard: File,
    /// The other end, open so that its settings can be read when the program has left.
    terminal: OwnedFd,
    output: Arc<Mutex<Vec<u8>>>,
    program: Child,
    settings_before: Termios,
}

impl Session {
    fn start(line: &str, columns: u16, rows: u16) -> Session {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudoterminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is unlocked");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let open =
            || rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("it opens");
        let terminal = open();
        resize(&master, columns, rows);
        let settings_before = tcgetattr(&terminal).expect("settings");
        // A session of its own, so that the pseudoterminal and not the developer's is the controlling one.
        let program = Command::new("setsid")
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_ferroce")])
            .args(line.split_whitespace())
            .env("TERM", "xterm-256color")
            .stdin(Stdio::from(open()))
            .stdout(Stdio::from(open()))
            .stderr(Stdio::from(open()))
            .spawn()
            .expect("setsid of util-linux starts it");
        let keyboard = File::from(master);
        let output = Arc::<Mutex<Vec<u8>>>::default();
        let (mut screen, written) = (keyboard.try_clone().expect("a second handle"), output.clone());
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = screen.read(&mut piece) {
                written.lock().expect("unpoisoned").extend_from_slice(&piece[..n]);
            }
        });
        Session { keyboard, terminal, output, program, settings_before }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    fn written(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().expect("unpoisoned")).into_owned()
    }

    /// Waits until the program has written `word` at or after byte `from`, and returns how many bytes it has written.
    fn wait_for(&mut self, word: &str, from: usize) -> usize {
        let start = Instant::now();
        loop {
            let bytes = self.output.lock().expect("unpoisoned").clone();
            if bytes[from..].windows(word.len()).any(|part| part == word.as_bytes()) {
                return bytes.len();
            }
            let written = String::from_utf8_lossy(&bytes);
            if let Some(status) = self.program.try_wait().expect("it can be waited for") {
                panic!("it ended with {status} before it wrote {word:?}:\n{written:?}");
            }
            let last: String =
                written.chars().rev().take(2000).collect::<Vec<_>>().into_iter().rev().collect();
            assert!(start.elapsed() < HANG_TIMEOUT, "no {word:?} in\n{last:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end and checks that the terminal is as it was.
    fn end(mut self) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.program.try_wait().expect("it can be waited for") {
                break status;
            }
            assert!(start.elapsed() < HANG_TIMEOUT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{status}: {:?}", self.written());
        while !self.written().contains("\x1b[?1049l") {
            assert!(start.elapsed() < HANG_TIMEOUT, "the alternate screen stays");
            std::thread::sleep(Duration::from_millis(5));
        }
        let written = self.written();
        let position =
            |text: &str| written.rfind(text).unwrap_or_else(|| panic!("no {text:?} in {written:?}"));
        assert!(position("\x1b[?1049h") < position("\x1b[?1049l"));
        assert!(position("\x1b[?25l") < position("\x1b[?25h"), "the cursor is shown again");
        let after = tcgetattr(&self.terminal).expect("settings");
        let before = &self.settings_before;
        assert_eq!(
            (after.local_modes, after.input_modes, after.output_modes, after.control_modes),
            (before.local_modes, before.input_modes, before.output_modes, before.control_modes)
        );
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn resize(terminal: impl std::os::fd::AsFd, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a new size");
}

/// The positions that text moves the cursor to.
fn positions(text: &str) -> impl Iterator<Item = (u16, u16)> {
    text.split("\x1b[").filter_map(|rest| {
        let (row, column) = rest.split_once('H')?.0.split_once(';')?;
        Some((row.parse().ok()?, column.parse().ok()?))
    })
}

#[test]
fn it_starts_takes_keys_and_a_new_size_and_restores_the_terminal() {
    let watched = Watched::open("127.77.21.4");
    let mut session = Session::start(&format!("top --interval 0.1 --filter {}", watched.qpn()), 100, 30);
    // The state is in the row of the queue pair only; the footer shows the filter before there is a row.
    let at = session.wait_for("RESET", 0);
    session.press("\r");
    let at = session.wait_for("retransmitted", at);
    session.press("\x1b");
    let at = session.wait_for("RESET", at);
    resize(&session.keyboard, 40, 12);
    session.wait_for("\x1b[2J", at);
    let at = session.wait_for("RESET", at);
    let new = session.output.lock().expect("unpoisoned")[..at].to_vec();
    let new = String::from_utf8_lossy(&new);
    let (_, frame) = new.rsplit_once("\x1b[2J").expect("the screen is cleared");
    assert!(positions(frame).all(|(row, column)| row <= 12 && column <= 40), "{frame:?}");
    drop(watched);
    session.wait_for("No", at);
    session.press("q");
    session.end();
}

#[test]
fn a_signal_restores_the_terminal_too() {
    let watched = Watched::open("127.77.21.2");
    let mut session = Session::start("top", 80, 24);
    session.wait_for("ferroce", 0);
    // The program is the child of setsid.
    let parent = session.program.id();
    let children =
        std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).expect("its children");
    let pid = children.split_whitespace().next().map_or_else(|| parent.to_string(), str::to_owned);
    let killed = Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
    assert!(killed.success());
    session.end();
    drop(watched);
}

fn output(line: &str) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ferroce"))
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .expect("the command runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

/// Repeats a command until it prints what is awaited: a NIC on a busy machine may answer too late for one call.
fn output_with(line: &str, is_awaited: impl Fn(&str) -> bool) -> (i32, String, String) {
    let start = Instant::now();
    loop {
        let found = output(line);
        if is_awaited(&found.1) {
            return found;
        }
        assert!(start.elapsed() < HANG_TIMEOUT, "{found:?}");
    }
}

#[test]
fn without_a_terminal_there_is_advice() {
    let (code, _, stderr) = output("top");
    assert_eq!(code, 2);
    assert!(stderr.contains("needs a terminal") && stderr.contains("--once"), "{stderr}");
}

#[test]
fn text_and_json_list_the_queue_pair() {
    let watched = Watched::open("127.77.21.3");
    let (code, text, stderr) = output_with("top --once --interval 0.1", |text| text.contains(&watched.qpn()));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(text.starts_with("ferroce top  "), "{text}");
    let device_in = |json: &str| {
        let value: Value = serde_json::from_str(json).expect("one document");
        let devices = value["devices"].as_array().expect("a list");
        devices.iter().find(|d| d["slot"] == watched.nic.slot()).cloned()
    };
    let (code, json, _) = output_with("top --once --json --interval 0.1", |json| device_in(json).is_some());
    let qp = &device_in(&json).expect("this process")["queue_pairs"][0];
    assert_eq!(
        (code, &qp["qpn"], &qp["rates"]["tx_bytes"]),
        (0, &watched.qp.qpn().value().into(), &0.0.into())
    );
}
