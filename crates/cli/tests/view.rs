//! `ferroce view` over HTTP, and the pages of ferroce in a real browser.

#[path = "view/browser.rs"]
mod browser;
mod support;
mod watched;

use browser::Browser;
use ferroce_nic::Config;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::{ferroce, outcome, scratch};
use watched::Watched;

/// Held by each test that opens a NIC in this process. The page distinguishes the devices of a process by their slots, which are reused,
/// and shows the packets of all of them together.
static OWN_NICS: Mutex<()> = Mutex::new(());

/// Far longer than anything here takes; reached only by a failure.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// The server on a free port.
struct Viewer {
    process: Child,
    address: SocketAddr,
    token: String,
}

impl Viewer {
    fn start() -> Viewer {
        let mut process = ferroce("view --no-open").stdout(Stdio::piped()).spawn().expect("the command runs");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let (_, url) = line.split_once("http://").expect("an address");
        let (address, token) = url.trim().split_once('/').expect("a path");
        let token = token.trim_end_matches('/').to_owned();
        Viewer { process, address: address.parse().expect("an address"), token }
    }

    fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.token)
    }

    /// Sends bytes; returns status, head and body of the answer.
    fn send(&self, request: &[u8]) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a time limit");
        stream.write_all(request).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str, host: &str) -> (u16, String, String) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
    }

    fn file(&self, name: &str) -> (u16, String, String) {
        self.get(&format!("/{}/{name}", self.token), &self.address.to_string())
    }

    /// Requests the data until it fulfils a condition: a NIC on a busy machine may answer too late for one call.
    fn data(&self, query: &str, is_awaited: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let (status, _, body) = self.file(&format!("data?{query}"));
            assert_eq!(status, 200, "{body}");
            let value: Value = serde_json::from_str(&body).expect("JSON");
            if is_awaited(&value) {
                return value;
            }
            assert!(start.elapsed() < HANG_TIMEOUT, "{value:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn access_needs_the_token_and_the_address() {
    let viewer = Viewer::start();
    assert_eq!(viewer.address.ip().to_string(), "127.0.0.1");
    let own = viewer.address.to_string();
    let (status, head, body) = viewer.file("");
    assert_eq!(status, 200, "{head}");
    assert!(
        head.contains("Content-Security-Policy: default-src 'none'")
            && head.contains("Referrer-Policy: no-referrer"),
        "{head}"
    );
    assert!(body.contains("<script src=\"view.js\">"), "{body}");
    for outside in ["http:", "https:", "@import", "url(", "innerHTML", "eval("] {
        assert!(!body.contains(outside) && !viewer.file("view.js").2.contains(outside), "{outside}");
    }
    let wrong = format!("/{}/data", "0".repeat(32));
    let no_end = format!("/{}", viewer.token);
    for path in [
        "/",
        "/data",
        "/view.js",
        "//",
        "/../data",
        wrong.as_str(),
        no_end.as_str(),
        &format!("/{}/other", viewer.token),
    ] {
        let (status, _, body) = viewer.get(path, &own);
        assert_eq!(status, 404, "{path}: {body}");
        assert!(!body.contains(&viewer.token), "{path}: {body}");
    }
    let data = format!("/{}/data", viewer.token);
    assert_eq!(viewer.get(&data, "rebound.example").0, 403);
    assert_eq!(viewer.get(&data, &format!("localhost:{}", viewer.address.port())).0, 200);
    let post = format!("POST {data} HTTP/1.1\r\nHost: {own}\r\n\r\n");
    assert_eq!(viewer.send(post.as_bytes()).0, 405);
    assert_eq!(viewer.send(b"nonsense\r\n\r\n").0, 400);
    assert_eq!(viewer.send(b"GET /\xff\xfe HTTP/1.1\r\n\r\n").0, 400);
    assert_eq!(viewer.send(format!("GET /{} HTTP/1.1", "x".repeat(8192)).as_bytes()).0, 431);
}

#[test]
fn the_data_shows_a_running_program_and_that_it_ended() {
    let _alone = alone();
    let viewer = Viewer::start();
    let watched = Watched::open("127.77.27.1");
    let (qpn, id) = (watched.qpn(), watched.id());
    let query = format!("filter={qpn}&qp={id}");
    let row = |value: &Value| value["table"]["rows"][0].clone();
    // A NIC that does not answer in time counts as gone until it does.
    let answers = |value: &Value| row(value)["cells"][0][0] == *qpn && row(value)["gone_s"].is_null();
    let found = viewer.data(&query, |value| answers(value) && value["open"].is_object());
    assert_eq!(row(&found)["qp"], *id, "{found:#}");
    assert_eq!(row(&found)["cells"][1][0], "RESET");
    assert_eq!(found["open"]["qp"], *id, "{found:#}");
    let own = std::process::id();
    let is_own = |node: &Value| node["pid"] == own && node["unconnected"] == 1;
    assert!(found["topology"]["nodes"].as_array().expect("nodes").iter().any(is_own), "{found:#}");
    drop(watched);
    let gone = viewer.data(&query, |value| row(value)["gone_s"].is_u64());
    assert_eq!((&row(&gone)["cells"][0][0], &gone["open"]["gone"]), (&qpn.into(), &true.into()), "{gone:#}");
    let (_, _, page) = viewer.file(&format!("timeline?pid={own}"));
    assert!(page.contains("records no packets"), "{page}");
}

#[test]
fn a_signal_ends_it() {
    let mut viewer = Viewer::start();
    let killed =
        Command::new("kill").args(["-INT", &viewer.process.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(viewer.process.wait().expect("it ends").code(), Some(0));
}

#[test]
fn one_snapshot_is_json_and_a_taken_port_is_explained() {
    let _alone = alone();
    let watched = Watched::open("127.77.27.2");
    let start = Instant::now();
    let is_ours = |device: &&Value| device["slot"] == watched.nic.slot();
    loop {
        let found = outcome(&mut ferroce("view --json")).json();
        if let Some(device) = found["devices"].as_array().expect("a list").iter().find(is_ours) {
            assert_eq!(device["queue_pairs"][0]["qpn"], watched.qp.qpn().value());
            break;
        }
        assert!(start.elapsed() < HANG_TIMEOUT, "{found:#}");
    }
    let viewer = Viewer::start();
    let found = outcome(&mut ferroce(&format!("view --no-open --port {}", viewer.address.port())));
    assert_eq!(found.code, 1, "{found:?}");
    assert!(
        found.stderr.contains("cannot listen on 127.0.0.1:") && found.stderr.contains("--port"),
        "{found:?}"
    );
}

/// What every page must fulfil on a phone: nothing scrolls sideways but boxes made for it, and no script failed.
fn check_page(browser: &mut Browser, url: &str, name: &str) {
    browser.open(url);
    check_shown(browser, name);
}

fn check_shown(browser: &mut Browser, name: &str) {
    let wide = browser.number("document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert_eq!(wide, 0.0, "{name} scrolls sideways at 360 px");
    let unnamed = browser.number("[...document.querySelectorAll('svg')].filter(s => s.checkVisibility() && !s.closest('.ladder') && !s.getAttribute('aria-label')).length");
    assert_eq!(unnamed, 0.0, "{name}: pictures without a description");
    // The contrast of text against the page, as WCAG 2.1 computes it.
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        let least = browser.number(CONTRAST);
        assert!(least >= 4.5, "{name}, {scheme}: a contrast of {least}");
    }
    browser.prefer("light");
    check_printed(browser, name);
    assert_eq!(browser.errors(), Vec::<String>::new(), "{name}");
}

/// What every page must fulfil on paper, also where the reader has opened the tables: nothing is cut off at the right, and no heading of a
/// table is broken inside a word.
fn check_printed(browser: &mut Browser, name: &str) {
    browser.as_paper();
    let (wide, word) = (browser.number(BEYOND_PAPER), browser.value(BROKEN_WORD));
    browser.as_phone();
    assert!(wide <= 1.0, "{name}: {wide} pixels are cut off when it is printed");
    assert_eq!(word, "", "{name}: this heading is broken when it is printed");
}

/// How far the content exceeds the paper, with all tables open.
const BEYOND_PAPER: &str = "(() => {
  const closed = [...document.querySelectorAll('details:not([open])')];
  closed.forEach(d => d.open = true);
  const right = [...document.querySelectorAll('table, svg, pre')].filter(e => e.checkVisibility()).map(e => e.getBoundingClientRect().right);
  const wide = Math.max(document.documentElement.scrollWidth, ...right) - document.documentElement.clientWidth;
  closed.forEach(d => d.open = false);
  return wide;
})()";

/// The first word in the head of a table that takes two lines.
const BROKEN_WORD: &str = "(() => {
  for (const cell of document.querySelectorAll('thead th')) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text; cell.checkVisibility() && (text = texts.nextNode());)
      for (const word of text.data.matchAll(/[A-Za-z]+/g)) {
        const range = document.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (range.getClientRects().length > 1) return word[0];
      }
  }
  return '';
})()";

