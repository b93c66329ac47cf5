//! The few lines of HTTP/1.1 that `ferroce export` and `ferroce view` need: one GET per connection, with bounded length, time and number of
//! connections.

use crate::failure::Failure;
use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connections at a time; a Prometheus needs one, a browser six.
const MAX_CONNECTIONS: usize = 16;
/// A request without its body; Prometheus sends a few hundred bytes.
const MAX_REQUEST_HEAD: usize = 8 << 10;
/// Timeout for receiving a request, and for sending the answer.
const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// The answer to a request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    /// Further lines of the head, each with its end.
    pub(crate) headers: &'static str,
    pub(crate) body: Cow<'static, str>,
}

impl Answer {
    /// The content of an address.
    pub(crate) fn new(content_type: &'static str, body: impl Into<Cow<'static, str>>) -> Answer {
        Answer { status: 200, content_type, headers: "", body: body.into() }
    }

    /// A refusal with its reason.
    pub(crate) fn refusal(status: u16, why: &'static str) -> Answer {
        Answer { status, ..Answer::new("text/plain; charset=utf-8", why) }
    }
}

/// The content of a well-formed GET.
type Content<'a> = &'a (dyn Fn(&Request) -> Answer + Sync);

/// Answers GETs until accepting a connection fails. With `checks_host` it refuses requests whose `Host` is neither an address nor localhost:
/// otherwise a web page could resolve a name of its own to this server and read the answers (DNS rebinding).
pub(crate) fn serve(listener: &TcpListener, checks_host: bool, content: Content<'_>) -> Result<(), Failure> {
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_transient(&error) => {
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
                Err(error) => return Err(Failure::io("cannot accept connections", error)),
            };
            if busy.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                busy.fetch_sub(1, Ordering::Relaxed);
                // A peer that does not read loses the answer.
                let _ = respond(&stream, &Answer::refusal(503, "too many connections\n"));
                continue;
            }
            let slot = Slot(&busy);
            scope.spawn(move || {
                let _slot = slot;
                let answer = match read_request(&stream) {
                    Ok(request) => request.refusal(checks_host).unwrap_or_else(|| content(&request)),
                    Err(status) => Answer::refusal(status, "malformed request\n"),
                };
                let _ = respond(&stream, &answer);
            });
        }
    })
}

/// One of [`MAX_CONNECTIONS`]. It is free again when its thread ends, also by a panic.
struct Slot<'a>(&'a AtomicUsize);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether an error is temporary: a connection that ended before it was accepted, a signal, or a lack of descriptors or memory.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::ConnectionAborted | Kind::Interrupted | Kind::ConnectionReset)
        || matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// The head of a request.
pub(crate) struct Request(String);

/// Reads up to the empty line. The error is the HTTP status of the answer.
fn read_request(mut stream: &TcpStream) -> Result<Request, u16> {
    let end = Instant::now() + IO_TIMEOUT;
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
        if head.len() > MAX_REQUEST_HEAD {
            return Err(431);
        }
    }
    String::from_utf8(head).map(Request).map_err(|_| 400)
}

impl Request {
    fn words(&self) -> impl Iterator<Item = &str> {
        self.0.lines().next().unwrap_or_default().split(' ')
    }

    /// The path without the query.
    pub(crate) fn path(&self) -> &str {
        self.words().nth(1).unwrap_or_default().split('?').next().unwrap_or_default()
    }

    /// A parameter of the query, decoded.
    pub(crate) fn parameter(&self, name: &str) -> Option<String> {
        let (_, query) = self.words().nth(1)?.split_once('?')?;
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| percent_decoded(value))
    }

    /// A line of the head.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let headers = self.0.lines().skip(1).filter_map(|line| line.split_once(':'));
        headers.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// Returns the refusal of a request that is invalid for every path.
    fn refusal(&self, checks_host: bool) -> Option<Answer> {
        let is_http = self.words().nth(2).is_some_and(|version| version.starts_with("HTTP/1."));
        match self.words().next() {
            _ if !is_http => Some(Answer::refusal(400, "not a request of HTTP/1.1\n")),
            Some("GET") if checks_host && !self.header("host").is_none_or(is_own_host) => {
                Some(Answer::refusal(403, "this server answers only requests for its address or localhost\n"))
            }
            Some("GET") => None,
            _ => Some(Answer::refusal(405, "only GET is answered here\n")),
        }
    }
}

/// Text with `%xx` and `+` decoded. A `%` without a code stays; invalid UTF-8 is replaced.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        // `from_str_radix` accepts a sign.
        let code = after.get(..2).filter(|code| code.iter().all(u8::is_ascii_hexdigit));
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        (rest, _) = match (first, code) {
            (b'%', Some(code)) => (&after[2..], bytes.push(code)),
            (b'+', _) => (after, bytes.push(b' ')),
            _ => (after, bytes.push(*first)),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a `Host` names this machine by an address, or as localhost.
fn is_own_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn respond(mut stream: &TcpStream, answer: &Answer) -> io::Result<()> {
    let Answer { status, content_type, headers, body } = answer;
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
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n",
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
        Request(head.to_owned()).refusal(true).map_or(200, |answer| answer.status)
    }

    #[test]
    fn invalid_requests_have_a_status() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: localhost:9479\r\n\r\n"), 200);
        assert_eq!(status("GET /metrics?x=1 HTTP/1.1\r\nhost: [::1]:9479\r\n\r\n"), 200);
        assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), 200);
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(status("\r\n\r\n"), 400);
        assert_eq!(status("GET /metrics\r\n\r\n"), 400);
    }

    /// More panics than slots: the last request is still answered.
    #[test]
    fn a_panic_leaks_no_slot() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("its address");
        let content = |request: &Request| match request.path() {
            "/panic" => panic!("expected by this test"),
            _ => Answer::new("text/plain", "fine"),
        };
        std::thread::spawn(move || serve(&listener, false, &content));
        let get = |path: &str| {
            let mut stream = TcpStream::connect(at).expect("a server");
            let _ = write!(stream, "GET {path} HTTP/1.1\r\n\r\n");
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        };
        (0..=MAX_CONNECTIONS).for_each(|_| assert_eq!(get("/panic"), ""));
        // The thread closes its connection before it frees the slot.
        let deadline = Instant::now() + IO_TIMEOUT;
        while !get("/").ends_with("fine") {
            assert!(Instant::now() < deadline, "no slot is free");
        }
    }

    #[test]
    fn parameters_are_decoded() {
        let request = Request("GET /a/b?x=%3Ca%20b%26&y=1+2&z=%&w=%ff%C3%A4&s=%+f HTTP/1.1\r\n\r\n".into());
        let found = ["x", "y", "z", "w", "s", "v"].map(|name| request.parameter(name));
        let expected = [Some("<a b&"), Some("1 2"), Some("%"), Some("\u{fffd}ä"), Some("% f"), None];
        assert_eq!(found, expected.map(|text| text.map(str::to_owned)));
        assert_eq!(request.path(), "/a/b");
    }
}
