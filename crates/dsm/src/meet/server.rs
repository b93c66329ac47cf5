//! The rendezvous protocol, on the side of the launcher.

use super::lines::{Heard, Lines};
use super::{BEAT, GREETING};
use crate::error::Error;
use ferroce_os::thread::spawn;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long the rendezvous waits for the launcher's report why a connection closed.
const REASON_PATIENCE: Duration = Duration::from_millis(300);
/// How long the rendezvous waits for processes to stop after one was lost.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// Maximum number of connections without the key, besides those of the job. Each takes a thread.
const STRANGERS: u32 = 64;
/// Maximum time until a connection has sent the key, and maximum length of that line.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);
const MAX_GREETING: usize = 128;
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The rendezvous of one job. The launcher creates it, starts the processes with [`Rendezvous::environment`], and
/// calls [`Rendezvous::run`] on a thread of its own.
#[derive(Debug)]
pub struct Rendezvous {
    listener: TcpListener,
    address: SocketAddr,
    size: u32,
    /// Proves membership of the job.
    pub(super) key: String,
    sender: Sender<Event>,
    events: Receiver<Event>,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Departure {
    /// All processes left.
    All,
    /// A process was lost, and the others were stopped.
    Down {
        /// Its rank.
        rank: u32,
        /// The reason, as far as known.
        why: String,
    },
}

/// Reports to the rendezvous that a process died, and why. Only the launcher can detect this.
#[derive(Debug, Clone)]
pub struct Reporter(Sender<Event>);

impl Reporter {
    /// Process `rank` died: all others stop. Has no effect for a process that has left.
    pub fn down(&self, rank: u32, why: &str) {
        // Sending fails if the job has ended.
        let _ = self.0.send(Event::Down(rank, why.replace('\n', " ")));
    }
}

#[derive(Debug)]
enum Event {
    Joined(u32, TcpStream),
    Gather(u32, String),
    Bye(u32),
    Lost(u32, &'static str),
    Down(u32, String),
}

impl Rendezvous {
    /// A rendezvous for `size` processes of this host.
    pub fn bind(size: u32) -> Result<Self, Error> {
        Self::bind_at(size, SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    /// A rendezvous for `size` processes, at an address that other hosts reach.
    pub fn bind_at(size: u32, at: SocketAddr) -> Result<Self, Error> {
        let failed = |source| Error::Meet { at: at.to_string(), source };
        let listener = TcpListener::bind(at).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (sender, events) = channel();
        let key = format!("{:032x}", rand::random::<u128>());
        Ok(Self { listener, address, size, key, sender, events })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle to report deaths while [`Rendezvous::run`] runs.
    pub fn reporter(&self) -> Reporter {
        Reporter(self.sender.clone())
    }

    /// The environment variables that process `rank` needs to join.
    pub fn environment(&self, rank: u32) -> Vec<(&'static str, String)> {
        vec![
            ("FERROCE_DSM_RANK", rank.to_string()),
            ("FERROCE_DSM_SIZE", self.size.to_string()),
            ("FERROCE_DSM_MEET", self.address.to_string()),
            ("FERROCE_DSM_KEY", self.key.clone()),
        ]
    }

    /// Serves the job to its end.
    pub fn run(self) -> Departure {
        let ended = Arc::new(AtomicBool::new(false));
        let (listener, key, size) = (self.listener, self.key, self.size);
        let (until, sender) = (ended.clone(), self.sender);
        let accept = move || welcome(&listener, &key, size, &sender, &until);
        let acceptor = match spawn("ferroce-dsm-accept", accept) {
            Ok(acceptor) => acceptor,
            Err(error) => {
                return Departure::Down {
                    rank: 0,
                    why: format!("starting the rendezvous's thread: {error}"),
                };
            }
        };
        let departure = Round::new(size).serve(&self.events);
        ended.store(true, Ordering::Release);
        // The accepting thread waits in accept.
        let _ = TcpStream::connect_timeout(&wake_address(self.address), Duration::from_secs(1));
        let _ = acceptor.join();
        departure
    }
}

fn wake_address(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        let loopback = if address.is_ipv4() {
            Ipv4Addr::LOCALHOST.into()
        } else {
            IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)
        };
        address.set_ip(loopback);
    }
    address
}

fn welcome(listener: &TcpListener, key: &str, size: u32, events: &Sender<Event>, ended: &AtomicBool) {
    let unproven = Arc::new(AtomicU32::new(0));
    for socket in listener.incoming() {
        if ended.load(Ordering::Acquire) {
            return;
        }
        let Ok(mut socket) = socket else {
            // It may fail again immediately, as with EMFILE.
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let counted = Unproven::new(&unproven);
        if unproven.load(Ordering::Relaxed) > size + STRANGERS {
            let _ = socket.write_all(b"refused too many connections that have not shown the key\n");
            continue;
        }
        let (key, events) = (key.to_owned(), events.clone());
        // A connection that sends nothing must not delay the others. If no thread can be started, the connection closes.
        let _ = spawn("ferroce-dsm-attend", move || attend(socket, counted, &key, size, &events));
    }
}

/// Counts a connection that has not sent the key yet.
struct Unproven(Arc<AtomicU32>);

impl Unproven {
    fn new(count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Unproven {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads one connection and sends its events.
fn attend(
    mut socket: TcpStream,
    counted: Unproven,
    key: &str,
    size: u32,
    events: &Sender<Event>,
) -> Option<()> {
    let _ = socket.set_nodelay(true);
    let mut lines = Lines::new(socket.try_clone().ok()?).ok()?;
    let greeting = lines.first(MAX_GREETING, GREETING_PATIENCE)?;
    let rank = greeting.strip_prefix(GREETING).map(str::trim).and_then(|rest| {
        let (shown, rank) = rest.split_once(' ').unwrap_or(("", rest));
        (shown == key).then(|| rank.parse::<u32>().ok()).flatten()
    });
    let Some(rank) = rank.filter(|&rank| rank < size) else {
        let _ = socket.write_all(b"refused wrong key, rank or version\n");
        return None;
    };
    drop(counted);
    events.send(Event::Joined(rank, socket)).ok()?;
    loop {
        let line = match lines.next() {
            Heard::Line(line) => line,
            Heard::Nothing => continue,
            Heard::Lost(why) => return events.send(Event::Lost(rank, why)).ok(),
        };
        let event = match line.split_once(' ').unwrap_or((&line, "")) {
            ("gather", text) => Event::Gather(rank, text.to_owned()),
            ("bye", _) => Event::Bye(rank),
            _ => continue,
        };
        events.send(event).ok()?;
    }
}

/// The state of the job.
struct Round {
    sockets: Vec<Option<TcpStream>>,
    texts: Vec<Option<String>>,
    left: Vec<bool>,
    closed: Vec<bool>,
    /// A connection that ended, the reason as far as known, and the time until which a better reason may arrive.
    lost: Option<(u32, &'static str, Instant)>,
    down: Option<(u32, String)>,
    deadline: Option<Instant>,
    /// When the next heartbeat is due.
    beat: Instant,
}

impl Round {
    fn new(size: u32) -> Self {
        let size = size as usize;
        Self {
            sockets: (0..size).map(|_| None).collect(),
            texts: vec![None; size],
            left: vec![false; size],
            closed: vec![false; size],
            lost: None,
            down: None,
            deadline: None,
            beat: Instant::now(),
        }
    }

    fn serve(mut self, events: &Receiver<Event>) -> Departure {
        loop {
            let now = Instant::now();
            if let Some((rank, why, _)) = self.lost.filter(|(_, _, until)| *until <= now) {
                self.handle_down(rank, why.into());
            }
            if self.over(now) {
                return self.down.map_or(Departure::All, |(rank, why)| Departure::Down { rank, why });
            }
            if now >= self.beat {
                self.beat = now + BEAT;
                self.send_to_all("alive\n");
            }
            let until = [self.lost.map(|(_, _, until)| until), self.deadline, Some(self.beat)];
            let until = until.into_iter().flatten().min().unwrap_or(now);
            // The next iteration handles both an event and a timeout.
            if let Ok(event) = events.recv_timeout(until.saturating_duration_since(now)) {
                self.handle(event);
            }
        }
    }

    fn over(&self, now: Instant) -> bool {
        let gone = |at: usize| self.left[at] || self.closed[at];
        let connected = |at: usize| self.sockets[at].is_some() && !gone(at);
        match self.deadline {
            Some(deadline) => now >= deadline || !(0..self.left.len()).any(connected),
            None => (0..self.left.len()).all(|at| self.left[at]),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Joined(rank, socket) => self.handle_joined(rank, socket),
            Event::Gather(rank, text) => self.handle_gather(rank, text),
            Event::Bye(rank) => self.left[rank as usize] = true,
            Event::Lost(rank, why) => {
                self.closed[rank as usize] = true;
                if !self.left[rank as usize] && self.down.is_none() && self.lost.is_none() {
                    self.lost = Some((rank, why, Instant::now() + REASON_PATIENCE));
                }
            }
            Event::Down(rank, why) if !self.left.get(rank as usize).copied().unwrap_or(true) => {
                self.handle_down(rank, why);
            }
            Event::Down(..) => {}
        }
    }

    fn handle_joined(&mut self, rank: u32, mut socket: TcpStream) {
        if self.sockets[rank as usize].is_some() {
            let _ = writeln!(socket, "refused process {rank} is here already");
            return;
        }
        if let Some((who, why)) = &self.down {
            let _ = writeln!(socket, "down {who} {why}");
        }
        self.sockets[rank as usize] = Some(socket);
    }

    fn handle_gather(&mut self, rank: u32, text: String) {
        self.texts[rank as usize] = Some(text);
        if self.texts.iter().any(Option::is_none) {
            return;
        }
        let texts = self
            .texts
            .iter_mut()
            .enumerate()
            .map(|(at, text)| format!("from {at} {}\n", text.take().unwrap_or_default()));
        let answer: String = texts.collect();
        self.send_to_all(&answer);
    }

    fn handle_down(&mut self, rank: u32, why: String) {
        self.lost = None;
        if self.down.is_none() {
            self.send_to_all(&format!("down {rank} {why}\n"));
            self.down = Some((rank, why));
            self.deadline = Some(Instant::now() + STOP_PATIENCE);
        }
    }

    fn send_to_all(&mut self, text: &str) {
        for socket in self.sockets.iter_mut().flatten() {
            // If sending fails, the process is lost, and the thread of its connection reports that.
            let _ = socket.write_all(text.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// All bytes that a connection receives until it closes.
    fn answer(socket: &mut TcpStream) -> String {
        let mut text = String::new();
        let _ = socket.read_to_string(&mut text);
        text
    }

    #[test]
    fn strangers_are_bounded_and_do_not_stop_the_job() {
        let rendezvous = Rendezvous::bind(1).expect("a port");
        let (address, key) = (rendezvous.address(), rendezvous.key.clone());
        let job = std::thread::spawn(move || rendezvous.run());
        let connect = || TcpStream::connect(address).expect("it listens");
        let mut strangers: Vec<TcpStream> = (0..=STRANGERS).map(|_| connect()).collect();
        // The connections are accepted in order, so the limit is reached when this one is answered.
        assert!(answer(&mut connect()).starts_with("refused too many"));
        // A stranger that sends too much, or disconnects, is not counted any more.
        strangers[0].write_all(&[b'x'; MAX_GREETING + 1]).expect("it reads");
        assert_eq!(answer(&mut strangers[0]), "");
        strangers.truncate(9);
        let until = Instant::now() + Duration::from_secs(30);
        while !job.is_finished() {
            assert!(Instant::now() < until, "there is room again");
            let Ok(mut member) = TcpStream::connect(address) else { continue };
            // It fails while the limit is still reached.
            let _ = writeln!(member, "{GREETING} {key} 0\nbye");
            let _ = member.shutdown(std::net::Shutdown::Write);
            answer(&mut member);
        }
        assert_eq!(job.join().expect("no panic"), Departure::All);
    }
}
