//! Reads lines from the other side, and counts missed heartbeats.

use super::{BEAT, MISSED};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longest line that is read.
const LONGEST: u64 = 4 << 20;

/// The result of reading.
pub(super) enum Heard {
    Line(String),
    /// No complete line arrived within one heartbeat.
    Nothing,
    /// The other side is lost, for this reason.
    Lost(&'static str),
}

/// The lines of one connection.
pub(super) struct Lines {
    reader: BufReader<TcpStream>,
    /// The beginning of a line that is not complete yet.
    line: String,
    missed: u32,
}

impl Lines {
    pub(super) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_read_timeout(Some(BEAT))?;
        Ok(Self { reader: BufReader::new(socket), line: String::new(), missed: 0 })
    }

    /// Waits for the first line. `None` if it is longer than `longest` bytes or not complete within `max_wait`: the other
    /// side has not proven its membership yet.
    pub(super) fn first(&mut self, longest: usize, max_wait: Duration) -> Option<String> {
        let until = Instant::now() + max_wait;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            self.reader.get_ref().set_read_timeout(Some(left)).ok()?;
            let bytes = match self.reader.fill_buf() {
                Ok([]) => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                bytes => bytes.ok()?,
            };
            let len = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |at| at + 1);
            line.extend_from_slice(&bytes[..len]);
            self.reader.consume(len);
            if line.len() > longest {
                return None;
            }
        }
        self.reader.get_ref().set_read_timeout(Some(BEAT)).ok()?;
        line.pop();
        String::from_utf8(line).ok()
    }

    /// Waits for the next line, for one heartbeat.
    pub(super) fn next(&mut self) -> Heard {
        match self.reader.by_ref().take(LONGEST).read_line(&mut self.line) {
            Ok(_) if self.line.ends_with('\n') => {
                self.missed = 0;
                let line = std::mem::take(&mut self.line);
                Heard::Line(line.trim_end_matches('\n').to_owned())
            }
            Ok(_) => Heard::Lost("its connection closed"),
            Err(error) if error.kind() == ErrorKind::Interrupted => Heard::Nothing,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                self.missed += 1;
                if self.missed < MISSED {
                    Heard::Nothing
                } else {
                    Heard::Lost("it has been silent for 5 seconds")
                }
            }
            Err(_) => Heard::Lost("its connection closed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    fn connected() -> (TcpStream, Lines) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        (client, Lines::new(listener.accept().expect("a client").0).expect("a socket"))
    }

    #[test]
    fn a_first_line_is_bounded_in_length_and_time() {
        let (mut client, mut lines) = connected();
        client.write_all(b"hello 7\nthe next\n").expect("it reads");
        assert_eq!(lines.first(7 + 1, Duration::from_secs(30)).as_deref(), Some("hello 7"));
        assert!(matches!(lines.next(), Heard::Line(line) if line == "the next"));
        let (mut client, mut lines) = connected();
        client.write_all(&[b'x'; 100]).expect("it reads");
        assert_eq!(lines.first(99, Duration::from_secs(600)), None, "too long");
        // One byte after the other, without end: each comes in time, the line does not.
        let (mut client, mut lines) = connected();
        let dribbles = std::thread::spawn(move || {
            while client.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert_eq!(lines.first(usize::MAX, Duration::from_millis(300)), None, "too slow");
        drop(lines);
        dribbles.join().expect("it stops when the connection closes");
    }
}
