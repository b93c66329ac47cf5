//! A second process: the test binary itself, started again to run one test in the child's role.

use super::MAX_WAIT;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

const ROLE: &str = "FERROCE_TEST_PEER";

/// The socket to the parent, if this process is the child.
pub fn parent() -> Option<TcpStream> {
    let address = std::env::var(ROLE).ok()?;
    let socket = TcpStream::connect(address).expect("the parent listens");
    socket.set_read_timeout(Some(MAX_WAIT)).unwrap();
    Some(socket)
}

/// A child process and the socket to it. Killed when dropped.
pub struct Peer {
    child: Child,
    pub socket: TcpStream,
}

impl Peer {
    /// Starts this test binary again with only `test`, which must begin with [`parent`].
    pub fn start(test: &str, address: IpAddr) -> Peer {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, listener.local_addr().unwrap().to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("the test binary starts again");
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(MAX_WAIT)).unwrap();
        Peer { child, socket }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end, which must be a success.
    #[track_caller]
    pub fn finish(mut self) {
        let status = wait(&mut self.child);
        assert!(status.success(), "the peer process failed: {status}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a process, with a time limit.
#[track_caller]
pub fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > MAX_WAIT {
            let _ = child.kill();
            panic!("watchdog: a process has not ended after {MAX_WAIT:?}");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
