//! Lines from the other side, and for how long none arrived.

use super::{BEAT, MISSED};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::net::TcpStream;

/// Longest line that is read.
const LONGEST: u64 = 4 << 20;

/// What came.
pub(super) enum Heard {
    Line(String),
    /// Nothing, for one heartbeat.
    Nothing,
    /// The other side is lost, and why.
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
