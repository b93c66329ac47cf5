//! The few lines of HTTP/1.1 that a scrape needs: one GET per connection, with bounded length, time and number of connections.

use super::metrics::Format;
use crate::failure::Failure;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connections at a time; a Prometheus needs one.
const MOST_CONNECTIONS: usize = 16;
/// A request without its body; Prometheus sends a few hundred bytes.
const MOST_REQUEST: usize = 8 << 10;
/// Until the request is complete, and until the answer is taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a scrape returns in a format.
type Scrape<'a> = &'a (dyn Fn(Format) -> String + Sync);

/// Answers scrapes for ever. On loopback only requests for an address or localhost are answered: otherwise a page in a browser could have a name
/// of its own lead here and read the answer.
pub(super) fn serve(listener: &TcpListener, checks_host: bool, scrape: Scrape<'_>) -> Result<(), Failure> {
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_passing(&error) => {
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
                Err(error) => return Err(Failure::io("cannot accept connections", error)),
            };
            if busy.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
                busy.fetch_sub(1, Ordering::Relaxed);
                // A peer that does not read has itself to blame.
                let _ = respond(&stream, 503, "text/plain", "too many connections\n");
                continue;
            }
            let busy = &busy;
            scope.spawn(move || {
                let _ = answer(&stream, checks_host, scrape);
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
    })
}

/// A connection that ended before it was accepted, a signal, or no descriptor left.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::ConnectionAborted | Kind::Interrupted | Kind::ConnectionReset)
        || matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

fn answer(stream: &TcpStream, checks_host: bool, scrape: Scrape<'_>) -> io::Result<()> {
    let request = match read_request(stream) {
        Ok(request) => request,
        Err(status) => {
            return respond(stream, status, "text/plain", "not a request that is understood here\n");
        }
    };
    match request.status(checks_host) {
        200 if request.path() == "/metrics" => {
            let format = request.format();
            respond(stream, 200, format.content_type(), &scrape(format))
        }
        200 => respond(stream, 200, "text/plain", "The metrics are at /metrics.\n"),
        status => respond(stream, status, "text/plain", "only GET /metrics is answered here\n"),
    }
}

/// The head of a request.
struct Request(String);

/// Reads up to the empty line. Returns the status that says what is wrong with the request.
fn read_request(mut stream: &TcpStream) -> Result<Request, u16> {
    let end = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(408);
        }
        stream.set_read_timeout(Some(left)).map_err(|_| 408_u16)?;
        match stream.read(&mut piece) {
            Ok(0) => return Err(400),
            Ok(n) => head.extend_from_slice(&piece[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(408),
        }
        if head.len() > MOST_REQUEST {
            return Err(431);
        }
    }
    String::from_utf8(head).map(Request).map_err(|_| 400)
}

impl Request {
    fn words(&self) -> impl Iterator<Item = &str> {
        self.0.lines().next().unwrap_or_default().split(' ')
    }

    fn path(&self) -> &str {
        self.words().nth(1).unwrap_or_default().split('?').next().unwrap_or_default()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let headers = self.0.lines().skip(1).filter_map(|line| line.split_once(':'));
        headers.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    fn status(&self, checks_host: bool) -> u16 {
        let is_http = self.words().nth(2).is_some_and(|version| version.starts_with("HTTP/1."));
        match (self.words().next(), self.path()) {
            _ if !is_http => 400,
            (Some("GET"), _) if checks_host && !self.header("host").is_none_or(is_own_host) => 403,
            (Some("GET"), "/" | "/metrics") => 200,
            (Some("GET"), _) => 404,
            _ => 405,
        }
    }

    fn format(&self) -> Format {
        match self.header("accept").is_some_and(|accept| accept.contains("application/openmetrics-text")) {
            true => Format::OpenMetrics,
            false => Format::Text,
        }
    }
}

/// Whether a `Host` names this machine by an address, or as localhost.
fn is_own_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn respond(mut stream: &TcpStream, status: u16, content_type: &str, body: &str) -> io::Result<()> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> u16 {
        Request(head.to_owned()).status(true)
    }

    #[test]
    fn requests_are_told_apart() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: localhost:9479\r\n\r\n"), 200);
        assert_eq!(status("GET /metrics?x=1 HTTP/1.1\r\nhost: [::1]:9479\r\n\r\n"), 200);
        assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), 200);
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
        assert_eq!(status("GET /other HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"), 404);
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(status("\r\n\r\n"), 400);
        assert_eq!(status("GET /metrics\r\n\r\n"), 400);
        let request = Request(
            "GET / HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0,*/*\r\n\r\n".into(),
        );
        assert_eq!(request.format(), Format::OpenMetrics);
    }
}