/// The least contrast of any text that is shown with its background.
const CONTRAST: &str = "(() => {
  const rgb = text => { const m = text.match(/[\\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m.slice(0, 3); };
  const light = c => { const [r, g, b] = c.map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c) return c; } return [255, 255, 255]; };
  let least = 21;
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility() || /^(SCRIPT|STYLE|TITLE)$/i.test(e.tagName)) continue;
    const style = getComputedStyle(e), c = rgb(e.namespaceURI.endsWith('svg') ? style.fill : style.color);
    if (!c) continue;
    const [a, b] = [light(c), light(behind(e))].sort((x, y) => y - x);
    least = Math.min(least, (a + .05) / (b + .05));
  }
  return least;
})()";

fn file_url(path: &Path) -> String {
    format!("file://{}", path.display())
}

#[test]
fn a_fabric_page_in_a_browser() {
    let Some(mut browser) = Browser::start("fabric") else { return };
    let folder = folder("fabric");
    let scenario = "name = \"t\"\nabout = \"a test\"\nduration = \"100us\"\n[topology]\nkind = \"leaf-spine\"\nleaves = 2\nspines = 2\n\
                    hosts_per_leaf = 2\nrate = \"100Gb/s\"\ndelay = \"1us\"\n[[workload]]\nkind = \"all-to-all\"\nsize = \"100kB\"\n\
                    [[variant]]\nname = \"dctcp\"\ncontrol = \"dctcp\"\n";
    std::fs::write(folder.join("t.toml"), scenario).expect("our own file");
    let found = outcome(ferroce("fabric sim t.toml").current_dir(&folder));
    assert_eq!(found.code, 0, "{found:?}");
    check_page(&mut browser, &file_url(&folder.join("t.html")), "fabric");
    assert_eq!(browser.number("document.querySelectorAll('figure polyline').length > 5 ? 1 : 0"), 1.0);
    assert_eq!(browser.number(PLOTS_WITHOUT_TABLE), 0.0, "each plot has a table behind it");
    // The slider moves the replay.
    browser.value("(() => { const t = document.getElementById('time'); t.value = t.max; t.dispatchEvent(new Event('input')); })()");
    assert_ne!(browser.value("document.getElementById('clock').textContent"), "");
    assert_eq!(browser.errors(), Vec::<String>::new());
    std::fs::remove_dir_all(folder).expect("our own folder");
}

