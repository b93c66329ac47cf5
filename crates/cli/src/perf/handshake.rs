//! The messages between the two sides, in their order:
//!
//! ```text
//! client  Hello ──────────▶          once per connection
//!               ◀────────── Welcome
//!         Run ────────────▶          once per test and size
//!               ◀────────── Ready    the server made its sockets or queue pairs
//!         Go ─────────────▶          the client made its own
//!         …… over iWARP, a TCP connection per queue pair ……
//!               ◀────────── Started
//!         …… traffic ……
//!         Drain ──────────▶          unreliable traffic only: pause, and receive what is in flight
//!               ◀────────── Drained
//!         …… more traffic, and perhaps another break ……
//!         Stop ───────────▶          all of the client's messages arrived
//!               ◀────────── Report
//!         Bye ────────────▶
//! ```
//! Instead of `Welcome` or `Ready` the server may answer `Refused`. At any time it may send `Failed` and end.

use super::control::{Control, STEP_TIMEOUT};
use super::params::Params;
use super::rdma;
use crate::failure::Failure;
use serde::{Deserialize, Serialize};

/// First field of every greeting.
const MAGIC: &str = "ferroce-perf";
/// Changes whenever the messages below do.
pub(crate) const VERSION: u32 = 6;

/// Messages of the client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Prepare this test.
    Run {
        /// The test and its parameters.
        params: Params,
    },
    /// Connect to this, and be ready for traffic.
    Go {
        /// The client's side.
        offer: Offer,
    },
    /// Pause the traffic, and receive what is in flight.
    Drain,
    /// The traffic is over.
    Stop,
    /// No further test.
    Bye,
}

/// Messages of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// The server's sockets or queue pairs exist.
    Ready {
        /// The address to connect to.
        offer: Offer,
    },
    /// The server is ready for traffic.
    Started,
    /// The server has stopped sending, and has received everything in flight.
    Drained,
    /// What the server counted.
    Report(Report),
    /// The server refuses these parameters. The client may request another test.
    Refused {
        /// The reason.
        reason: String,
    },
    /// The test failed; the server ends.
    Failed {
        /// The failure.
        reason: String,
    },
}

/// The address of one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Offer {
    /// A socket.
    Socket {
        /// Port of TCP or UDP.
        port: u16,
        /// First bytes of a TCP connection, to recognise foreign connections.
        nonce: u64,
    },
    /// Queue pairs.
    Rdma(rdma::Offer),
}

/// What the server counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    /// Messages received, if the server can count them.
    pub(crate) received: u64,
    /// Messages that the server sent and that arrived.
    pub(crate) sent: u64,
    /// The time that it took to send them.
    pub(crate) elapsed_ns: u64,
    /// From the first message received to the last.
    pub(crate) receiving_ns: u64,
    /// Resident memory that the test took.
    pub(crate) memory_bytes: u64,
}

/// First message of each side. Read leniently, so that another version can be named instead of "malformed".
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    hello: String,
    version: u32,
    program: String,
}

impl Hello {
    fn ours() -> Hello {
        Hello { hello: MAGIC.into(), version: VERSION, program: env!("CARGO_PKG_VERSION").into() }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.hello != MAGIC {
            return Err(
                Failure::new("the other side is not a ferroce perf").advise("Check the host and port (-p)")
            );
        }
        if self.version != VERSION {
            let theirs: String = self.program.chars().filter(|c| !c.is_control()).take(32).collect();
            return Err(Failure::new(format!(
                "the other side uses version {} of the test protocol (ferroce {theirs}), this side version {VERSION} \
                 (ferroce {})",
                self.version,
                env!("CARGO_PKG_VERSION")
            ))
            .advise("Use the same ferroce on both machines"));
        }
        Ok(())
    }
}

/// Exchanges greetings. Each side sends its own before it receives the other's.
pub(crate) fn greet(control: &mut Control) -> Result<(), Failure> {
    control.send(&Hello::ours())?;
    control.receive::<Hello>(Some(STEP_TIMEOUT))?.check()
}

/// Client: requests a test.
pub(crate) fn request_test(control: &mut Control, params: &Params) -> Result<Offer, Failure> {
    control.send(&Request::Run { params: params.clone() })?;
    match receive(control)? {
        Reply::Ready { offer } => Ok(offer),
        other => Err(unexpected(&other)),
    }
}

/// Client: sends its address, and waits until the server is connected to it.
pub(crate) fn go(control: &mut Control, offer: Offer) -> Result<(), Failure> {
    control.send(&Request::Go { offer })?;
    await_started(control)
}

