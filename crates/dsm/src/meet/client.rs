//! The rendezvous protocol, on the side of a process.

use super::lines::{Heard, Lines};
use super::{BEAT, GREETING};
use crate::error::Error;
use ferroce_os::thread::spawn;
use parking_lot::Mutex;
use std::io::Write;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Maximum time until the launcher listens.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Exit status of a process that stops because another process died.
const STOPPED: i32 = 70;

/// The process that runs the rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// The launcher, at this address.
    Launcher(IpAddr),
    /// Process 0, if a foreign launcher started the job.
    First,
}

impl Keeper {
    /// The message when the connection to it is lost. Names the address of another host, because the network may have failed instead.
    fn gone(self, why: &str) -> String {
        match self {
            Self::Launcher(at) if at.is_loopback() => {
                format!("the connection to the launcher is lost: {why}")
            }
            Self::Launcher(at) => format!("the connection to the launcher on {at} is lost: {why}"),
            Self::First => {
                format!("process 0 of the job, which runs the rendezvous, is lost: {why}")
            }
        }
    }

    fn refused(self, why: &str) -> String {
        let who = if self == Self::First { "process 0" } else { "the launcher" };
        format!("{who} refused this process: {why}")
    }
}

/// A process' connection to the rendezvous. A job of one process has none.
pub(crate) struct Meeting {
    at: String,
    size: u32,
    connection: Option<Connection>,
}

struct Connection {
    socket: Arc<Mutex<TcpStream>>,
    texts: Mutex<Receiver<String>>,
    left: Arc<AtomicBool>,
}

impl Meeting {
    pub(crate) fn alone() -> Self {
        Self { at: String::new(), size: 1, connection: None }
    }

    pub(crate) fn connect(
        at: SocketAddr,
        keeper: Keeper,
        key: &str,
        rank: u32,
        size: u32,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Meet { at: at.to_string(), source };
        let mut socket = connect(at).map_err(failed)?;
        socket.set_nodelay(true).map_err(failed)?;
        writeln!(socket, "{GREETING} {key} {rank}").map_err(failed)?;
        let (sender, texts) = channel();
        let left = Arc::new(AtomicBool::new(false));
        let lines = Lines::new(socket.try_clone().map_err(failed)?).map_err(failed)?;
        let socket = Arc::new(Mutex::new(socket));
        let beat = socket.clone();
        let listener = Listener { rank, keeper, left: left.clone(), texts: sender };
        spawn("ferroce-dsm-meet", move || listener.listen(lines, &beat)).map_err(failed)?;
        let connection = Connection { socket, texts: Mutex::new(texts), left };
        Ok(Self { at: at.to_string(), size, connection: Some(connection) })
    }

    /// The local address of the connection to the launcher.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        self.connection.as_ref()?.socket.lock().local_addr().ok().map(|address| address.ip())
    }

    /// Sends `text` to all processes, and returns the texts of all, by rank. All processes must call it.
    pub(crate) fn gather(&self, text: &str) -> Result<Vec<String>, Error> {
        let Some(connection) = &self.connection else { return Ok(vec![text.to_owned()]) };
        let failed = |source| Error::Meet { at: self.at.clone(), source };
        debug_assert!(!text.contains('\n'));
        connection.socket.lock().write_all(format!("gather {text}\n").as_bytes()).map_err(failed)?;
        let texts = connection.texts.lock();
        let closed = |_| failed(std::io::ErrorKind::ConnectionAborted.into());
        (0..self.size).map(|_| texts.recv().map_err(closed)).collect()
    }

    /// Leaves regularly, so that the others continue.
    pub(crate) fn leave(&self) {
        if let Some(connection) = &self.connection {
            connection.left.store(true, Ordering::Release);
            let mut socket = connection.socket.lock();
            // It is not an error if the launcher has already ended.
            let _ = socket.write_all(b"bye\n");
            let _ = socket.shutdown(Shutdown::Write);
        }
    }
}

fn connect(at: SocketAddr) -> std::io::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(&at, CONNECT_PATIENCE) {
            Err(error)
                if error.kind() == std::io::ErrorKind::ConnectionRefused
                    && start.elapsed() < CONNECT_PATIENCE =>
            {
                // The launcher on another host may start later than this process.
                std::thread::sleep(Duration::from_millis(50));
            }
            result => return result,
        }
    }
}

/// The state of the listening thread.
struct Listener {
    rank: u32,
    keeper: Keeper,
    left: Arc<AtomicBool>,
    texts: Sender<String>,
}

impl Listener {
    fn listen(&self, mut lines: Lines, socket: &Mutex<TcpStream>) {
        let mut last_beat = Instant::now();
        loop {
            let received = lines.next();
            if self.left.load(Ordering::Acquire) {
                return;
            }
            match received {
                Heard::Line(line) => self.handle(&line),
                Heard::Nothing => {}
                Heard::Lost(why) => stop(self.rank, &self.keeper.gone(why)),
            }
            if last_beat.elapsed() >= BEAT {
                last_beat = Instant::now();
                // If this fails, the next read fails too.
                let _ = socket.lock().write_all(b"alive\n");
            }
        }
    }

    fn handle(&self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "from" => {
                let text = rest.split_once(' ').map_or("", |(_, text)| text);
                let _ = self.texts.send(text.to_owned());
            }
            "down" if !self.left.load(Ordering::Acquire) => {
                let (who, why) = rest.split_once(' ').unwrap_or((rest, ""));
                stop(self.rank, &format!("process {who} of the job is down: {why}"));
            }
            "refused" => stop(self.rank, &self.keeper.refused(rest)),
            _ => {}
        }
    }
}

/// Ends this process without running exit handlers: they could wait for locks that other threads never release.
#[expect(unsafe_code, reason = "ends the process without running what is registered for its exit")]
pub(crate) fn stop(rank: u32, sentence: &str) -> ! {
    let _ =
        std::io::stderr().write_all(format!("ferroce dsm: process {rank} stops: {sentence}\n").as_bytes());
    // SAFETY: does not return, and accesses no memory of the process.
    unsafe { libc::_exit(STOPPED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_names_its_keeper() {
        let why = "it has been silent for 5 seconds";
        let launcher = |at: &str| Keeper::Launcher(at.parse().expect("an address")).gone(why);
        assert_eq!(launcher("127.0.0.1"), format!("the connection to the launcher is lost: {why}"));
        assert_eq!(
            launcher("192.0.2.7"),
            format!("the connection to the launcher on 192.0.2.7 is lost: {why}")
        );
        assert!(Keeper::First.gone(why).starts_with("process 0 of the job"));
        assert_eq!(Keeper::First.refused("wrong key"), "process 0 refused this process: wrong key");
    }
}
