//! A real ssh server of this user on a loopback port, with keys of its own that lie in the test's folder and go with it.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The name under which ssh finds it; ferroce must not take it for this machine.
pub(crate) const NAME: &str = "far.test";

/// Killed, and its folder removed, when dropped.
pub(crate) struct Sshd {
    child: Child,
    folder: PathBuf,
    pub(crate) port: u16,
}

/// What this machine lacks for it.
fn missing() -> Option<String> {
    for (program, package) in [("/usr/sbin/sshd", "openssh-server"), ("/usr/bin/ssh", "openssh-client")] {
        if !Path::new(program).exists() {
            return Some(format!("{program} is missing; it is in the package {package}"));
        }
    }
    let user = Command::new("sh").args(["-c", "getent passwd $(id -u)"]).output().expect("sh runs");
    let entry = String::from_utf8_lossy(&user.stdout).trim().to_owned();
    let shell = entry.rsplit(':').next().unwrap_or_default();
    (!shell.ends_with("sh")).then(|| format!("this user cannot log in: {entry:?}"))
}

fn make_key(at: &Path) {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at).status();
    assert!(made.expect("ssh-keygen runs").success(), "{}", at.display());
}

impl Sshd {
    /// Starts it in a new folder. `None`, with the reason printed, if this machine cannot.
    pub(crate) fn start(folder: PathBuf) -> Option<Sshd> {
        if let Some(reason) = missing() {
            println!("SKIPPED: {reason}");
            return None;
        }
        std::fs::create_dir_all(&folder).expect("a folder of ours");
        let at = |name: &str| folder.join(name).display().to_string();
        make_key(&folder.join("host"));
        make_key(&folder.join("user"));
        std::fs::copy(at("user.pub"), at("authorized")).expect("a file");
        // The port is free at this moment; another program may still take it before sshd does.
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port").port();
        let server = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
            PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n",
            at("host"),
            at("authorized")
        );
        let client = format!(
            "Host {NAME}\n HostName 127.0.0.1\n IdentityFile {}\n IdentitiesOnly yes\n UserKnownHostsFile {}\n\
            StrictHostKeyChecking accept-new\n LogLevel ERROR\n",
            at("user"),
            at("known")
        );
        std::fs::write(at("server.conf"), server).expect("a file");
        std::fs::write(at("client.conf"), client).expect("a file");
        // As root it needs an empty folder that the start-up of a system creates.
        let _ = std::fs::create_dir("/run/sshd");
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f", &at("server.conf")]).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("sshd starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains("Server listening") {
            line.clear();
            assert!(log.read_line(&mut line).expect("a line") > 0, "sshd ended: {line}");
        }
        // It continues to write, and must not wait for a reader.
        std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(drop));
        Some(Sshd { child, folder, port })
    }

    /// What `--ssh` is given.
    pub(crate) fn command(&self) -> String {
        format!("ssh -F {}", self.folder.join("client.conf").display())
    }

    /// A hosts file with this many processes here, and there.
    pub(crate) fn hosts(&self, here: u32, there: u32) -> PathBuf {
        let path = self.folder.join("hosts");
        let text = format!("localhost {here}\n{NAME}:{} {there}\n", self.port);
        std::fs::write(&path, text).expect("a file");
        path
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
