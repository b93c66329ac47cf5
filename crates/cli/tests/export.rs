//! `ferroce export` over HTTP, as Prometheus uses it.

use ferroce_nic::{Config, Nic};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Far longer than anything here takes; reached only by a failure.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// The endpoint on a free port.
struct Exporter {
    process: Child,
    address: SocketAddr,
}

impl Exporter {
    fn start() -> Exporter {
        let mut process = Command::new(env!("CARGO_BIN_EXE_ferroce"))
            .args(["export", "--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command runs");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.split("http://").nth(1).and_then(|url| url.split('/').next()).map(str::parse);
        Exporter { process, address: address.expect("an address").expect("an address") }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a time limit");
        stream
    }

    /// Sends a request; returns the head and the body of the answer.
    fn send(&self, request: &str) -> (String, String) {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str, headers: &str) -> (String, String) {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", self.address))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn prometheus_reads_the_counters_of_this_process() {
    let addresses = Some(vec!["127.77.22.1".parse().expect("an address")]);
    let nic = Nic::open(Config::default().with(|c| c.addresses = addresses)).expect("the device opens");
    let exporter = Exporter::start();
    let info = format!("ferroce_process_info{{pid=\"{}\",slot=\"{}\",", std::process::id(), nic.slot());
    let start = Instant::now();
    // A NIC on a busy machine may answer too late for one scrape.
    let (head, body) = loop {
        let accept = "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n";
        let answer = exporter.get("/metrics", accept);
        if answer.1.contains(&info) || start.elapsed() > HANG_TIMEOUT {
            break answer;
        }
    };
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(body.ends_with("\n# EOF\n"), "{body}");
    assert!(body.contains(&info), "{info} in\n{body}");
    assert!(body.contains("node_infiniband_state_id{device=\"ferroce0\",port=\"1\"} 4\n"), "{body}");
    let (head, text) = exporter.get("/metrics", "");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    check_with_promtool(&text);
}

/// Prometheus' own tool, where it is installed, checks the text format.
fn check_with_promtool(text: &str) {
    let promtool = std::env::var_os("FERROCE_PROMTOOL").unwrap_or_else(|| "promtool".into());
    let started = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = started else {
        println!(
            "SKIPPED: promtool is missing, so only our own test judges the format; it is in the package prometheus"
        );
        return;
    };
    promtool.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let found = promtool.wait_with_output().expect("it ends");
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn other_requests_are_refused() {
    let exporter = Exporter::start();
    let status = |request: &str| exporter.send(request).0.split(' ').nth(1).unwrap_or_default().to_owned();
    assert_eq!(status("GET /secret HTTP/1.1\r\n\r\n"), "404");
    assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405");
    assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n"), "403");
    assert_eq!(status("nonsense\r\n\r\n"), "400");
    assert_eq!(status(&format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(8192 - 20))), "431");
    assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "200");
}

/// Connections that send nothing occupy the slots of others only for a few seconds.
#[test]
fn idle_connections_are_bounded_in_number_and_time() {
    let exporter = Exporter::start();
    let idle: Vec<TcpStream> = (0..16).map(|_| exporter.connect()).collect();
    let mut refused = String::new();
    exporter.connect().read_to_string(&mut refused).expect("text");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    for mut stream in idle {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    assert!(exporter.get("/metrics", "").0.starts_with("HTTP/1.1 200 "));
}

#[test]
fn an_address_in_use_is_explained() {
    let exporter = Exporter::start();
    let found = Command::new(env!("CARGO_BIN_EXE_ferroce"))
        .args(["export", "--listen", &exporter.address.to_string()])
        .output()
        .expect("the command runs");
    let stderr = String::from_utf8_lossy(&found.stderr);
    assert_eq!(found.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains(&format!("cannot listen on {}", exporter.address)) && stderr.contains("--listen"),
        "{stderr}"
    );
}