/// Client: takes the answer to [`Request::Go`].
pub(crate) fn await_started(control: &mut Control) -> Result<(), Failure> {
    match receive(control)? {
        Reply::Started => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Client: ends the traffic.
pub(crate) fn stop(control: &mut Control) -> Result<Report, Failure> {
    control.send(&Request::Stop)?;
    await_report(control)
}

/// Client: takes the answer to [`Request::Stop`].
pub(crate) fn await_report(control: &mut Control) -> Result<Report, Failure> {
    match receive(control)? {
        Reply::Report(report) => Ok(report),
        other => Err(unexpected(&other)),
    }
}

/// Client: takes the answer to [`Request::Drain`].
pub(crate) fn await_drained(control: &mut Control) -> Result<(), Failure> {
    match receive(control)? {
        Reply::Drained => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Client: the server sent a message during the traffic, or closed the channel. Returns why the test cannot continue.
pub(crate) fn interrupted(control: &mut Control) -> Failure {
    receive(control).map_or_else(|failure| failure, |reply| unexpected(&reply))
}

/// Server: sends its address, and receives the client's.
pub(crate) fn ready(control: &mut Control, offer: Offer) -> Result<Offer, Failure> {
    control.send(&Reply::Ready { offer })?;
    match control.receive(Some(STEP_TIMEOUT))? {
        Request::Go { offer } => Ok(offer),
        other => Err(out_of_order("client", &other)),
    }
}

/// What interrupts the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A break.
    Break,
    /// It is over.
    End,
}

/// Server: receives the message with which the client interrupts the traffic.
pub(crate) fn await_pause(control: &mut Control) -> Result<Pause, Failure> {
    match control.receive(None)? {
        Request::Drain => Ok(Pause::Break),
        Request::Stop => Ok(Pause::End),
        other => Err(out_of_order("client", &other)),
    }
}

/// Server: waits for the end of the traffic.
pub(crate) fn await_stop(control: &mut Control) -> Result<(), Failure> {
    match control.receive(None)? {
        Request::Stop => Ok(()),
        other => Err(out_of_order("client", &other)),
    }
}

fn receive(control: &mut Control) -> Result<Reply, Failure> {
    match control.receive(Some(STEP_TIMEOUT))? {
        Reply::Refused { reason } => Err(Failure::new(format!("the server refused: {}", printable(&reason)))),
        Reply::Failed { reason } => Err(Failure::new(format!("the server failed: {}", printable(&reason)))),
        reply => Ok(reply),
    }
}

fn unexpected(reply: &Reply) -> Failure {
    out_of_order("server", reply)
}

/// The failure for a message of `side` that is not valid at this point.
pub(crate) fn out_of_order(side: &str, message: &impl Serialize) -> Failure {
    let message = serde_json::to_value(message).unwrap_or_default();
    Failure::new(format!("the {side} sent {} out of order", message["type"]))
}

/// A peer's text, fit for a terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(500).collect()
}

#[cfg(test)]
mod tests {
    use super::super::test::Test;
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn answer_with(lines: &str) -> Control {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        theirs.write_all(lines.as_bytes()).expect("it is sent");
        // The peer stays open until our side closes, so that only its messages decide.
        std::thread::spawn(move || theirs.read_to_end(&mut Vec::new()));
        Control::over_pair(ours).expect("options")
    }

    #[test]
    fn requests_round_trip() {
        for request in [
            Request::Run { params: Params::defaults(Test::WriteBw) },
            Request::Go { offer: Offer::Socket { port: 7, nonce: u64::MAX } },
            Request::Drain,
            Request::Stop,
            Request::Bye,
        ] {
            let text = serde_json::to_string(&request).expect("JSON");
            assert_eq!(serde_json::from_str::<Request>(&text).expect("our own JSON"), request);
        }
    }

    #[test]
    fn hostile_requests_are_refused() {
        let good =
            serde_json::to_string(&Request::Run { params: Params::defaults(Test::WriteBw) }).expect("JSON");
        assert!(serde_json::from_str::<Request>(&good).is_ok());
        for bad in [
            good.replace("write-bw", "format-disk"),
            good.replace("\"tx_depth\":128", "\"tx_depth\":4294967296"),
            good.replace("65536", "-1"),
            good.replace("65536", "1e99"),
            good.replace("65536", "99999999999999999999999"),
            good.replace("\"size\"", "\"size\":1,\"size\""),
            good.replace("\"size\"", "\"extra\":1,\"size\""),
            good.replace("\"size\":65536,", ""),
            good.replace("\"rc\"", "\"xrc\""),
            r#"{"type":"dance"}"#.into(),
            r#"{"type":"go","offer":{"kind":"socket","port":65536,"nonce":0}}"#.into(),
            r#"{"type":"go","offer":{"kind":"pigeon"}}"#.into(),
            "[]".into(),
            "null".into(),
        ] {
            assert!(serde_json::from_str::<Request>(&bad).is_err(), "{bad}");
        }
        let zero = serde_json::from_str::<Request>(&good.replace("65536", "0")).expect("well-formed");
        let Request::Run { params } = zero else { panic!("a run") };
        assert!(params.check().is_err());
    }

    #[test]
    fn another_version_is_named() {
        let line = "{\"hello\":\"ferroce-perf\",\"version\":9,\"program\":\"9.9\\u001b[2J\",\"news\":true}\n";
        let failure = greet(&mut answer_with(line)).expect_err("another version");
        assert!(failure.what().contains("version 9"), "{}", failure.what());
        assert!(!failure.what().contains('\u{1b}'));
        let line = "{\"hello\":\"smtp\",\"version\":1,\"program\":\"\"}\n";
        assert!(greet(&mut answer_with(line)).expect_err("no ferroce").what().contains("not a ferroce perf"));
        assert!(greet(&mut answer_with("220 mail.example ESMTP\r\n")).is_err());
    }

    #[test]
    fn refusals_reach_the_user() {
        let params = Params::defaults(Test::SendLat);
        let line = "{\"type\":\"refused\",\"reason\":\"not today\\u0007\"}\n";
        let failure = request_test(&mut answer_with(line), &params).expect_err("refused");
        assert_eq!(failure.what(), "the server refused: not today");
        let failure =
            request_test(&mut answer_with("{\"type\":\"started\"}\n"), &params).expect_err("out of order");
        assert!(failure.what().contains("out of order"));
    }
}