const PLOTS_WITHOUT_TABLE: &str = "[...document.querySelectorAll('figure')].filter(f => f.querySelector('polyline') && f.nextElementSibling?.tagName !== 'DETAILS').length";

#[test]
fn a_dsm_report_in_a_browser() {
    let Some(mut browser) = Browser::start("dsm") else { return };
    let Some(program) = support::example("jacobi") else { return };
    let folder = folder("dsm");
    let page = folder.join("stat.html");
    let mut command = ferroce(&format!("dsm run -n 2 --transport rdma --stat={}", page.display()));
    let found = outcome(command.arg(program).args(["64", "64", "5"]));
    assert_eq!(found.code, 0, "{found:?}");
    check_page(&mut browser, &file_url(&page), "dsm");
    assert_eq!(browser.number("document.querySelectorAll('svg').length"), 3.0);
    assert_eq!(
        browser.number("document.querySelectorAll('details table').length"),
        2.0,
        "waits and pages as tables"
    );
    std::fs::remove_dir_all(folder).expect("our own folder");
}

/// Two connected queue pairs that exchange messages over UDP until they are dropped, and record their packets.
struct Traffic {
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    qpns: [String; 2],
}

impl Traffic {
    fn start(addr: &str, capture: &Path) -> Traffic {
        let addresses = Some(vec![addr.parse().expect("an address")]);
        let config =
            Config::default().with(|c| (c.addresses, c.capture) = (addresses, Some(capture.to_owned())));
        let device = ferroce::Device::open_with(config).expect("the device opens");
        let pd = device.alloc_pd().expect("a domain");
        let cqs = [0, 1].map(|_| device.create_cq(16).expect("a queue"));
        let [a, b] = [0, 1].map(|n| pd.rc(&cqs[n]).create().expect("a queue pair"));
        a.connect(&b.endpoint().expect("an endpoint")).expect("connected");
        b.connect(&a.endpoint().expect("an endpoint")).expect("connected");
        let qpns = [&a, &b].map(|qp| format!("{:#08x}", qp.endpoint().expect("an endpoint").qpn.value()));
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = ends.clone();
        let thread = std::thread::spawn(move || {
            let _device = device;
            while !is_over.load(Ordering::Relaxed) {
                let received = b.recv(pd.buffer(3000).expect("memory")).expect("a receive");
                let mut message = pd.buffer(3000).expect("memory");
                message.set(&[7; 3000]).expect("it fits");
                a.send(message).expect("a send").wait().expect("sent");
                received.wait().expect("received");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Traffic { ends, thread: Some(thread), qpns }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

#[test]
fn the_view_and_a_timeline_in_a_browser() {
    let Some(mut browser) = Browser::start("view") else { return };
    let _alone = alone();
    let (folder, viewer) = (folder("view"), Viewer::start());
    // The name of a program is hostile.
    std::fs::write("/proc/self/comm", "<b>e&vil</b>").expect("our own name");
    let capture = folder.join("x.pcapng");
    let traffic = Traffic::start("127.77.27.3", &capture);
    let [qpn, _] = traffic.qpns.clone();
    browser.open(&viewer.url());
    browser.wait_for(&format!(
        "[...document.querySelectorAll('#table tbody button')].some(b => b.textContent === '{qpn}')"
    ));
    // A second sample has rates, and the plots a second point.
    browser.wait_for("document.body.dataset.samples >= 3");
    assert_eq!(browser.number("document.querySelectorAll('b').length"), 0.0, "a name became an element");
    assert_eq!(browser.value("document.getElementById('table').textContent.includes('<b>e&vil</b>')"), true);
    assert_eq!(browser.value("document.querySelectorAll('#rates polyline, #retries polyline').length"), 4);
    assert_eq!(
        browser.value("document.querySelectorAll('#topology .link.reached').length > 0"),
        true,
        "the connection is drawn"
    );
    browser.wait_for(&format!("[...document.querySelectorAll('#table tbody tr')].some(r => r.cells[0].textContent === '{qpn}' && r.cells[2].textContent !== '0')"));
    // Opens the queue pair: facts, events, the packet timeline of its process.
    browser.value(&format!(
        "[...document.querySelectorAll('#table tbody button')].find(b => b.textContent === '{qpn}').click()"
    ));
    browser.wait_for("document.querySelectorAll('#events tbody tr').length > 2 && !document.getElementById('detail').hidden");
    assert_eq!(browser.value("document.getElementById('events').textContent.includes('enters RTS')"), true);
    assert_eq!(browser.value("document.querySelectorAll('#timeline circle').length > 2"), true);
    browser.wait_for("document.getElementById('frame').getAttribute('src')?.startsWith('timeline?pid=')");
    // The capture is written a few times a second.
    let (own, start) = (std::process::id(), Instant::now());
    while !viewer.file(&format!("timeline?pid={own}")).2.contains("<tr data-p=")
        && start.elapsed() < HANG_TIMEOUT
    {
        std::thread::sleep(Duration::from_millis(100));
    }
    let (_, _, page) = viewer.file(&format!("timeline?pid={own}"));
    assert!(
        page.contains("<tr data-p=") && page.contains("3000 B"),
        "no packet in a page of {} bytes",
        page.len()
    );
    // Sorting, and a filter that matches one row.
    browser.value("document.querySelector('#table thead button').click()");
    browser.wait_for("document.querySelector('#table th').getAttribute('aria-sort') !== 'none'");
    let type_in = format!(
        "(() => {{ const f = document.getElementById('filter'); f.value = '{qpn}'; f.dispatchEvent(new Event('input')); }})()"
    );
    browser.value(&type_in);
    browser.wait_for("document.getElementById('count').textContent.includes(' of ') || document.querySelectorAll('#table tbody tr').length === 2");
    browser.value("document.querySelector('#rates details').open = true");
    browser.wait_for("document.querySelectorAll('#rates details tbody tr').length > 1");
    check_shown(&mut browser, "view");
    drop(traffic);
    browser.wait_for("document.querySelectorAll('#table tr.gone').length > 0 && !document.getElementById('detail-gone').hidden");
    check_shown(&mut browser, "view of a process that is gone");
    // The same packets as a page of `ferroce timeline`.
    let found = outcome(ferroce("timeline x.pcapng").current_dir(&folder));
    assert_eq!(found.code, 0, "{found:?}");
    check_page(&mut browser, &file_url(&folder.join("x.html")), "timeline");
    assert_eq!(browser.value("document.querySelectorAll('.ladder .packet').length > 3"), true);
    std::fs::remove_dir_all(folder).expect("our own folder");
}

/// The lock of the tests with a NIC. A failed test poisons it, and the others continue.
fn alone() -> MutexGuard<'static, ()> {
    OWN_NICS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn folder(name: &str) -> PathBuf {
    let folder = scratch().join(format!("view.{name}.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder of ours");
    folder
}
