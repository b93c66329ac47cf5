//! `ferroce view`: what `ferroce top` shows, as a page in the browser, with plots over time, the topology and the packet timeline.
//!
//! | file | question |
//! |---|---|
//! | `watch` | what the processes answered, and which of them are gone |
//! | `document` | what the page requests, and what it gets: tables, rates, one queue pair |
//! | `topology` | which processes and hosts the queue pairs connect |
//! | `browser` | how only the user's own browser gets the address |
//! | `view.html`, `view.css`, `view.js` | the page |
//!
//! Processes are queried only when a page requests data, so a closed or hidden page costs them nothing. Every user of the host can connect to a port of
//! loopback: the path holds a random token, and `crate::http` refuses other hosts' names.

mod browser;
mod document;
#[cfg(test)]
mod tests;
mod topology;
mod watch;

use crate::failure::Failure;
use crate::http::{self, Answer, Request};
use crate::signals::Blocked;
use crate::{page, timeline};
use document::PageRequest;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;
use watch::Watch;

const BODY: &str = include_str!("view.html");
const STYLE: &str = include_str!("view.css");
const SCRIPT: &str = include_str!("view.js");

/// The page may load only its own script and data. The path contains the token, so the browser sends no referrer.
const HEADERS: &str = "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; \
     frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
     Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n";
/// The page of `ferroce timeline` has its script inside.
const TIMELINE_HEADERS: &str = "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'self'\r\n\
     Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n";
/// Captures longer than this are for `ferroce timeline`, which has a progress bar.
const MAX_CAPTURE_LEN: u64 = 64 << 20;

/// Options of `ferroce view`.
#[derive(clap::Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Port of 127.0.0.1 to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Only print the address; do not open a browser.
    #[arg(long)]
    no_open: bool,
    /// Print one snapshot of all processes as JSON, and end.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ferroce view                            open the page in the browser; Ctrl-C ends it
  ferroce view --no-open                  print its address only
  ferroce view --no-open --port 8000      on a remote machine; then `ssh -L 8000:127.0.0.1:8000 HOST` here, and open the
                                          printed address
  ferroce view --json                     one snapshot for a program

The page shows all ferroce processes of your user in this network namespace: queue pairs with state, peer, rates and
retries, drops by reason, completion queues, memory and connections, with plots over time and the topology. Click a queue
pair for its last hundred events. A process that runs under `ferroce run --capture x.pcapng` or `--timeline x.html` also has its
packet timeline, live. A process does no extra work while no page is open.

The address holds a random token. Anyone with the address can read the page; keep it private.";

/// Serves until a signal ends it.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.json {
        return crate::print_json(&crate::top::second_sample(Duration::from_secs(1)).to_json());
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).map_err(|error| {
        Failure::io(format!("cannot listen on 127.0.0.1:{}", args.port), error)
            .advise("Choose another port with --port, or none for a free one")
    })?;
    let address = listener.local_addr().map_err(|error| Failure::io("the address of the socket", error))?;
    let token = browser::token().map_err(|error| Failure::io("cannot read /dev/urandom", error))?;
    let url = format!("http://{address}/{token}/");
    // Signals are blocked before the server's threads exist: they inherit the mask, and this thread takes the signals.
    let signals = Blocked::new();
    crate::print_text(&format!("all ferroce processes of this user: {url}\nCtrl-C ends it."))?;
    let _ = std::io::stdout().flush();
    let site = Site { token, watch: Mutex::new(Watch::default()) };
    std::thread::spawn(move || {
        if let Err(failure) = http::serve(&listener, true, &|request| site.answer(request)) {
            failure.report();
            std::process::exit(1);
        }
    });
    let _opened = if args.no_open { None } else { browser::open(&url, &signals) };
    loop {
        let ends = |taken| matches!(taken, libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT);
        if signals.next(Duration::from_secs(3600)).is_some_and(|taken| ends(taken.signal)) {
            return Ok(());
        }
    }
}

/// The token and the data of the page.
struct Site {
    token: String,
    watch: Mutex<Watch>,
}

impl Site {
    fn answer(&self, request: &Request) -> Answer {
        let path = request.path().strip_prefix('/').unwrap_or_default();
        let (token, file) = path.split_once('/').unwrap_or((path, "?"));
        if !browser::is_equal(token, &self.token) {
            return Answer::refusal(404, "Open the address that ferroce view printed, with its token.\n");
        }
        let answer = match file {
            "" => {
                let page = page::begin("ferroce view", STYLE) + BODY;
                Answer::new("text/html; charset=utf-8", page::end(page))
            }
            "view.js" => Answer::new("text/javascript; charset=utf-8", SCRIPT),
            "data" => Answer::new("application/json", self.data(request).to_string()),
            "timeline" => return self.timeline(request),
            _ => Answer::refusal(404, "There is no such file.\n"),
        };
        Answer { headers: HEADERS, ..answer }
    }

    fn watch(&self) -> std::sync::MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn data(&self, request: &Request) -> serde_json::Value {
        let request = PageRequest::of(|name| request.parameter(name));
        let mut watch = self.watch();
        let seen = watch.observe(request.qp);
        document::document(&seen, &request)
    }

    /// The packets that a watched process has recorded so far.
    fn timeline(&self, request: &Request) -> Answer {
        let pid = request.parameter("pid").and_then(|pid| pid.parse().ok());
        // Only captures of a listed process are read: a request cannot name any other.
        let files = pid.filter(|pid| self.watch().has(*pid)).map(captures_of).unwrap_or_default();
        let bytes: u64 = files.iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len())).sum();
        let body = if files.is_empty() {
            Err("This process records no packets. Start it with `ferroce run --capture x.pcapng -- PROGRAM`."
                .to_owned())
        } else if bytes > MAX_CAPTURE_LEN {
            let mib = MAX_CAPTURE_LEN >> 20;
            Err(format!(
                "The capture has {} MiB, and the live page reads up to {mib} MiB. Use `ferroce timeline`.",
                bytes >> 20
            ))
        } else {
            timeline::live_page(&files).map_err(|failure| format!("{}.", failure.what()))
        };
        let body = body.unwrap_or_else(|why| {
            let mut page = page::begin("ferroce timeline", "");
            page::note(&mut page, &why);
            page::end(page)
        });
        Answer { headers: TIMELINE_HEADERS, ..Answer::new("text/html; charset=utf-8", body) }
    }
}

/// The captures and records of operations that a process has open.
fn captures_of(pid: u32) -> Vec<PathBuf> {
    let is_capture = |path: &PathBuf| {
        let extension = path.extension().and_then(std::ffi::OsStr::to_str);
        matches!(extension, Some("pcapng" | "jsonl")) && path.is_file()
    };
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> =
        folder.filter_map(|entry| std::fs::read_link(entry.path()).ok()).filter(is_capture).collect();
    files.sort();
    files.dedup();
    files
}
